"""What a job's claim and finish cost in PostgreSQL, and what each index, constraint and setting adds to it.

    python bench/row_cost.py [--jobs 50000] [--batch 500] [--rounds 3]

Starts an embedded PostgreSQL of its own (fsync on, stock settings but for shared_buffers), enqueues jobs and
drives `claim_v1` and `complete_v1` from the server's own side, in batches, one transaction each. WAL bytes are
exact; the rates are medians and only good for comparing lines of one run.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import psycopg

from leasehold.db.migrate import migrate
from leasehold.embedded import EmbeddedServer

LEGAL = """(new.attempt < old.attempt or old.state <> new.state and (old.state, new.state) not in (
  ('created', 'queued'), ('queued', 'running'), ('running', 'success'), ('running', 'retry'), ('running', 'queued'),
  ('retry', 'queued'), ('created', 'dead'), ('queued', 'dead'), ('running', 'dead'), ('retry', 'dead'),
  ('dead', 'queued')))"""

VARIANTS: dict[str, str] = {
    "as shipped": "",
    "fillfactor 100": "alter table jobs set (fillfactor = 100)",
    "fillfactor 70": "alter table jobs set (fillfactor = 70)",
    "no transition trigger": "drop trigger jobs_transition on jobs",
    "BEFORE instead of AFTER trigger": f"""drop trigger jobs_transition on jobs;
        create trigger jobs_transition before update of state, attempt on jobs for each row
        when {LEGAL} execute function refuse_transition()""",
    "UNIQUE constraint instead of partial index": """drop index jobs_idempotency_key;
        alter table jobs add constraint jobs_idempotency_key unique (idempotency_key)""",
    "no lease index": "drop index jobs_lease",
    "no finished index": "drop index jobs_finished",
    "no CHECK constraints": """alter table jobs drop constraint jobs_lease_iff_running,
        drop constraint jobs_finished_iff_over, drop constraint jobs_within_budget, drop constraint jobs_exclusive""",
}

FILL = """insert into jobs (kind, payload, state)
    select 'noop', jsonb_build_object('i', g, 't', 0.0, 'to', 'someone@example.com'), 'queued'
    from generate_series(1, %s) g"""
CLAIM = """select array_agg(id), array_agg(attempt) from claim_v1('host-1:12345:ab12cd34', array['default'],
    array['noop'], %s, gen_random_uuid())"""
COMPLETE = "select count(*) from complete_v1('host-1:12345:ab12cd34', %s::uuid[], %s::integer[])"


def drain(connection: psycopg.Connection, jobs: int, batch: int) -> tuple[float, float]:
    """Jobs per second and WAL bytes per job."""
    connection.execute("truncate jobs")
    connection.execute(FILL, [jobs])
    connection.execute("vacuum analyze jobs")
    connection.execute("checkpoint")
    before = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
    began = time.perf_counter()
    while True:
        claimed = connection.execute(CLAIM, [batch]).fetchone()
        if claimed is None or claimed[0] is None:
            break
        connection.execute(COMPLETE, claimed)
    seconds = time.perf_counter() - began
    assert before is not None
    wal = connection.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", before).fetchone()
    done = connection.execute("select count(*) from jobs where state = 'success'").fetchone()
    assert done == (jobs,)
    assert wal is not None
    return jobs / seconds, float(wal[0]) / jobs


def measure(server: EmbeddedServer, change: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """The figures of one variant, on a database of its own."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute("drop database if exists bench with (force)")
        admin.execute("create database bench")
    migrate(server.dsn("bench"))
    with psycopg.connect(server.dsn("bench"), autocommit=True, options="-c search_path=leasehold") as connection:
        if change:
            connection.execute(change)
        figures = [drain(connection, options.jobs, options.batch) for _ in range(options.rounds)]
    rates, wals = zip(*figures, strict=True)
    return list(rates), list(wals)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-"))
        server = stack.enter_context(EmbeddedServer(Path(folder), settings={"shared_buffers": "512MB"}))
        print(f"PostgreSQL {server.version}, {options.jobs:,} jobs in batches of {options.batch}")
        print(f"{'variant':45} {'jobs/s':>9} {'spread':>17} {'WAL B/job':>10}")
        for name, change in VARIANTS.items():
            rates, wals = measure(server, change, options)
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            print(
                f"{name:45} {statistics.median(rates):9,.0f} {spread:>17} {statistics.median(wals):10,.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
