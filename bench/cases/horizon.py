"""What an old snapshot costs, while vacuum can remove nothing."""

from itertools import pairwise

from bench.contestants import LEASEHOLD
from bench.fleet import at_work
from bench.lines import Line, at_least, seen
from bench.suite import Run, case


def _tenths(run: Run, jobs: int, *, held: bool) -> list[float]:
    """Jobs per second in each tenth of a backlog."""
    dsn = run.filled(LEASEHOLD, jobs)
    with run.server.connect("bench") as holder, at_work(LEASEHOLD, dsn) as fleet:
        if held:
            holder.execute("begin isolation level repeatable read")
            holder.execute("select 1")
        fleet.go()
        fleet.wait(1, 30)
        marks = [fleet.first()] + [fleet.wait(jobs * n // 10, 120) for n in range(1, 11)]
    return [jobs / 10 / (after - before) for before, after in pairwise(marks)]


@case("horizon")
def horizon(run: Run) -> list[Line]:
    """The rate of the last tenth of a backlog as a share of the first's, while a session holds an old snapshot."""
    jobs = run.size(100_000, 5_000)
    shares: dict[bool, list[float]] = {True: [], False: []}
    for _, held in run.in_turn([True, False]):
        rates = _tenths(run, jobs, held=held)
        shares[held].append(rates[-1] / rates[0])
        run.note("held" if held else "not held", first=rates[0], last=rates[-1])
    what = "an idle transaction holds the xmin horizon"
    return [
        at_least(0.8, shares[True], "%", what=what, against="the first tenth"),
        seen(shares[False], "%", what="no session holds the xmin horizon", against="the first tenth"),
    ]
