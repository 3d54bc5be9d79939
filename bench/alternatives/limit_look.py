"""What limits and pauses cost a claim of one job: the call, the pages it reads, the look at limits alone."""

import time

import psycopg

from bench.lines import Line, seen
from bench.suite import Run, case

CLAIM = "select * from claim_v1('host-1:12345:ab12cd34', array['free', 'full'], array['a', 'b'], 1)"
UNASKED = """create or replace function bounds_in_force() returns claim_bounds
language plpgsql as $$ begin return row(false, false, false)::claim_bounds; end $$"""
NOTHING = "create or replace function nothing(out a boolean, out b boolean) language plpgsql as $$ begin end $$"
ROWS = "insert into jobs (max_attempts, queue, kind, state) select 5, %s, 'queued' from generate_series(1, %s)"
BACKLOG = ROWS % ("'full', 'a'", "BACKLOG")
CASES = {
    "limits are not asked for": [UNASKED],
    "no limits": [],
    "100 limits, none applies": ["select set_limit('queue', 'other' || n, 1) from generate_series(1, 100) n"],
    "100 key limits, no job has a key": ["select set_limit('key', 't' || n || '/', 1) from generate_series(1, 100) n"],
    "100 paused queues, none of them ours": ["select pause('other' || n) from generate_series(1, 100) n"],
    "a queue limit with room": ["select set_limit('queue', 'free', 10)"],
    "an exhausted limit": [
        "select set_limit('queue', 'full', 0)",
        ROWS % ("'full', 'a'", 1),
    ],
    "a backlog behind an exhausted limit": ["select set_limit('queue', 'full', 0)", BACKLOG],
    "a backlog in a paused queue": ["select pause('full')", BACKLOG],
}


def _took(connection: psycopg.Connection) -> float:
    """Microseconds of one call, which is rolled back."""
    with connection.transaction(force_rollback=True):
        began = time.perf_counter()
        connection.execute(CLAIM, prepare=True)
        return 1e6 * (time.perf_counter() - began)


def _look(connection: psycopg.Connection, what: str, calls: int) -> float:
    """Microseconds of the look at limits that each claim begins with, in a transaction of its own; the best of five."""
    loop = f"do $$ declare r record; begin for i in 1..{calls} loop r := {what}; commit; end loop; end $$"
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        connection.execute(loop.encode())
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / calls


def _pages(connection: psycopg.Connection) -> int:
    with connection.transaction(force_rollback=True):
        row = connection.execute(f"explain (analyze, buffers, format json) {CLAIM}".encode()).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@case("limit-look", alternative=True)
def limit_look(run: Run) -> list[Line]:
    """A claim of one job with no limits, with many that do not apply, with full ones, with paused queues."""
    backlog, calls = run.size(100_000, 1_000), run.size(1_000, 50)
    lines = []
    for name, statements in CASES.items():
        run.server.leasehold("bench")
        with run.server.connect("bench") as connection:
            connection.execute("set synchronous_commit = off")
            connection.execute((ROWS % ("'free', 'b'", 100)).encode())
            for statement in (*statements, NOTHING, "vacuum analyze jobs"):
                connection.execute(statement.replace("BACKLOG", str(backlog)).encode())
            times = sorted(_took(connection) for _ in range(calls))
            look = _look(connection, "bounds_in_force()", calls * 5) - _look(connection, "nothing()", calls * 5)
            pages = _pages(connection)
        run.note(name, fastest_tenth_us=times[calls // 10], pages=pages, look_us=look)
        lines.append(
            seen(
                [times[calls // 10]],
                "µs",
                what="claim of one job",
                against=name,
                note=f"{pages} pages, {look:.1f} µs for the look",
            )
        )
    return lines
