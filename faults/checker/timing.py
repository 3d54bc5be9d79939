"""Laws of time: nothing runs early."""

from collections.abc import Iterator

from faults.checker.history import History
from faults.checker.violation import Violation


def nothing_runs_before_its_time(history: History) -> Iterator[Violation]:
    """No job is made runnable, or claimed, before its run_at."""
    for event in history.events:
        if event.at < event.run_at and (event.claims or (event.after == "queued" and event.before != "running")):
            early = event.run_at - event.at
            yield Violation("nothing_runs_before_its_time", event.job, f"{event.after} {early:.3f} s before its time")
