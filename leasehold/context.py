"""What a running task can read and write about its own job."""

import logging
import threading
import time
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from leasehold._aio import run_blocking
from leasehold._texts import MAX_LEVEL, MAX_LINE, MAX_NOTE, fraction_of, moment_of, repr_of, text_of
from leasehold.errors import LeaseholdError, LeaseLost

_current: ContextVar["JobContext"] = ContextVar("leasehold_job")

_lines_guard = threading.Lock()
"""For all jobs together: most log nothing, and a lock for each would cost more than waiting for this one."""

MAX_LINES: Final = 200
"""Lines of log that are kept of one attempt."""

LogLine = tuple[float, str, str]
"""Seconds since the epoch, level, text."""


class JobContext:
    """The job that is being run, as `current_job()` returns it."""

    __slots__ = (
        "_captured", "_id", "_lines", "_progress", "attempt", "completed_bare", "kind", "max_attempts", "queue",
        "retry_count", "stop_reason",
    )  # fmt: skip

    def __init__(self, id: str, kind: str, queue: str, attempt: int, retry_count: int, max_attempts: int) -> None:  # noqa: A002
        self._id = id
        self.kind = kind
        self.queue = queue
        self.attempt = attempt
        """The number of this claim: the fence. Pass it on to whatever the task writes to."""
        self.retry_count = retry_count
        """Failures so far."""
        self.max_attempts = max_attempts
        self.stop_reason: LeaseholdError | None = None
        """What the next checkpoint raises."""
        self._progress: tuple[float, str] | None = None
        self._lines: list[LogLine] | None = None
        self._captured = 0
        self.completed_bare = False
        """Whether `complete_in` was called without a result."""

    # -- for the task

    @property
    def id(self) -> UUID:
        """The job's id."""
        return UUID(self._id)

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the job; what it logs is kept with the attempt."""
        fields: dict[str, Any] = {"job_id": str(self.id), "attempt": self.attempt, "kind": self.kind}
        return logging.LoggerAdapter(logging.getLogger(f"leasehold.task.{self.kind}"), fields)

    def checkpoint(self) -> None:
        """Raise if the task should end now: its lease is lost, its time is over, or the worker stops.

        Long tasks in a thread call it now and then; it costs nothing.
        """
        if self.stop_reason is not None:
            raise self.stop_reason

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

        `result` is the job's result: what the task returns afterwards is not recorded.
        If the task then returns without a commit, the attempt has failed, and is retried as after any other failure.
        Raises LeaseLost if the job is no longer this attempt's. Call it last, then commit: until then the job's row is
        locked, and its lease runs on unrenewed.
        """
        run_blocking(self._finish(connection, result, blocking=True))

    async def acomplete_in(self, connection: object, result: object = None) -> None:
        """Finish the job inside your own transaction, as `complete_in` does."""
        await self._finish(connection, result, blocking=False)

    async def _finish(self, connection: object, result: object, *, blocking: bool) -> None:
        self.checkpoint()
        self.completing()
        await self._complete(connection, result, blocking=blocking)
        self.completed_bare = result is None

    # -- for the worker

    def _renew(self) -> None:
        """Have the lease renewed soon."""

    def completing(self) -> None:
        """Note that the task completes its job in a transaction of its own: what it returns is no success by itself."""

    async def _complete(self, connection: object, result: object, *, blocking: bool) -> None:  # noqa: ARG002
        raise LeaseholdError("this job cannot be completed from here", hint="only a task that a worker runs can")

    def stop(self, why: LeaseholdError) -> None:
        """Make the next checkpoint raise."""
        self.stop_reason = why

    def lose(self) -> None:
        """Make the next checkpoint raise LeaseLost."""
        self.stop(LeaseLost(f"job {self.id}: the lease of attempt {self.attempt} is lost", hint="stop, write nothing"))

    def take_progress(self) -> tuple[float, str] | None:
        """Return the latest progress not yet written."""
        taken, self._progress = self._progress, None
        return taken

    def restore_progress(self, taken: tuple[float, str]) -> None:
        """Keep progress that could not be written, unless the task has set a newer one."""
        if self._progress is None:
            self._progress = taken

    def capture(self, line: LogLine) -> None:
        """Keep a line of log, up to a bound."""
        line = line_of(*line)
        with _lines_guard:
            self._captured += 1
            if self._captured > MAX_LINES + 1:
                return
            if self._captured > MAX_LINES:
                line = line[0], "WARNING", f"[more than {MAX_LINES} lines: the rest is not kept]"
            if self._lines is None:
                self._lines = []
            self._lines.append(line)

    def take_lines(self) -> list[LogLine]:
        """Return the lines not yet written."""
        if not self._lines:
            return []
        with _lines_guard:
            taken, self._lines = self._lines, None
        return taken or []


def line_of(at: float, level: str, text: str) -> LogLine:
    """Return a line of log as it can be stored."""
    return moment_of(at, time.time()), text_of(level, MAX_LEVEL), text_of(text, MAX_LINE)


class Capture(logging.Handler):
    """Keeps what is logged while a job runs with that job, whatever logger it went to."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record to the job of this task or thread, if there is one."""
        context = _current.get(None)
        if context is not None:
            try:
                text = self.format(record)
            except Exception:  # noqa: BLE001 (the text and its arguments do not fit: no reason to lose the line)
                # Not handleError, which writes to standard error: the event loop would wait for a full pipe.
                text = f"{text_of(record.msg, MAX_LINE)} {repr_of(record.args, MAX_LINE)}"
            context.capture((record.created, record.levelname, text))


def running_job() -> JobContext | None:
    """Return the job that this code runs for, if there is one."""
    return _current.get(None)


def current_job() -> JobContext:
    """Return the job that this code is running for."""
    try:
        return _current.get()
    except LookupError:
        message = "current_job() was called outside a running job"
        raise LeaseholdError(message, hint="only a task that a worker runs has one") from None


enter = _current.set
leave = _current.reset
