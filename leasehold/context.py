"""What a running task can know and say about its own job."""

import logging
from contextvars import ContextVar
from uuid import UUID

from leasehold.errors import LeaseholdError, LeaseLost

_current: ContextVar["JobContext"] = ContextVar("leasehold_job")


class JobContext:
    """The job that is being run, as `current_job()` gives it."""

    def __init__(
        self,
        *,
        id: UUID,  # noqa: A002 (what it is called everywhere)
        kind: str,
        queue: str,
        attempt: int,
        retry_count: int,
        max_attempts: int,
    ) -> None:
        self.id = id
        self.kind = kind
        self.queue = queue
        self.attempt = attempt
        """The number of this claim: the fence. Pass it on to whatever the task writes to."""
        self.retry_count = retry_count
        """Failures so far."""
        self.max_attempts = max_attempts
        self.log = logging.LoggerAdapter(
            logging.getLogger(f"leasehold.task.{kind}"), {"job_id": str(id), "attempt": attempt, "kind": kind}
        )
        self._stop: LeaseholdError | None = None

    def checkpoint(self) -> None:
        """Raise if the task should end now: its lease is lost, its time is over, or the worker stops.

        Long tasks in a thread call it now and then; it costs nothing.
        """
        if self._stop is not None:
            raise self._stop

    @property
    def stop_reason(self) -> LeaseholdError | None:
        """What the next checkpoint raises."""
        return self._stop

    def stop(self, why: LeaseholdError) -> None:
        """Make the next checkpoint raise. Called by the worker."""
        self._stop = why

    def lose(self) -> None:
        """The lease is gone. Called by the worker."""
        self.stop(LeaseLost(f"job {self.id}: the lease of attempt {self.attempt} is lost", hint="stop, write nothing"))


def current_job() -> JobContext:
    """The job that this code is running for."""
    try:
        return _current.get()
    except LookupError:
        raise LeaseholdError(
            "current_job() was called outside a running job", hint="only a task that a worker runs has one"
        ) from None


enter = _current.set
leave = _current.reset
