"""Whether what lies in the table makes claims slower than they are on an empty one."""

import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg

from bench import fill
from bench.contestants import LEASEHOLD
from bench.fleet import at_work
from bench.lines import Line, at_most, ratios, seen
from bench.suite import Run, case, say

CLAIM = "select id, attempt from claim_v1(%s, %s::text[], array['noop'], 100, %s)"
COMPLETE = "select count(*) from complete_v1(%s, %s::uuid[], %s::integer[])"
BOUND = 1.2
_WORKER_ROUNDS = 2
"""At most: starting workers takes longer than what they are timed for."""


def _busy_key(connection: psycopg.Connection, rows: int) -> None:
    """One job of the key runs; the first claims that meet the others put them aside, some thousand each."""
    connection.execute(
        "insert into jobs (max_attempts, kind, state, exclusive_key) values (5, 'noop', 'queued', 'busy')"
    )
    connection.execute("select * from claim_v1('holder', null, array['noop'], 1)")
    connection.execute(
        "update jobs set lease_expires_at = clock_timestamp() + interval '1 hour' where state = 'running'"
    )
    fill.fill(connection, fill.KEYED, rows)
    began, claims = time.perf_counter(), 0
    while connection.execute("select from jobs where state = 'queued' and not parked limit 1").fetchone() is not None:
        connection.execute("select * from claim_v1('first', null, array['noop'], 100)")
        claims += 1
    say(f"  {claims} claims put {rows:,} jobs aside in {time.perf_counter() - began:.1f} s")
    connection.execute("vacuum analyze jobs")


def _full_limit(connection: psycopg.Connection, rows: int) -> None:
    connection.execute("select set_limit('queue', 'full', 0)")
    fill.fill(connection, fill.LIMITED, rows)


