"""Many producers that enqueue at the same time, each with notifications to the workers."""

from concurrent.futures import ThreadPoolExecutor

from bench.contestants import LEASEHOLD, RAW, Contestant
from bench.fleet import client
from bench.lines import Line, ratios, seen
from bench.machine import Watch
from bench.suite import Run, case


def _together(run: Run, who: Contestant, producers: int, jobs: int) -> float:
    dsn = run.database(who)
    with ThreadPoolExecutor(producers) as pool:
        watch = Watch(run.server.pid)
        took = list(pool.map(lambda _: float(client(who, dsn, "single", jobs)["s"]), range(producers)))
    rate = sum(jobs / seconds for seconds in took)
    run.note(f"{who.name} x {producers}", rate=rate, foreign_cores=watch.stop().foreign_cores)
    return rate


@case("producers")
def producers(run: Run) -> list[Line]:
    """Jobs recorded per second by eight processes, one at a time each, against raw rows with a NOTIFY each."""
    jobs, number = run.size(1_000, 50), 8
    found: dict[str, list[float]] = {LEASEHOLD.name: [], RAW.name: []}
    alone: list[float] = []
    for _, who in run.in_turn([LEASEHOLD, RAW]):
        found[who.name].append(_together(run, who, number, jobs))
        if who is LEASEHOLD:
            alone.append(_together(run, who, 1, jobs))
    ours, what = found[LEASEHOLD.name], "eight producers, one at a time each"
    return [
        seen(ours, "/s", what=what),
        seen(ratios(ours, found[RAW.name]), "%", what=what, against="raw rows + NOTIFY"),
        seen(ratios(ours, alone), "x", what=what, against="one producer"),
    ]
