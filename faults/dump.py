"""Write what the database has to say about a run: events.jsonl and final.jsonl. FORMAT.md says what they hold."""

import json
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

_EVENTS: Final = """
select seq, extract(epoch from at)::float8 as at, job_id::text, kind, queue, from_state::text, to_state::text, attempt,
  owner, claim_id::text, extract(epoch from lease_expires_at)::float8 as lease_expires_at, retry_count, max_attempts,
  reason, extract(epoch from run_at)::float8 as run_at, idempotency_key, exclusive_key, xid::text
from {}.events order by seq
"""
_JOBS: Final = """
select 'job' as row, id::text, kind, queue, state::text, attempt, retry_count, max_attempts, reason,
  extract(epoch from run_at)::float8 as run_at, extract(epoch from created_at)::float8 as created_at,
  extract(epoch from finished_at)::float8 as finished_at, finished_by, idempotency_key, exclusive_key, lease_owner,
  extract(epoch from lease_expires_at)::float8 as lease_expires_at, accepted
from {}.jobs order by id
"""
_ATTEMPTS: Final = """
select 'attempt' as row, job_id::text, attempt, worker, outcome from {}.attempts order by job_id, attempt
"""
_SCHEDULES: Final = """
select 'schedule' as row, key, kind, fired, extract(epoch from next_run_at)::float8 as next_run_at
from {}.schedules order by key
"""
_END: Final = """
select 'end' as row, extract(epoch from clock_timestamp())::float8 as at, (select count(*) from {}.jobs) as jobs
"""


def dump(connection: psycopg.Connection[Any], directory: str | Path, *, schema: str = "leasehold") -> None:
    """Write both files from one snapshot. The connection must be in autocommit mode and outside a transaction."""
    home = Path(directory)
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("set transaction isolation level repeatable read, read only")
        for name, queries in {"events": [_EVENTS], "final": [_JOBS, _ATTEMPTS, _SCHEDULES, _END]}.items():
            with (home / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                for query in queries:
                    for row in cursor.execute(sql.SQL(query).format(sql.Identifier(schema))):
                        file.write(json.dumps(row) + "\n")
