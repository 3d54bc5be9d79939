"""Runs a job alone that was running when workers died: if it kills this one too, no other job is charged for it."""

from collections import deque
from collections.abc import Callable

from leasehold.db.store import ClaimedJob
from leasehold.worker.journal import Place


class Solitude:
    """Which jobs may start beside others, and which may not."""

    def __init__(self, place: Place, give_back: Callable[[ClaimedJob], None]) -> None:
        self._place = place
        self._give_back = give_back
        self._alone: ClaimedJob | None = None
        self._waits = False
        self.suspects: dict[str, bool] = place.suspects()
        """Jobs that were running when workers died, and whether they are to be run alone. Mostly there are none."""

    @property
    def wanted(self) -> bool:
        """Whether a job runs alone, or waits for that: then no other is claimed."""
        return self._waits or self._alone is not None

    def holds_back(self, waiting: deque[ClaimedJob], *, running: bool) -> bool:
        """Whether nothing may start now. If a job is to be run alone, and can be, it is put first."""
        if self._alone is not None:
            return True
        job = next((job for job in waiting if self.suspects.get(job.id)), None)
        self._waits = job is not None
        if job is None:
            return False
        for other in [other for other in waiting if not self.suspects.get(other.id)]:
            waiting.remove(other)
            self._give_back(other)
        if running:
            return True
        waiting.remove(job)
        waiting.appendleft(job)
        self._alone, self._waits = job, False
        return False

    def ended(self, job: ClaimedJob, *, cleared: bool) -> None:
        """An attempt has ended, and the worker lives. Cleared: it ended by itself."""
        if job is self._alone:
            self._alone = None
        if cleared and self.suspects.pop(job.id, None) is not None:
            self._place.clear(job.id)
