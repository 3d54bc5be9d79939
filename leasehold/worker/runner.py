"""Runs claimed jobs in slots and turns whatever happens into an outcome."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leasehold.context import Completion, JobContext, enter, leave
from leasehold.db.store import ClaimedJob, Token
from leasehold.errors import LeaseholdError, LeaseLost
from leasehold.outcome import Cancel, Error, Failed, Lost, Outcome, Released, Snooze
from leasehold.worker.completion import CompleteIn
from leasehold.worker.executors import ThreadExecutor, run_on_loop
from leasehold.worker.judge import outcome_of
from leasehold.worker.process import ProcessExecutor, check_tasks

if TYPE_CHECKING:
    from leasehold.worker.finisher import Finisher
    from leasehold.worker.lease import LeaseKeeper
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)


class Running:
    """One job in a slot."""

    __slots__ = ("context", "handle", "job", "lost", "released")

    def __init__(self, job: ClaimedJob, completion: Completion) -> None:
        self.job = job
        self.context = JobContext(
            id=job.id, kind=job.kind, queue=job.queue, attempt=job.attempt, retry_count=job.retry_count,
            max_attempts=job.max_attempts, completion=completion,
        )  # fmt: skip
        self.handle: asyncio.Task[None] | None = None
        self.lost = False
        self.released = False


class Runner:
    """The slots of a worker and the jobs in them."""

    def __init__(self, worker: "Worker", finisher: "Finisher", keeper: "LeaseKeeper") -> None:
        self._worker = worker
        self._finisher = finisher
        self._keeper = keeper
        self._waiting: deque[ClaimedJob] = deque()
        self._running: dict[Token, Running] = {}
        self._threads = ThreadExecutor(worker.options.slots)
        check_tasks(worker.app.tasks.values())
        self._processes = ProcessExecutor(worker.options.slots, worker=worker.id, schema=worker.app.settings.schema)
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        keeper.on_lost = self.lose
        finisher.on_written = self.room_changed

    # -- room

    @property
    def room(self) -> int:
        """How many more jobs may be claimed."""
        options = self._worker.options
        unfinished = len(self._running) + len(self._waiting) + self._finisher.backlog
        return options.slots + options.prefetch - unfinished

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return len(self._running)

    async def wait_for_room(self) -> None:
        """Return when at least one more job may be claimed."""
        while self.room <= 0:
            self._room.clear()
            await self._room.wait()

    def room_changed(self) -> None:
        """A job has left: look again."""
        if self.room > 0:
            self._room.set()

    def knows(self, token: Token) -> bool:
        """Whether this job is here: waiting, running, or on its way to be reported."""
        return self._keeper.holds(token) or token in self._running

    # -- a job's way

    def accept(self, jobs: Sequence[ClaimedJob], asked: float) -> None:
        """Take claimed jobs in. Their leases count from the moment they were asked for."""
        for job in jobs:
            self._keeper.hold(job, asked)
        self._waiting.extend(jobs)
        self._fill_slots()

    def _fill_slots(self) -> None:
        while self._waiting and not self._draining and len(self._running) < self._worker.options.slots:
            running = self._prepare(self._waiting.popleft())
            self._running[running.job.token] = running
            self._empty.clear()
            running.handle = asyncio.create_task(self._run(running))

    def _prepare(self, job: ClaimedJob) -> Running:
        task = self._worker.app.find(job.kind)
        running = Running(job, CompleteIn(self._worker.id, self._worker.store, task, job.token))
        self._keeper.watch(job.token, running.context)
        return running

    async def _run(self, running: Running) -> None:
        app = self._worker.app
        began = time.monotonic()
        app.telemetry.emit("job.started", job=running.context)
        outcome: Outcome
        try:
            outcome = await self._attempt(running)
        except asyncio.CancelledError:
            if running.lost or running.released:
                outcome = Released()
            else:  # not our doing: the task awaited something that it had cancelled itself
                error = RuntimeError("the task raised CancelledError()")
                outcome = outcome_of(app.find(running.job.kind), running.job.retry_count, error)
        except BaseException as error:
            logger.exception("job %s: the worker itself failed", running.job.id)
            outcome = Failed(error=Error.from_exception(error), retry_after=None)
        if running.lost:
            outcome = Lost()
        try:
            if app.hooks.after:
                await app.hooks.run_after(running.context, outcome)
        finally:
            app.telemetry.emit("job.finished", job=running.context, outcome=outcome, seconds=time.monotonic() - began)
            self._end(running, outcome)

    def _end(self, running: Running, outcome: Outcome) -> None:
        """The slot is free."""
        del self._running[running.job.token]
        self._finisher.report(running.job, outcome, running.context.take_lines())
        self._worker.job_ended()
        self._fill_slots()
        if not self._running:
            self._empty.set()

    async def _attempt(self, running: Running) -> Outcome:
        job, context = running.job, running.context
        task = self._worker.app.find(job.kind)
        hooks = self._worker.app.hooks
        entered = enter(context)
        try:
            if hooks.before:
                await hooks.run_before(context)
            if task.options.executor == "process":
                return await self._processes.run(task, job, context)
            arguments = task.arguments.decode(job.payload)
            if task.options.executor == "loop":
                value = await run_on_loop(task, arguments)
            else:
                value = await self._threads.run(task, arguments, context)
            return outcome_of(task, job.retry_count, value)
        except Exception as error:  # noqa: BLE001 (whatever a task raises is its outcome)
            if isinstance(error, LeaseLost) and running.lost:
                return Lost()
            if running.released and isinstance(error, LeaseholdError) and error is context.stop_reason:
                return Released()
            if not isinstance(error, Snooze | Cancel):
                await hooks.run_on_error(context, error)
            return outcome_of(task, job.retry_count, error)
        finally:
            leave(entered)

    # -- endings

    def lose(self, token: Token) -> None:
        """The lease is gone: tell the task, write nothing."""
        running = self._running.get(token)
        if running is None:
            self._waiting = deque(job for job in self._waiting if job.token != token)
            self.room_changed()
            return
        logger.warning("job %s (%s): lease lost, attempt %d", token.id, running.job.kind, running.job.attempt)
        self._worker.app.telemetry.emit("lease.lost", job=running.context)
        running.lost = True
        running.context.lose()
        if running.handle is not None and self._worker.app.find(running.job.kind).options.executor != "thread":
            running.handle.cancel()

    async def drain(self, grace: float, hurry: asyncio.Event) -> None:
        """Give back what has not started; let the rest finish for `grace` seconds, then give it back too."""
        self._draining = True
        while self._waiting:
            self._finisher.report(self._waiting.popleft(), Released())
        await _first(self._empty.wait(), hurry.wait(), timeout=grace)
        for running in list(self._running.values()):
            running.released = True
            running.context.stop(LeaseholdError(f"job {running.job.id}: the worker is stopping"))
            if running.handle is not None:
                running.handle.cancel()
        if self._running:
            await self._empty.wait()
        self._threads.close()
        await self._processes.close()


async def _first(*waits: Any, timeout: float) -> None:  # noqa: ASYNC109
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, pending = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
