"""The database under test: its clock stands still, and everything that the model knows can be read at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

START = datetime(2030, 1, 1, tzinfo=UTC)
CLOCK = """
create table leasehold.test_clock (at timestamptz not null);
insert into leasehold.test_clock values ('2030-01-01Z');
create or replace function leasehold.clock() returns timestamptz language sql volatile
as $$ select at from leasehold.test_clock $$;
"""
COLUMNS = (
    "id, kind, queue, priority, max_attempts, payload, idempotency_key, exclusive_key, created_at, run_at, accepted,"
    " state, updated_at, attempt, retry_count, is_current, claim_id, claimed_at, lease_owner, lease_expires_at,"
    " finished_at, finished_by, reason, result, progress,"
    " progress_note"
)
EMPTIED = """
select relname from pg_class where relnamespace = 'leasehold'::regnamespace and relkind = 'r'
and relname not in ('migrations', 'function_files', 'test_clock', 'events')
"""
ORPHANS = """
select exclusive_key from leasehold.jobs where exclusive_key is not null group by exclusive_key
having bool_or(parked) and not bool_or(state = 'running' or state = 'queued' and not parked)
      and exclusive_key not in (select u.exclusive_key from leasehold.unpark_later u)
    or count(*) filter (where state = 'running') > 1 or count(*) filter (where is_current) > 1
"""


@dataclass(frozen=True)
class Snapshot:
    jobs: dict[UUID, dict[str, Any]]
    ended: dict[tuple[UUID, int], dict[str, Any]]
    broken_keys: list[str]

    @property
    def states(self) -> dict[UUID, str]:
        return {id_: row["state"] for id_, row in self.jobs.items()}


class Database:
    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.calls = 0
        self.called: Counter[str] = Counter()
        self._tables = ", ".join(f"leasehold.{name}" for (name,) in connection.execute(EMPTIED))

    def reset(self) -> None:
        self.connection.execute(f"truncate {self._tables}")
        self.set_clock(START)

    def set_clock(self, at: datetime) -> None:
        self.connection.execute("update leasehold.test_clock set at = %s", [at])

    def call(self, function: str, **arguments: object) -> list[tuple[Any, ...]]:
        """Call the stable name, which calls the version beneath it."""
        self.calls += 1
        self.called[function] += 1
        named = ", ".join(f"{name} => %({name})s{TYPES.get(name, '')}" for name in arguments)
        return self.connection.execute(f"select * from leasehold.{function}({named})", arguments).fetchall()

    def snapshot(self) -> Snapshot:
        # In one round trip: this is read after every step.
        with self.connection.pipeline():
            jobs = self.connection.cursor(row_factory=dict_row).execute(f"select {COLUMNS} from leasehold.jobs")
            ended = self.connection.cursor(row_factory=dict_row).execute("select * from leasehold.attempts")
            broken = self.connection.execute(ORPHANS)
        return Snapshot(
            jobs={row["id"]: row for row in jobs},
            ended={(row["job_id"], row["attempt"]): row for row in ended},
            broken_keys=[row[0] for row in broken],
        )


TYPES = {
    "ids": "::uuid[]",
    "attempts": "::integer[]",
    "claim_ids": "::uuid[]",
    "results": "::jsonb[]",
    "queues": "::text[]",
    "kinds": "::text[]",
    "lease_seconds": "::double precision[]",
    "payload": "::jsonb",
    "jobs": "::jsonb",
    "failures": "::jsonb",
    "error": "::jsonb",
    "lanes": "::jsonb",
    "lines": "::jsonb[]",
    "progress": "::real[]",
    "progress_notes": "::text[]",
}
"""Casts of the arguments whose type an empty or all-null value does not show."""


@contextmanager
def database_under_test(dsn: str, *changes: str) -> Iterator[Database]:
    """Connect, stop the clock, and put the given changed functions in place."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(CLOCK)
        connection.execute("set search_path = leasehold")
        for change in changes:
            connection.execute(change)
        connection.execute("reset search_path")
        yield Database(connection)
