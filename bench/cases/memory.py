"""Whether a worker grows with the number of jobs it has run."""

from bench import fill
from bench.contestants import LEASEHOLD
from bench.fleet import at_work
from bench.lines import Line, at_most, seen
from bench.machine import resident_bytes
from bench.suite import Run, case


@case("memory")
def memory(run: Run) -> list[Line]:
    """The memory of one worker after all jobs as a share of that after the first tenth; a million with --full."""
    jobs = 1_000_000 if run.options.full else run.size(200_000, 5_000)
    dsn = run.server.leasehold("bench")
    with run.server.connect("bench") as connection:
        fill.fill(connection, fill.QUEUED, jobs)
    run.server.checkpoint()
    with at_work(LEASEHOLD, dsn) as fleet:
        fleet.go()
        seen_at = []
        for tenth in range(1, 11):
            fleet.wait(jobs * tenth // 10, 300)
            seen_at.append(resident_bytes(fleet.pids[0]) / 2**20)
    run.note("leasehold", jobs=jobs, **{f"mb_{n + 1}": mb for n, mb in enumerate(seen_at)})
    what = f"memory of a worker over {jobs:,} jobs"
    return [
        at_most(1.1, [seen_at[-1] / seen_at[0]], "x", what=what, against="after the first tenth"),
        seen([seen_at[-1]], "MB", what=what),
    ]
