"""How fast a backlog of no-op jobs is worked off, and what each job costs."""

from bench import pgbench
from bench.contestants import LEASEHOLD, SLOTS_ONLY, Contestant
from bench.fleet import BenchError
from bench.lines import Line, at_least, at_most, not_run, ratios, seen
from bench.machine import Watch
from bench.suite import Drain, Run, attempt, case

# How many times a peer's rate one of our processes has to reach; 1: ahead of it.
_ONE = {"graphile-worker": 1.2, "pgqueuer": 3.0}

Found = dict[tuple[str, int], list[Drain]]


@case("drain")
def drain(run: Run) -> list[Line]:
    """Jobs per second of one and of two worker processes, against the limit and against every peer."""
    jobs = run.size(100_000, 3_000)
    peers, missing = run.peers()
    # Ours beside the first of the peers, which is the fastest: the machine's speed changes within a minute.
    entries = [
        (LEASEHOLD, 1), *((peer, 1) for peer in peers), (SLOTS_ONLY, 1),
        (LEASEHOLD, 2), *((peer, 2) for peer in peers),
    ]  # fmt: skip
    found: Found = {(who.name, n): [] for who, n in entries}
    limits: dict[int, list[float]] = {1: [], 2: []}
    for number in run.rounds():
        for who, processes in entries if number % 2 == 0 else reversed(entries):
            one = _once(run, who, jobs, processes)
            if one is not None:
                found[who.name, processes].append(one)
            if who is LEASEHOLD:
                _limit(run, jobs, processes, limits)
    lines = _one_process(found, limits, missing) + _two_processes(found, limits, missing) + _slots_only(found, missing)
    return lines + _costs(found)


def _once(run: Run, who: Contestant, jobs: int, processes: int) -> Drain | None:
    if who.ours:
        return run.drain(who, jobs, processes)
    one: Drain | None = attempt(run, lambda: run.drain(who, jobs, processes), who.name)
    return one


def _limit(run: Run, jobs: int, clients: int, limits: dict[int, list[float]]) -> None:
    """Right beside our own drain, so that both meet the same machine."""
    try:
        dsn = run.filled(LEASEHOLD, jobs)
        watch = Watch(run.server.pid)
        rate = pgbench.drain(run.server, dsn, jobs, clients=clients)
        run.note(f"the limit x {clients}", rate=rate, foreign_cores=watch.stop().foreign_cores)
        limits[clients].append(rate)
    except BenchError as error:
        run.note("the limit", error=str(error))


def _rates(found: Found, name: str, processes: int) -> list[float]:
    return [one.rate for one in found.get((name, processes), [])]


def _one_process(found: Found, limits: dict[int, list[float]], missing: dict[str, str]) -> list[Line]:
    what, ours = "drain, one worker process", _rates(found, "leasehold", 1)
    lines = [seen(ours, "/s", what=what, note="500 slots, 1,500 prefetched")]
    lines.append(
        at_least(0.6, ratios(ours, limits[1]), "%", what=what, against="the limit, one client")
        if limits[1]
        else not_run("pgbench is missing or failed, see above", what=what, against="the limit", target="≥ 60 %")
    )
    for (name, processes), drains in found.items():
        if processes == 1 and not name.startswith("leasehold"):
            theirs = [one.rate for one in drains]
            lines.append(_against(what, name, ours, theirs, _ONE.get(name, 1.0)))
    return lines + [_missing(what, name, why, _ONE.get(name, 1.0)) for name, why in missing.items()]


def _two_processes(found: Found, limits: dict[int, list[float]], missing: dict[str, str]) -> list[Line]:
    what, ours = "drain, two worker processes", _rates(found, "leasehold", 2)
    one = _rates(found, "leasehold", 1)
    lines = [seen(ours, "/s", what=what), at_least(1.0, ratios(ours, one), "x", what=what, against="one process")]
    if limits[2]:
        lines.append(seen(ratios(ours, limits[2]), "%", what=what, against="the limit, two clients"))
    for (name, processes), drains in found.items():
        if processes == 2 and not name.startswith("leasehold"):
            lines.append(_against(what, name, ours, [one.rate for one in drains], 1.0))
    return lines + [_missing(what, name, why, 1.0) for name, why in missing.items()]


def _slots_only(found: Found, missing: dict[str, str]) -> list[Line]:
    what, ours = "drain, 100 slots, no prefetch", _rates(found, SLOTS_ONLY.name, 1)
    full, boss = _rates(found, "leasehold", 1), _rates(found, "pg-boss", 1)
    lines = [
        seen(ours, "/s", what=what),
        at_least(0.7, ratios(ours, full), "%", what=what, against="the drain with prefetch"),
    ]
    if boss:
        return [*lines, _against(what, "pg-boss", ours, boss, 1.0)]
    return [*lines, _missing(what, "pg-boss", missing.get("pg-boss", "it failed"), 1.0)]


def _against(what: str, name: str, ours: list[float], theirs: list[float], bound: float) -> Line:
    if not theirs:
        return not_run("it failed, see above", what=what, against=name, target=f"≥ {bound:.2f} x")
    rates = f"{sorted(theirs)[len(theirs) // 2]:,.0f}/s"
    return at_least(bound, ratios(ours, theirs), "x", what=what, against=name, note=rates)


def _missing(what: str, name: str, why: str, bound: float) -> Line:
    return not_run(why, what=what, against=name, target=f"≥ {bound:.2f} x")


def _costs(found: Found) -> list[Line]:
    """What a job costs, counted and not timed: a busy machine changes little of it."""
    drains = found["leasehold", 1]
    what = "cost of a job in a drain"
    return [
        at_most(0.02, [one.statements for one in drains], "", what=what, against="round trips"),
        at_most(1100, [one.wal for one in drains], "B", what=what, against="WAL"),
        seen([one.worker_us for one in drains], "µs", what=what, against="CPU of the worker"),
        seen([one.server_us for one in drains], "µs", what=what, against="CPU of the server"),
        seen([one.all_us for one in drains], "µs", what=what, against="CPU of the machine"),
    ]
