"""Runs claimed jobs in slots and turns whatever happens into an outcome."""

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from leasehold.context import Completion, JobContext, enter
from leasehold.db.store import ClaimedJob, Token
from leasehold.errors import LeaseholdError, LeaseLost
from leasehold.outcome import Cancel, Lost, Outcome, Released, Snooze, Snoozed
from leasehold.task import Task
from leasehold.telemetry import AttemptFacts
from leasehold.worker.completion import CompleteIn
from leasehold.worker.executors import NotStarted, ThreadExecutor, end_copy_of, forks, run_in_time, warn_of_threads
from leasehold.worker.importable import check_tasks
from leasehold.worker.journal import Journal, Place
from leasehold.worker.judge import NO_RESULT, arguments_of, as_error, outcome_of
from leasehold.worker.process import ProcessExecutor
from leasehold.worker.solitude import Solitude

if TYPE_CHECKING:
    from leasehold.worker.finisher import Finisher
    from leasehold.worker.lease import LeaseKeeper
    from leasehold.worker.losses import Losses
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

# Starts a coroutine as an asyncio task. Where Python can, it runs at once up to its first wait: a short job never goes
# through the loop's queue.
if sys.version_info >= (3, 12):
    start = partial(asyncio.Task, eager_start=True)
else:
    start = asyncio.Task


_AT_ONCE = 500
"""Jobs started in one turn of the loop, however soon they end."""

_STUBBORN = 5.0
"""Seconds that a task gets to end once it was cancelled because the worker stops."""

_LATER = 5.0
"""Seconds that a job waits for which the system had no thread or process."""

_FEW = 10
"""So few jobs start as soon as they are there."""


