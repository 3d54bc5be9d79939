"""How fast jobs are recorded: many at once, and one at a time."""

from bench.contestants import LEASEHOLD, RAW, Contestant
from bench.fleet import client
from bench.lines import Line, at_least, not_run, ratios, seen
from bench.machine import Watch
from bench.suite import Run, attempt, case


def _rates(run: Run, command: str, jobs: int, entries: list[Contestant]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {who.name: [] for who in entries}
    for _, who in run.in_turn(entries):
        number = who.jobs(jobs) if command == "bulk" else jobs
        rate = attempt(run, lambda who=who, number=number: _once(run, who, command, number), who.name)
        if rate is not None:
            found[who.name].append(rate)
    return found


def _once(run: Run, who: Contestant, command: str, number: int) -> float:
    dsn = run.database(who)
    watch = Watch(run.server.pid)
    rate = number / float(client(who, dsn, command, number)["s"])
    run.note(who.name, rate=rate, foreign_cores=watch.stop().foreign_cores)
    return rate


def _lines(
    what: str, found: dict[str, list[float]], missing: dict[str, str], of_raw: float, of_peers: float
) -> list[Line]:
    ours, raw = found.pop(LEASEHOLD.name), found.pop(RAW.name)
    lines = [
        seen(ours, "/s", what=what),
        at_least(
            of_raw, ratios(ours, raw), "%", what=what, against="raw rows", note=f"{sorted(raw)[len(raw) // 2]:,.0f}/s"
        ),
    ]
    target = f"≥ {of_peers:.2f} x"
    for name, theirs in found.items():
        lines.append(
            at_least(
                of_peers,
                ratios(ours, theirs),
                "x",
                what=what,
                against=name,
                note=f"{sorted(theirs)[len(theirs) // 2]:,.0f}/s",
            )
            if theirs
            else not_run("it failed, see above", what=what, against=name, target=target)
        )
    return lines + [not_run(why, what=what, against=name, target=target) for name, why in missing.items()]


@case("bulk")
def bulk(run: Run) -> list[Line]:
    """Jobs recorded per second by `enqueue_many`, 1,000 a call, against a raw multi-row INSERT and every peer."""
    peers, missing = run.peers()
    found = _rates(run, "bulk", run.size(100_000, 2_000), [LEASEHOLD, RAW, *peers])
    return _lines("bulk enqueue, 1,000 a call", found, missing, 0.7, 1.5)


@case("single")
def single(run: Run) -> list[Line]:
    """Jobs recorded per second, each awaited, against a raw INSERT with NOTIFY and against every peer."""
    peers, missing = run.peers()
    found = _rates(run, "single", run.size(3_000, 200), [LEASEHOLD, RAW, *peers])
    return _lines("one-at-a-time enqueue", found, missing, 0.9, 1.0)
