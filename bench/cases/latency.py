"""How soon a job starts after its producer began to enqueue it."""

import time
from dataclasses import replace

from bench.contestants import LEASEHOLD, Contestant
from bench.fleet import BenchError, Fleet, at_work, client
from bench.lines import Line, at_least, at_most, not_run, ratios, seen
from bench.machine import Watch
from bench.suite import Run, attempt, case

Delays = tuple[float, float]
"""p50 and p99, in milliseconds."""


def _percentiles(delays: list[float]) -> Delays:
    ordered = sorted(delays)
    return ordered[len(ordered) // 2] * 1e3, ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3


def _collected(fleet: Fleet, wanted: int, name: str) -> list[float]:
    deadline = time.time() + 10
    while len(delays := fleet.delays()) < wanted:
        if time.time() > deadline:
            raise BenchError(f"{name}: {len(delays)} of {wanted} jobs started")
        time.sleep(0.05)
    return delays


def _idle(run: Run, who: Contestant, jobs: int) -> Delays:
    """One job every 15 ms, on a worker that has nothing else to do."""
    quick = replace(who, slots=who.latency_slots, prefetch=0)
    with at_work(quick, run.database(who)) as fleet:
        fleet.go()
        time.sleep(1.5)  # until it listens
        watch = Watch(run.server.pid)
        client(who, run.server.dsn("bench"), "paced", jobs, 0.015)
        found = _percentiles(_collected(fleet, jobs, who.name))
        run.note(who.name, p50=found[0], p99=found[1], foreign_cores=watch.stop().foreign_cores)
    return found


@case("latency")
def idle(run: Run) -> list[Line]:
    """Milliseconds from before the enqueue to the start of the task, worker idle, against every peer."""
    peers, missing = run.peers()
    jobs = run.size(200, 20)
    found: dict[str, list[Delays]] = {who.name: [] for who in (LEASEHOLD, *peers)}
    for _, who in run.in_turn([LEASEHOLD, *peers]):
        one = attempt(run, lambda who=who: _idle(run, who, jobs), who.name)
        if one is not None:
            found[who.name].append(one)
    ours = found.pop(LEASEHOLD.name)
    lines = []
    for place, name in enumerate(("p50", "p99")):
        what, mine = f"latency, idle worker, {name}", [one[place] for one in ours]
        lines.append(seen(mine, "ms", what=what))
        for peer, theirs in found.items():
            values = [one[place] for one in theirs]
            lines.append(
                at_most(
                    1.0,
                    ratios(mine, values),
                    "x",
                    what=what,
                    against=peer,
                    note=f"{sorted(values)[len(values) // 2]:.1f} ms",
                )
                if values
                else not_run("it failed, see above", what=what, against=peer, target="≤ 1.00 x")
            )
        lines += [not_run(why, what=what, against=peer, target="≤ 1.00 x") for peer, why in missing.items()]
    return lines


def _capacity(run: Run, jobs: int) -> float:
    """Jobs a second that are recorded and worked off at the same time, on the same processors."""
    dsn = run.database(LEASEHOLD)
    with at_work(LEASEHOLD, dsn) as fleet:
        fleet.go()
        time.sleep(1)
        client(LEASEHOLD, dsn, "bulk", jobs)
        ended = fleet.wait(jobs, 60)
        rate = jobs / (ended - fleet.first())
    run.note("recorded and worked off", rate=rate)
    return rate


def _under_load(run: Run, rate: float, seconds: float) -> tuple[Delays, float]:
    """The delays at this rate, and how much of it was kept."""
    dsn = run.database(LEASEHOLD)
    with at_work(LEASEHOLD, dsn) as fleet:
        fleet.go()
        time.sleep(1)
        watch = Watch(run.server.pid)
        sent = client(LEASEHOLD, dsn, "steady", int(rate), seconds)
        fleet.wait(sent["n"], 30)
        found = _percentiles(fleet.delays())
        kept = sent["n"] / sent["s"] / rate
        run.note(
            "leasehold", rate=rate, p50=found[0], p99=found[1], kept=kept, foreign_cores=watch.stop().foreign_cores
        )
    return found, kept


@case("half-load")
def half_load(run: Run) -> list[Line]:
    """The same at half the rate at which jobs can be recorded and worked off at once; and at half that of a drain."""
    what = "latency at half load"
    seconds = run.seconds(6, 1.5)
    found: list[Delays] = []
    kept: list[float] = []
    beyond: list[Delays] = []
    for _ in run.rounds():
        delays, share = _under_load(run, _capacity(run, run.size(80_000, 3_000)) / 2, seconds)
        found.append(delays)
        kept.append(share)
        beyond.append(_under_load(run, run.drain(LEASEHOLD, run.size(40_000, 3_000)).rate / 2, seconds)[0])
    return [
        seen([one[0] for one in found], "ms", what=what, against="p50"),
        at_most(20, [one[1] for one in found], "ms", what=what, against="p99"),
        at_least(
            0.9, kept, "%", what=what, against="the rate that was asked for", note="else the load was lighter than half"
        ),
        seen([one[0] for one in beyond], "ms", what="latency at half the rate of a drain", against="p50"),
        seen(
            [one[1] for one in beyond], "ms", what="latency at half the rate of a drain", against="p99",
            note="the load generator needs the processors too",
        ),
    ]  # fmt: skip
