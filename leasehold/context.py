"""What a running task can know and say about its own job."""

import logging
import threading
import time
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, Final, Protocol
from uuid import UUID

from leasehold.errors import LeaseholdError, LeaseLost
from leasehold.texts import MAX_LEVEL, MAX_LINE, MAX_NOTE, fraction_of, moment_of, text_of

_current: ContextVar["JobContext"] = ContextVar("leasehold_job")

_lines_guard = threading.Lock()
"""For all jobs together: most say nothing, and a lock for each would cost more than waiting for this one."""

MAX_LINES: Final = 200
"""Lines of log that are kept of one attempt."""

LogLine = tuple[float, str, str]
"""Seconds since the epoch, level, text."""


class Completion(Protocol):
    """Finishes the job on a connection of the task's own."""

    def run(self, connection: object, result: object) -> None:
        """Complete the job in the connection's transaction."""

    def arun(self, connection: object, result: object) -> Awaitable[None]:
        """Complete the job in the connection's transaction."""


class JobContext:
    """The job that is being run, as `current_job()` gives it."""

    __slots__ = (
        "_captured", "_id", "_lines", "_progress", "_stop", "attempt", "kind", "max_attempts", "queue", "retry_count"
    )  # fmt: skip

    def __init__(
        self,
        id: str,  # noqa: A002 (what it is called everywhere)
        kind: str,
        queue: str,
        attempt: int,
        retry_count: int,
        max_attempts: int,
    ) -> None:
        self._id = id
        self.kind = kind
        self.queue = queue
        self.attempt = attempt
        """The number of this claim: the fence. Pass it on to whatever the task writes to."""
        self.retry_count = retry_count
        """Failures so far."""
        self.max_attempts = max_attempts
        self._stop: LeaseholdError | None = None
        self._progress: tuple[float, str] | None = None
        self._lines: list[LogLine] | None = None
        self._captured = 0

    # -- for the task

    @property
    def id(self) -> UUID:
        """The job's id."""
        return UUID(self._id)

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the job; what it says is kept with the attempt."""
        fields: dict[str, Any] = {"job_id": str(self.id), "attempt": self.attempt, "kind": self.kind}
        return logging.LoggerAdapter(logging.getLogger(f"leasehold.task.{self.kind}"), fields)

    def checkpoint(self) -> None:
        """Raise if the task should end now: its lease is lost, its time is over, or the worker stops.

        Long tasks in a thread call it now and then; it costs nothing.
        """
        if self._stop is not None:
            raise self._stop

    def heartbeat(self) -> None:
        """Renew the lease, and write progress and log lines, now instead of at the next turn. Also a checkpoint."""
        self.checkpoint()
        self._renew()

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is, from 0 to 1. Written within about a second; only the latest counts."""
        self._progress = (fraction_of(fraction), text_of(note, MAX_NOTE))
        self.checkpoint()

    def complete_in(self, connection: object, result: object = None) -> None:
        """Finish the job inside your own transaction, fenced: commit, and both happened; roll back, and neither did.

        Raises LeaseLost if the job is no longer this attempt's. Call it last, then commit: until then the job's row is
        locked, and its lease runs on unrenewed.
        """
        self.checkpoint()
        self._completion().run(connection, result)

    async def acomplete_in(self, connection: object, result: object = None) -> None:
        """Finish the job inside your own transaction, as `complete_in` does."""
        self.checkpoint()
        await self._completion().arun(connection, result)

    # -- for the worker

    def _renew(self) -> None:
        """Have the lease renewed soon."""

    def _completion(self) -> Completion:
        raise LeaseholdError("this job cannot be completed from here", hint="only a task that a worker runs can")

    @property
    def stop_reason(self) -> LeaseholdError | None:
        """What the next checkpoint raises."""
        return self._stop

    def stop(self, why: LeaseholdError) -> None:
        """Make the next checkpoint raise."""
        self._stop = why

    def lose(self) -> None:
        """The lease is gone."""
        self.stop(LeaseLost(f"job {self.id}: the lease of attempt {self.attempt} is lost", hint="stop, write nothing"))

    def take_progress(self) -> tuple[float, str] | None:
        """The latest progress not yet written."""
        taken, self._progress = self._progress, None
        return taken

    def restore_progress(self, taken: tuple[float, str]) -> None:
        """It could not be written; keep it, unless the task has said something newer."""
        if self._progress is None:
            self._progress = taken

    def capture(self, line: LogLine) -> None:
        """Keep a line of log, up to a bound."""
        line = line_of(*line)
        with _lines_guard:
            self._captured += 1
            if self._captured > MAX_LINES + 1:
                return
            if self._lines is None:
                self._lines = []
            if self._captured <= MAX_LINES:
                self._lines.append(line)
            else:
                self._lines.append((line[0], "WARNING", f"[more than {MAX_LINES} lines: the rest is not kept]"))

    def take_lines(self) -> list[LogLine]:
        """The lines not yet written."""
        if not self._lines:
            return []
        with _lines_guard:
            taken, self._lines = self._lines, None
        return taken or []


def line_of(at: float, level: str, text: str) -> LogLine:
    """A line of log as it can be stored."""
    return moment_of(at, time.time()), text_of(level, MAX_LEVEL), text_of(text, MAX_LINE)


class Capture(logging.Handler):
    """Keeps what is logged while a job runs with that job, whatever logger it went to."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record to the job of this task or thread, if there is one."""
        context = _current.get(None)
        if context is not None:
            try:
                context.capture((record.created, record.levelname, self.format(record)))
            except Exception:  # noqa: BLE001 (as every handler: logging must not break what it logs)
                self.handleError(record)


def running_job() -> JobContext | None:
    """The job that this code runs for, if there is one."""
    return _current.get(None)


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
