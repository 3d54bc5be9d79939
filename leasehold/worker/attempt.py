"""One attempt of a job, from its start to its outcome."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.context import JobContext, enter, leave
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import InvalidArguments, LeaseholdError, LeaseLost
from leasehold.outcome import Cancel, Lost, Outcome, Released, Snooze, Snoozed
from leasehold.task import Task
from leasehold.telemetry import AttemptFacts, Hooks, Telemetry
from leasehold.worker.executors import Fork, NotStarted, ThreadExecutor, end_copy_of, run_in_time
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.options import WorkerOptions
from leasehold.worker.outcomes import NO_RESULT, as_error, complete_in, outcome_of, set_aside, unless_committed
from leasehold.worker.process import ProcessExecutor

logger = logger_of(__name__)

_RETRY_START = 5.0
"""Seconds that a job waits for which the system had no thread or process."""


class Attempt(JobContext):
    """A job in a slot: the context that its task sees, and the state that the worker keeps of it."""

    __slots__ = ("charge", "handle", "job", "lost", "released", "runner", "task")

    def __init__(self, job: ClaimedJob, task: Task[..., Any], runner: "AttemptRunner") -> None:
        super().__init__(job.id, job.kind, job.queue, job.attempt, job.retry_count, job.max_attempts)
        self.job = job
        self.task = task
        self.runner = runner
        self.handle: asyncio.Task[None] | None = None
        self.lost = False
        self.released = False
        self.charge: Exception | None = None
        """What the job has failed with if the worker ends it: else it is released."""

    def end(self, *, lost: bool, cancel: bool = True) -> None:
        """Make the next checkpoint raise, and cancel the coroutine: the lease is lost, or the worker stops."""
        if lost:
            self.lost = True
            self.lose()
        else:
            self.released = True
            self.stop(LeaseholdError(f"job {self.job.id}: the worker is stopping"))
        if self.handle is not None and cancel:
            self.handle.cancel()

    def outcome_of_end(self) -> Outcome:
        """Return the outcome of an attempt that the worker has ended."""
        return Released() if self.charge is None else outcome_of(self.task, self.retry_count, self.charge)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is, from 0 to 1. Written within about a second; only the latest counts."""
        super().progress(fraction, note)
        self.runner.keeper.write_soon(self.job)

    def _renew(self) -> None:
        self.runner.keeper.soon(self.job)

    def completing(self) -> None:
        """Note that the task completes its job in a transaction of its own: what it returns is no success by itself."""
        self.job.completes = True

    async def _complete(self, connection: object, result: object, *, blocking: bool) -> None:
        worker, store = self.runner.worker_id, self.runner.store
        await complete_in(
            connection, result, blocking=blocking, worker=worker, store=store, task=self.task, token=self.job
        )


