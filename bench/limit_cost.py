"""What limits cost a claim.

    python bench/limit_cost.py [--backlog 100000] [--calls 2000]

Starts an embedded PostgreSQL of its own and times `claim` of one job, each call in a transaction that is rolled back.
Given are the fastest tenth, the pages that a call reads, and the time of the look at limits alone.
"""

import argparse
import tempfile
import time
from pathlib import Path

import psycopg

from leasehold.db.migrate import migrate
from leasehold.embedded import EmbeddedServer

CLAIM = "select * from claim_v1('host-1:12345:ab12cd34', array['free', 'full'], array['a', 'b'], 1)"
UNASKED = """create or replace function holds_exist(out of_lanes boolean, out of_keys boolean, out of_queues boolean)
language plpgsql as $$ begin end $$"""
NOTHING = "create or replace function nothing(out a boolean, out b boolean) language plpgsql as $$ begin end $$"
CASES = {
    "limits are not asked for": [UNASKED],
    "no limits": [],
    "100 limits, none applies": ["select set_limit('queue', 'other' || n, 1) from generate_series(1, 100) n"],
    "100 key limits, no job has a key": ["select set_limit('key', 't' || n || '/', 1) from generate_series(1, 100) n"],
    "100 paused queues, none of them ours": ["select pause('other' || n) from generate_series(1, 100) n"],
    "a queue limit with room": ["select set_limit('queue', 'free', 10)"],
    "an exhausted limit": [
        "select set_limit('queue', 'full', 0)",
        "insert into jobs (queue, kind, state) values ('full', 'a', 'queued')",
    ],
    "a backlog behind an exhausted limit": [
        "select set_limit('queue', 'full', 0)",
        "insert into jobs (queue, kind, state) select 'full', 'a', 'queued' from generate_series(1, BACKLOG) n",
    ],
    "a backlog in a paused queue": [
        "select pause('full')",
        "insert into jobs (queue, kind, state) select 'full', 'a', 'queued' from generate_series(1, BACKLOG) n",
    ],
}


def prepared(server: EmbeddedServer, place: int, statements: list[str], backlog: int) -> psycopg.Connection:
    """A connection to a database of its own in which the case holds."""
    name = f"bench{place}"
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create database {name}")
    migrate(server.dsn(name))
    connection = psycopg.connect(server.dsn(name), autocommit=True, options="-c search_path=leasehold")
    connection.execute(
        "insert into jobs (queue, kind, state) select 'free', 'b', 'queued' from generate_series(1, 100)"
    )
    for statement in statements:
        connection.execute(statement.replace("BACKLOG", str(backlog)))
    connection.execute("vacuum analyze jobs")
    return connection


def took(connection: psycopg.Connection) -> float:
    """Microseconds of one call."""
    with connection.transaction(force_rollback=True):
        began = time.perf_counter()
        connection.execute(CLAIM, prepare=True)
        return 1e6 * (time.perf_counter() - began)


def look_alone(connection: psycopg.Connection, what: str = "holds_exist()", calls: int = 10_000) -> float:
    """Microseconds of the look at limits that each claim begins with, in a transaction of its own; the best of five."""
    connection.execute(NOTHING)
    loop = f"do $$ declare r record; begin for i in 1..{calls} loop r := {what}; commit; end loop; end $$"
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        connection.execute(loop)
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / calls


def pages(connection: psycopg.Connection) -> int:
    with connection.transaction(force_rollback=True):
        found = connection.execute(f"explain (analyze, buffers, format json) {CLAIM}").fetchone()
    plan = found[0][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    settings = {"autovacuum": False, "synchronous_commit": False}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        EmbeddedServer(Path(home), settings=settings) as server,
    ):
        for place, (case, statements) in enumerate(CASES.items()):
            with prepared(server, place, statements, options.backlog) as connection:
                fast = sorted(took(connection) for _ in range(options.calls))[options.calls // 10]
                asked = look_alone(connection) - look_alone(connection, "nothing()")
                print(f"{case:40} {fast:7.0f} µs {pages(connection):6} pages {asked:7.1f} µs for the look", flush=True)


if __name__ == "__main__":
    main()
