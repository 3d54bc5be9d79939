"""A and B in one run: the same backlog worked off on two databases in turn, batch by batch."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from bench import fill
from bench.lines import Line, ratios, seen
from bench.suite import Run

BATCH = 500
WORKER = "host-1:12345:ab12cd34"

CLAIM = "select id::text, attempt, payload::text from claim_v1(%s, array['default'], array['noop'], %s, %s)"
COMPLETE = "select count(*) from complete_v1(%s, %s::uuid[], %s::integer[])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a variant differs from what is shipped."""

    name: str
    change: tuple[str, ...] = ()
    """SQL that makes it, in a database of its own."""
    claim: str = CLAIM
    complete: str = COMPLETE


SHIPPED = Variant(name="as shipped")
AGAIN = Variant(name="as shipped, once more")
"""Differs by nothing: whatever it shows is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one job."""

    us: float
    wal: float


Step = Callable[[psycopg.Connection, Variant], int]


def claim_and_finish(connection: psycopg.Connection, variant: Variant) -> int:
    """One batch, as a worker does it: two statements, two commits."""
    jobs = connection.execute(variant.claim.encode(), [WORKER, BATCH, uuid.uuid4()], prepare=True).fetchall()
    if jobs:
        arguments = [WORKER, [job[0] for job in jobs], [job[1] for job in jobs]]
        connection.execute(variant.complete.encode(), arguments, prepare=True).fetchall()
    return len(jobs)


def measure(run: Run, variants: list[Variant], jobs: int, step: Step = claim_and_finish) -> dict[str, list[Cost]]:
    """Every repeat, every variant: a new backlog, then one batch of each in turn until all are done."""
    variants = [*variants, AGAIN]
    found: dict[str, list[Cost]] = {variant.name: [] for variant in variants}
    names = {variant.name: f"variant{place}" for place, variant in enumerate(variants)}
    for variant in variants:
        run.server.leasehold(names[variant.name])
        with run.server.connect(names[variant.name]) as connection:
            for statement in variant.change:
                connection.execute(statement.encode())
            fill.drop_noise(connection)
    _round(run, variants, names, 2 * BATCH, step)  # whatever happens only once happens now
    for _ in run.rounds():
        for name, cost in _round(run, variants, names, jobs, step).items():
            found[name].append(cost)
            run.note(name, us=cost.us, wal=cost.wal)
    for name in names.values():
        run.server.drop(name)
    return found


def _round(run: Run, variants: list[Variant], names: dict[str, str], jobs: int, step: Step) -> dict[str, Cost]:
    spent, wal, left = {v.name: 0.0 for v in variants}, {v.name: 0 for v in variants}, {v.name: jobs for v in variants}
    connections = {}
    for name in names.values():
        with run.server.connect(name) as connection:
            connection.execute("truncate jobs")
    # Before the rows are written, not after: a page that was there at a checkpoint goes to the WAL as a whole when it
    # is next changed, and that would drown what differs.
    run.server.checkpoint()
    for variant in variants:
        connection = psycopg.connect(
            run.server.dsn(names[variant.name]), autocommit=True, options="-c search_path=leasehold"
        )
        connections[variant.name] = connection
        fill.fill(connection, fill.QUEUED, jobs)
    turn = 0
    while any(left.values()):
        turn += 1  # another one begins each time
        for variant in variants[turn % len(variants) :] + variants[: turn % len(variants)]:
            if left[variant.name]:
                before, began = run.server.lsn(), time.perf_counter()
                done = step(connections[variant.name], variant)
                spent[variant.name] += time.perf_counter() - began
                wal[variant.name] += run.server.lsn() - before
                left[variant.name] = left[variant.name] - done if done else 0
    for variant in variants:
        done = (
            connections[variant.name]
            .execute("select count(*) from jobs where state::text in ('success', '3')")
            .fetchone()
        )
        connections[variant.name].close()
        assert done == (jobs,), f"{variant.name}: {done} of {jobs} jobs are finished"
    return {v.name: Cost(us=spent[v.name] / jobs * 1e6, wal=wal[v.name] / jobs) for v in variants}


def lines(what: str, found: dict[str, list[Cost]], first: str = SHIPPED.name) -> list[Line]:
    """The first's own figures, and the others' as a share of them."""
    base = found[first]
    rows = [
        seen([one.us for one in base], "µs", what=what, against=first, note="server's time a job, claim and finish"),
        seen([one.wal for one in base], "B", what=what, against=first, note="WAL a job"),
    ]
    for name, costs in found.items():
        if name != first:
            times = ratios([one.us for one in costs], [one.us for one in base])
            rows.append(
                seen(
                    times, "%", what=what, against=name, note=f"of the time; WAL {costs[-1].wal - base[-1].wal:+,.0f} B"
                )
            )
    return rows