class AttemptRunner:
    """Runs attempts on the event loop, in threads and in processes.

    What a task raised is let go of by name, here and in the executors, once its outcome is made. The frames of its
    traceback, ours among them, would keep it and each other alive until the collector runs: with all that the task had
    in its variables, such as a connection with an open transaction.
    """

    def __init__(
        self, worker_id: str, store: Store, *, keeper: LeaseKeeper, hooks: Hooks, telemetry: Telemetry,
        options: WorkerOptions, hold_off: Callable[[float], None],
    ) -> None:  # fmt: skip
        """`hold_off` is called when no more jobs can be started for a while."""
        self.worker_id = worker_id
        self.store = store
        self.keeper = keeper
        self._telemetry = telemetry
        self._hooks = hooks
        self._hold_off = hold_off
        self._process = Fork.number
        self._threads = ThreadExecutor()
        self._processes = ProcessExecutor(options.slots, worker=worker_id, schema=store.schema, most=options.child_jobs)
        self._shortage_logged = False

    async def run(self, attempt: Attempt) -> Outcome:
        """Run one attempt and return its outcome. Never raises."""
        began = monotonic()
        if self._telemetry.heard:
            self._telemetry.emit("job.started", job=AttemptFacts.of(attempt))
        entered = enter(attempt)
        outcome: Outcome
        try:
            outcome = await self._outcome(attempt)
        except asyncio.CancelledError:
            if attempt.lost or attempt.released:
                outcome = attempt.outcome_of_end()
            else:  # not cancelled by the worker: the task awaited something that it had cancelled itself
                error = RuntimeError("the task raised CancelledError()")
                outcome = outcome_of(attempt.task, attempt.retry_count, error)
        except BaseException as end:  # noqa: BLE001 (SystemExit among others: only the job fails)
            outcome = outcome_of(attempt.task, attempt.retry_count, as_error(end))
        if attempt.lost:
            outcome = Lost()
        attempt.job.ran = monotonic() - began
        try:
            if self._hooks.after:
                await self._hooks.run_after(attempt, outcome)
            if self._telemetry.heard:
                facts = AttemptFacts.of(attempt)
                self._telemetry.emit("job.finished", job=facts, outcome=outcome, seconds=attempt.job.ran)
        except asyncio.CancelledError:
            pass
        except BaseException:
            logger.exception("job %s: what is called after an attempt failed", attempt.job.id)
        leave(entered)  # what the worker logs next, in the same asyncio task, is about itself or another job
        return unless_committed(attempt.task, attempt.job, outcome) if attempt.job.completes else outcome

    async def _outcome(self, attempt: Attempt) -> Outcome:
        job, task, hooks = attempt.job, attempt.task, self._hooks
        try:
            if hooks.before:
                await hooks.run_before(attempt)
            executor = task.options.executor
            if executor == "process":
                outcome = await self._processes.run(task, job, attempt)
                self._shortage_logged = False
                return outcome
            try:
                arguments = task.arguments.decode(job.payload)
            except InvalidArguments as invalid:
                raise set_aside(invalid) from None
            if executor == "loop":
                function = partial(hooks.acall, attempt, task.function) if hooks.around else task.function
                if task.options.timeout is not None:
                    function = partial(run_in_time, task, function)
                try:
                    value = await function(**arguments)
                finally:
                    if Fork.number != self._process:
                        end_copy_of(self._process)
                return NO_RESULT if value is None else outcome_of(task, job.retry_count, value)
            function = partial(hooks.call, attempt, task.function) if hooks.around else task.function
            outcome, error = await self._threads.run(task, function, arguments, attempt)
            self._shortage_logged = False
        except NotStarted as missing:  # not the job's fault: it counts as no failure
            return self._snooze(job, missing)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # noqa: BLE001 (whatever a task raises is its outcome, SystemExit included)
            error = as_error(raised)
            outcome = outcome_of(task, job.retry_count, error)
        try:
            return outcome if error is None else await self._after_error(attempt, error, outcome)
        finally:
            del error

    async def _after_error(self, attempt: Attempt, error: Exception, outcome: Outcome) -> Outcome:
        if isinstance(error, LeaseLost) and attempt.lost:
            return Lost()
        if attempt.released and isinstance(error, LeaseholdError) and error is attempt.stop_reason:
            return attempt.outcome_of_end()
        if not isinstance(error, Snooze | Cancel):
            await self._hooks.run_on_error(attempt, error)
        return outcome

    def _snooze(self, job: ClaimedJob, missing: NotStarted) -> Outcome:
        """Have a job wait for which there is no thread or process, and claims too, which would fetch more jobs."""
        level = logging.DEBUG if self._shortage_logged else logging.WARNING
        text = "job %s: %s; it is tried again in %g s, and none is claimed till then"
        logger.log(level, text, job.id, missing, _RETRY_START)
        self._shortage_logged = True
        self._hold_off(_RETRY_START)
        return Snoozed(_RETRY_START)

    async def close(self) -> None:
        """Let idle threads and processes end; kill the processes that do not."""
        self._threads.close()
        await self._processes.close()

    def kill(self) -> None:
        """End what can be ended, without waiting for it."""
        self._threads.close()
        self._processes.kill()