class Running(JobContext):
    """One job in a slot: what its task knows of it, and what the worker does."""

    __slots__ = ("handle", "job", "lost", "released", "runner", "task")

    def __init__(self, job: ClaimedJob, task: Task[..., Any], runner: "Runner") -> None:
        super().__init__(job.id, job.kind, job.queue, job.attempt, job.retry_count, job.max_attempts)
        self.job = job
        self.task = task
        self.runner = runner
        self.handle: asyncio.Task[None] | None = None
        self.lost = False
        self.released = False

    def _renew(self) -> None:
        self.runner.keeper.soon(self.job)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is, from 0 to 1. Written within about a second; only the latest counts."""
        super().progress(fraction, note)
        self.runner.keeper.write_soon(self.job)

    def _completion(self) -> Completion:
        return CompleteIn(self.runner.worker.id, self.runner.worker.store, self.task, self.job)


class Runner:
    """The slots of a worker and the jobs in them."""

    def __init__(
        self, worker: "Worker", finisher: "Finisher", keeper: "LeaseKeeper", place: Place, losses: "Losses"
    ) -> None:
        self.worker = worker
        self.journal: Journal | None = None
        self._place = place
        self._context = copy_context()
        """What every attempt starts from: what one job sets, the next does not see."""
        self._loop = asyncio.get_running_loop()
        self._process = forks()
        self._finisher = finisher
        self.keeper = keeper
        self._slots = worker.options.slots
        self._filling = False
        self._waiting: deque[ClaimedJob] = deque()
        self._running: dict[ClaimedJob, Running] = {}
        self.solitude = Solitude(place, self._give_back, self._waiting, self._running)
        self._threads = ThreadExecutor(worker.options.slots)
        check_tasks(worker.app.tasks.values())
        warn_of_threads(worker.app.tasks.values())
        self._processes = ProcessExecutor(
            worker.options.slots, worker=worker.id, schema=worker.app.settings.schema, most=worker.options.child_jobs
        )
        self._short: asyncio.TimerHandle | None = None
        """While it is set, the system lately had no thread or process for a job, and no more jobs are claimed."""
        self._short_said = False
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self.losses = losses
        keeper.on_lost = self.lose
        keeper.context_of = self._running.get
        finisher.on_written = self.room_changed

    def start(self) -> None:
        """From now on jobs may come."""
        self.journal = self._place.open(self.worker.id, self._slots)
        self._context = copy_context()

    # -- room

    @property
    def room(self) -> int:
        """How many more jobs may be claimed."""
        if self._short is not None or self.solitude.wanted:
            return 0
        capacity = self.worker.options.slots + self.worker.options.prefetch
        in_hand = len(self._running) + len(self._waiting)
        # The reports of one round may be on their way while the next one is claimed. Beyond that no claiming ahead of
        # reporting: while the database takes no reports, the worker must not pile them up.
        return min(capacity - in_hand, 2 * capacity - in_hand - self._finisher.backlog)

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return len(self._running)

    def kinds_on_loop(self) -> list[str]:
        """Of the tasks that run on the event loop. May be called from any thread."""
        running = list(self._running.values())
        return [one.kind for one in running if one.task.options.executor == "loop"]

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
        return self.keeper.holds_token(token)

    # -- a job's way

    def accept(self, jobs: Sequence[ClaimedJob], asked: float) -> None:
        """Take claimed jobs in. Their leases count from the moment they were asked for."""
        self.keeper.hold(jobs, asked)
        self._waiting.extend(jobs)
        if len(jobs) <= _FEW:
            self._fill_slots()
        else:
            # The claimer first sends its next claim, and the database works on it while these jobs run.
            self._loop.call_soon(self._fill_slots)

    def _fill_slots(self) -> None:
        """Start waiting jobs. On Python 3.12 and later one may end before its start returns, and free its slot."""
        self._filling = True
        try:
            for _ in range(_AT_ONCE):
                if not self._waiting or self._draining or len(self._running) >= self._slots:
                    return
                if self.solitude.concerned and self.solitude.holds_back(running=bool(self._running)):
                    return
                job = self._waiting.popleft()
                if not self.keeper.is_live(job):  # this process may have stood still: then the keeper knows it later
                    self._finisher.report(job, Released())  # counts if the database's clock is behind ours
                    continue
                running = self._running[job] = Running(job, self.worker.app.find(job.kind), self)
                self._empty.clear()
                if self.journal is not None:
                    self.journal.begin(job)
                handle = start(self._run(running), loop=self._loop, context=self._context.copy())
                if not handle.done():
                    running.handle = handle
            self._loop.call_soon(self._fill_slots)
        finally:
            self._filling = False

    async def _run(self, running: Running) -> None:
        """One attempt, from its start to its report."""
        app = self.worker.app
        began = time.monotonic()
        if app.telemetry.heard:
            app.telemetry.emit("job.started", job=AttemptFacts.of(running))
        enter(running)  # for good: the asyncio task has a context of its own, which ends with it
        outcome: Outcome
        try:
            outcome = await self._attempt(running)
        except asyncio.CancelledError:
            if running.lost or running.released:
                outcome = Released()
            else:  # not our doing: the task awaited something that it had cancelled itself
                error = RuntimeError("the task raised CancelledError()")
                outcome = outcome_of(running.task, running.retry_count, error)
        except BaseException as end:  # noqa: BLE001 (SystemExit among others: only the job fails)
            outcome = outcome_of(running.task, running.retry_count, as_error(end))
        if running.lost:
            outcome = Lost()
        running.job.ran = time.monotonic() - began
        try:
            if app.hooks.after:
                await app.hooks.run_after(running, outcome)
            if app.telemetry.heard:
                facts = AttemptFacts.of(running)
                app.telemetry.emit("job.finished", job=facts, outcome=outcome, seconds=running.job.ran)
        except asyncio.CancelledError:
            pass
        except BaseException:
            logger.exception("job %s: what is called after an attempt failed", running.job.id)
        self._end(running, outcome)

    def _end(self, running: Running, outcome: Outcome) -> None:
        """The slot is free."""
        del self._running[running.job]
        running.handle = None  # it has a context that has us: a circle, which only the collector would find
        self._finisher.report(running.job, outcome, running.take_lines())  # first: no outcome waits for a file
        if self.journal is not None:
            self.journal.end(running.job)
        if self.solitude.suspects:
            self.solitude.ended(running.job, cleared=not isinstance(outcome, Lost | Released))
        self.worker.job_ended()
        if self._waiting and not self._filling:
            self._fill_slots()
        if not self._room.is_set():
            self.room_changed()
        if not self._running:
            self._empty.set()

    async def _attempt(self, running: Running) -> Outcome:
        job, task, hooks = running.job, running.task, self.worker.app.hooks
        try:
            if hooks.before:
                await hooks.run_before(running)
            executor = task.options.executor
            if executor == "process":
                outcome = await self._processes.run(task, job, running)
                self._short_said = False
                return outcome
            arguments = arguments_of(task, job.payload)
            if executor == "loop":
                function = partial(hooks.acall, running, task.function) if hooks.around else task.function
                if task.options.timeout is not None:
                    function = partial(run_in_time, task, function)
                try:
                    value = await function(**arguments)
                finally:
                    end_copy_of(self._process)
                return NO_RESULT if value is None else outcome_of(task, job.retry_count, value)
            function = partial(hooks.call, running, task.function) if hooks.around else task.function
            outcome, error = await self._threads.run(task, function, arguments, running)
            self._short_said = False
        except NotStarted as missing:  # not the job's fault: it counts as no failure
            return self._fall_short(job, missing)
        except Exception as raised:  # noqa: BLE001 (whatever a task raises is its outcome)
            error = as_error(raised)
            outcome = outcome_of(task, job.retry_count, error)
        return outcome if error is None else await self._after_error(running, error, outcome)

    def _fall_short(self, job: ClaimedJob, missing: NotStarted) -> Outcome:
        """There is no thread or process for the job: it waits, and so do claims, which would draw more jobs in."""
        level = logging.DEBUG if self._short_said else logging.WARNING
        logger.log(
            level, "job %s: %s; it is tried again in %g s, and none is claimed till then", job.id, missing, _LATER
        )
        self._short_said = True
        if self._short is None:
            self._short = self._loop.call_later(_LATER, self._claim_again)
        return Snoozed(_LATER)

    def _claim_again(self) -> None:
        self._short = None
        self.room_changed()

    async def _after_error(self, running: Running, error: Exception, outcome: Outcome) -> Outcome:
        if isinstance(error, LeaseLost) and running.lost:
            return Lost()
        if running.released and isinstance(error, LeaseholdError) and error is running.stop_reason:
            return Released()
        if not isinstance(error, Snooze | Cancel):
            await self.worker.app.hooks.run_on_error(running, error)
        return outcome

    # -- endings

    def look_at(self, job_id: str) -> None:
        """This job was cancelled, it is said: if it runs here, ask for its lease now instead of at its turn."""
        for job in self._running:
            if job.id == job_id:
                self.keeper.soon(job)

    def lose(self, job: ClaimedJob) -> None:
        """The lease is gone: tell the task, write nothing."""
        running = self._running.get(job)
        if running is None:
            if job in self._waiting:
                self._waiting.remove(job)
                self.losses.add(job, started=False)
            self.room_changed()
            return
        self.losses.add(job, started=True)
        if self.worker.app.telemetry.heard:
            self.worker.app.telemetry.emit("lease.lost", job=AttemptFacts.of(running))
        running.lost = True
        running.lose()
        if running.handle is not None and running.task.options.executor != "thread":
            running.handle.cancel()

    def _give_back(self, job: ClaimedJob) -> None:
        self._finisher.report(job, Released())

    async def drain(self, grace: float, hurry: asyncio.Event) -> None:
        """Give back what has not started; let the rest finish for `grace` seconds, then give it back too."""
        self._fill_slots()  # what came for a free slot has one
        self._draining = True
        while self._waiting:
            self._give_back(self._waiting.popleft())
        await _first(self._empty.wait(), hurry.wait(), timeout=grace)
        for running in list(self._running.values()):
            running.released = True
            running.stop(LeaseholdError(f"job {running.job.id}: the worker is stopping"))
            if running.handle is not None:
                running.handle.cancel()
        if self._running:
            await _first(self._empty.wait(), timeout=_STUBBORN)
        self.worker.left_behind = len(self._running)
        for running in self._running.values():
            logger.error(
                "job %s (%s): its task does not end; it is left behind, and its job to its lease",
                running.job.id, running.job.kind,
            )  # fmt: skip
        self._threads.close()
        await self._processes.close()

    def abandon(self) -> None:
        """The worker ends without its leases: stop what runs, report nothing."""
        self._draining = True
        self._waiting.clear()
        for running in list(self._running.values()):
            running.lost = True
            running.lose()
            if running.handle is not None:
                running.handle.cancel()
        self._threads.close()
        self._processes.kill()


async def _first(*waits: Any, timeout: float) -> None:  # noqa: ASYNC109
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
