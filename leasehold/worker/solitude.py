"""Runs a job alone that was running when workers died: if it kills this one too, no other job is charged for it."""

from collections import deque
from collections.abc import Callable, Container

from leasehold.db.store import ClaimedJob
from leasehold.worker.journal import Place


class Solitude:
    """Which jobs may start beside others, and which may not."""

    def __init__(
        self,
        place: Place,
        give_back: Callable[[ClaimedJob], None],
        waiting: deque[ClaimedJob],
        running: Container[ClaimedJob],
    ) -> None:
        self._place = place
        self._give_back = give_back
        self._waiting = waiting
        self._running = running
        self._alone: ClaimedJob | None = None
        self.suspects: dict[str, bool] = place.suspects()
        """Jobs that were running when workers died, and whether they are to be run alone. Mostly there are none."""

    # A job that waits, or runs alone, may be lost or dropped at any time: what is so now is read from the slots.

    @property
    def wanted(self) -> bool:
        """Whether a job runs alone, or waits for that: then no other is claimed."""
        return self._runs_alone() or (bool(self.suspects) and self._next() is not None)

    @property
    def concerned(self) -> bool:
        """Whether `holds_back` has anything to decide."""
        return bool(self.suspects) or self._alone is not None

    def _runs_alone(self) -> bool:
        return self._alone is not None and self._alone in self._running

    def _next(self) -> ClaimedJob | None:
        return next((job for job in self._waiting if self.suspects.get(job.id)), None)

    def holds_back(self, *, running: bool) -> bool:
        """Whether nothing may start now. If a job is to be run alone, and can be, it is put first."""
        if self._runs_alone():
            return True
        self._alone = None
        job = self._next()
        if job is None:
            return False
        for other in [other for other in self._waiting if not self.suspects.get(other.id)]:
            self._waiting.remove(other)
            self._give_back(other)
        if running:
            return True
        self._waiting.remove(job)
        self._waiting.appendleft(job)
        self._alone = job
        return False

    def ended(self, job: ClaimedJob, *, cleared: bool) -> None:
        """An attempt has ended, and the worker lives. Cleared: it ended by itself."""
        if cleared and self.suspects.pop(job.id, None) is not None:
            self._place.clear(job.id)