def _rows(statement: str) -> Callable[[psycopg.Connection, int], None]:
    return lambda connection, rows: fill.fill(connection, statement, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What else is in the table."""

    what: str
    rows: int
    make: Callable[[psycopg.Connection, int], None]
    ours: bool = False
    """The claims work on the rows themselves, not on some that are added."""
    queue: str | None = None
    """The only one that the worker takes jobs from."""
    long: bool = False


MILLION = 1_000_000
BACKGROUNDS = (
    Background(what="1 M finished", rows=MILLION, make=_rows(fill.FINISHED)),
    Background(what="1 M queued", rows=MILLION, make=_rows(fill.QUEUED), ours=True),
    Background(what="1 M in the future", rows=MILLION, make=_rows(fill.FUTURE)),
    Background(what="1 M queued of kinds not handled", rows=MILLION, make=_rows(fill.OTHER_KINDS)),
    Background(what="1,000 queues, all of them ours", rows=200_000, make=_rows(fill.MANY_QUEUES), ours=True),
    Background(what="1,000 queues, one of them ours", rows=100_000, make=_rows(fill.MANY_QUEUES), queue="default"),
    Background(what="100,000 behind a busy exclusive key", rows=100_000, make=_busy_key),
    Background(what="100,000 behind an exhausted limit", rows=100_000, make=_full_limit),
    Background(what="10 M finished", rows=10 * MILLION, make=_rows(fill.FINISHED), long=True),
)


def _timed(connection: psycopg.Connection, queue: str | None) -> tuple[float, float]:
    """Milliseconds of one claim of 100 jobs and of their report."""
    queues = [queue] if queue else None
    began = time.perf_counter()
    jobs = connection.execute(CLAIM, ["bench", queues, uuid.uuid4()], prepare=True).fetchall()
    claimed = time.perf_counter()
    assert len(jobs) == 100, f"a claim returned {len(jobs)} jobs"
    ids, attempts = [job[0] for job in jobs], [job[1] for job in jobs]
    connection.execute(COMPLETE, ["bench", ids, attempts], prepare=True).fetchall()
    return (claimed - began) * 1e3, (time.perf_counter() - claimed) * 1e3


def _functions(run: Run, background: Background, calls: int) -> tuple[list[float], list[float]]:
    """The cost of a claim and of claim and report together, as a share of that on an empty table, round by round.

    The calls alternate between the two databases, so that whatever else the machine does hits both.
    """
    claims, both = [], []
    with run.server.connect("growth") as deep, run.server.connect("empty") as empty:
        for _ in run.rounds():
            for connection in (empty, deep):
                if connection is empty or not background.ours:
                    connection.execute(fill.QUEUED.encode(), [calls * 100 + 2_000])
                # What the last round has left behind would be walked over by every claim of this one.
                connection.execute("vacuum analyze jobs")
            run.server.checkpoint()  # and what the filling has left in memory would have to be written
            times: dict[str, list[tuple[float, float]]] = {"empty": [], "deep": []}
            for _ in range(calls + 20):
                times["empty"].append(_timed(empty, background.queue))
                times["deep"].append(_timed(deep, background.queue))
            costs = {who: _median(some[20:]) for who, some in times.items()}  # the first ones make the plans
            claims.append(costs["deep"][0] / costs["empty"][0])
            both.append(sum(costs["deep"]) / sum(costs["empty"]))
            run.note(background.what, claim_ms=costs["deep"][0], on_empty_ms=costs["empty"][0], ratio=claims[-1])
            empty.execute("truncate jobs")
    return claims, both


def _median(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(one[0] for one in times), statistics.median(one[1] for one in times)


def _worker(run: Run, background: Background, jobs: int) -> list[float]:
    """The time a worker takes for some jobs, as a share of that on an empty table."""
    who = replace(LEASEHOLD, mode=background.queue or "")
    rates: dict[str, list[float]] = {"growth": [], "empty": []}
    for number, name in run.in_turn(["empty", "growth"]):
        if number >= _WORKER_ROUNDS:
            break
        with run.server.connect(name) as connection:
            if name == "empty":
                connection.execute("truncate jobs")
            if name == "empty" or not background.ours:
                connection.execute(fill.QUEUED.encode(), [jobs + 2_000])
            connection.execute("analyze jobs")
        with at_work(who, run.server.dsn(name)) as fleet:
            fleet.go()
            ended = fleet.wait(jobs, 120)
            rates[name].append(jobs / (ended - fleet.first()))
        run.note(f"worker, {background.what if name == 'growth' else 'empty'}", rate=rates[name][-1])
    return ratios(rates["empty"], rates["growth"])


def _measured(run: Run, background: Background) -> list[Line]:
    rows, calls, jobs = background.rows // run.size(1, 100), run.size(100, 10), run.size(20_000, 2_000)
    if background.ours:
        rows = max(rows, run.options.repeats * (calls * 100 + jobs + 5_000))  # they are used up
    for name in ("growth", "empty"):
        run.server.leasehold(name)
        with run.server.connect(name) as connection:
            fill.drop_noise(connection)
    began = time.monotonic()
    with run.server.connect("growth") as connection:
        background.make(connection, rows)
    say(f"  {background.what}: filled in {time.monotonic() - began:.0f} s")
    run.server.checkpoint()
    try:
        claims, both = _functions(run, background, calls)
        worker = _worker(run, background, jobs)
    finally:
        run.server.drop("growth")
        run.server.drop("empty")
    what = f"growth: {background.what}"
    return [
        at_most(BOUND, claims, "x", what=what, against="claim of 100 on an empty table"),
        seen(both, "x", what=what, against="claim and report on an empty table"),
        at_most(BOUND, worker, "x", what=what, against="a worker's time per job on an empty table"),
    ]


@case("growth")
def growth(run: Run) -> list[Line]:
    """The cost of a claim behind a million rows of every sort, as a share of that on an empty table."""
    return [line for background in BACKGROUNDS if not background.long for line in _measured(run, background)]


@case("growth-10m", long=True)
def growth_10m(run: Run) -> list[Line]:
    """The same with ten million finished rows."""
    return [line for background in BACKGROUNDS if background.long for line in _measured(run, background)]
