"""One worker process: its options, its state, and the signals it understands."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from leasehold.db.link import Link
from leasehold.db.outage import Outage
from leasehold.db.store import Store
from leasehold.errors import ConfigError, WorkerFailed
from leasehold.worker import lines
from leasehold.worker.parts import Parts
from leasehold.worker.queues import Queues
from leasehold.worker.snapshot import Snapshot, State
from leasehold.worker.surroundings import surroundings

if TYPE_CHECKING:
    from leasehold.app import App

logger = logging.getLogger(__name__)

_STARTING = "the start of the worker"


_LAST_HOOKS = 5.0
"""Seconds at least for what is called when a worker ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works."""

    queues: Queues = None
    """Take jobs from these queues only, all as one, or in turns by weight ({"mail": 3, "reports": 1}); None: all."""

    slots: int = 10
    """How many jobs run at the same time."""

    prefetch: int = 0
    """How many more may be claimed ahead, leased but not started."""

    grace: float = 30.0
    """Seconds that running jobs get to finish when the worker is told to stop."""

    poll: float = 10.0
    """Seconds between looks while nobody calls: the safety net under LISTEN."""

    max_jobs: int | None = None
    """Retire after this many jobs, to be replaced by a fresh process; None: never."""

    child_jobs: int | None = None
    """Replace a process of `executor="process"` tasks after this many jobs; None: never."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise ConfigError(f"slots {self.slots} is not between 1 and 10000")
        if not 0 <= self.prefetch <= 10_000:
            raise ConfigError(f"prefetch {self.prefetch} is not between 0 and 10000")
        if self.grace < 0:
            raise ConfigError(f"grace {self.grace} s is negative")
        if not 0 < self.poll <= 10:
            raise ConfigError(f"poll {self.poll} s is not between 0 and 10 s")
        if self.max_jobs is not None and self.max_jobs < 1:
            raise ConfigError(f"max_jobs {self.max_jobs} is less than 1")
        if self.child_jobs is not None and self.child_jobs < 1:
            raise ConfigError(f"child_jobs {self.child_jobs} is less than 1")


class Worker:
    """Claims, runs, finishes. `run()` ends after `stop()`; a second `stop()` cuts the grace period short."""

    def __init__(self, app: "App", options: WorkerOptions | None = None) -> None:
        self.app = app
        self.options = options or WorkerOptions()
        self.id = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.store = Store(app.settings.schema)
        self.started = asyncio.Event()
        """Set when the worker is ready to take jobs."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self.finished = 0
        """Jobs that were run to an outcome, whichever."""
        self.retired: str | None = None
        """Why the worker stopped by itself, if it did: somebody should start another."""
        self.left_behind = 0
        """Jobs whose tasks did not end though the worker has stopped."""
        self.on_death: Callable[[], object] = lambda: None
        """Called when a loop of the worker has died, before anything else."""
        self.on_standstill: Callable[[], object] = lambda: None
        """Called from a thread when the event loop has stood still for some seconds."""
        self._told = False
        self._parts: Parts | None = None

    def stop(self) -> None:
        """Stop claiming, let running jobs finish; called again: give them back at once."""
        if self._told:
            self.hurry()
        self._told = True
        self._stopping.set()

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the worker takes no more jobs."""
        return self._stopping

    def hurry(self) -> None:
        """Cut the grace period short."""
        self._hurry.set()

    def retire(self, why: str) -> None:
        """Stop to be replaced by a fresh process. A `stop()` after it is still the first."""
        if not self._stopping.is_set():
            logger.info("worker %s retires: %s", self.id, why)
            self.retired = why
            self._stopping.set()

    def job_ended(self) -> None:
        """Count a job that was run."""
        self.finished += 1
        if self.options.max_jobs is not None and self.finished >= self.options.max_jobs:
            self.retire(f"{self.finished} jobs done")

    def say_standstill(self) -> None:
        """The event loop stands still: write it to the health file and to the supervisor."""
        self.on_standstill()

    def snapshot(self) -> Snapshot:
        """How the worker is doing right now."""
        state: State = "starting"
        stuck: dict[str, str] = {}
        if self._stopping.is_set():
            state = "draining"
        elif self._parts is not None and self.started.is_set():
            stuck = self._parts.stuck()
            state = "working" if self._parts.listener.listening.is_set() else "waiting for the database"
            if stuck and state == "working":
                state = "stuck"
        return Snapshot(
            worker=self.id, pid=os.getpid(), state=state, running=self._parts.runner.running if self._parts else 0,
            slots=self.options.slots, finished=self.finished, at=time.time(), stuck=stuck,
        )  # fmt: skip

    @property
    def sound(self) -> bool:
        """Whether the thread that keeps the leases lives, or is not needed: yet, or any more."""
        return self._parts is None or not self.started.is_set() or self._parts.keeper.alive

    async def run(self) -> None:
        """Work until stopped."""
        if not self.app.tasks:
            raise ConfigError("the app has no tasks", hint="register some with @app.task before starting a worker")
        parts = self._parts = Parts(self, await self.app.adatabase())
        try:
            await self._run(parts)
        except BaseException:  # cancelled, or a hook failed: nothing of it may stay open
            if not parts.closed:
                await parts.abandon()
            raise

    async def _run(self, parts: Parts) -> None:
        if not await self._announced(parts.upkeep_link, parts.outage):
            await parts.close()
            return
        with surroundings():
            await self.app.hooks.run_startup()
            parts.start()
            self.started.set()
            lines.worker_started(self.id, self.options.slots, self.app.tasks)
            try:
                await self._until_ended(parts)
            finally:
                await self._shut_down_hooks()
        lines.worker_ended(self.id, self.finished)

    async def _shut_down_hooks(self) -> None:
        try:
            async with asyncio.timeout(max(self.options.grace, _LAST_HOOKS)):
                await self.app.hooks.run_shutdown()
        except TimeoutError:
            logger.warning("a shutdown hook does not end; the worker ends without it")

    async def _until_ended(self, parts: Parts) -> None:
        """Return when it has stopped in good order. WorkerFailed: a loop has died before, and so the worker ends."""
        working = asyncio.create_task(self._until_stopped(parts))
        ends: list[asyncio.Future[Any]] = [working, parts.death]
        cancelled: asyncio.CancelledError | None = None
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
            self._stopping.set()
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # for the second time: at once
                working.cancel()
                await parts.abandon()
                raise
        if working.done() and not working.cancelled() and working.exception() is None:
            if cancelled is not None:
                raise cancelled
            return
        part, cause = parts.death.result() if parts.death.done() else ("shutdown", _error_of(working))
        self.on_death()
        parts.keeper.stop()  # before all else: what this worker holds must become free
        logger.critical(
            "worker %s: its %s has died, so the worker ends; its leases run out", self.id, part, exc_info=cause
        )
        working.cancel()
        await parts.abandon()
        raise cancelled or WorkerFailed(
            f"the {part} of worker {self.id} has died: {_words(cause)}",
            hint="its jobs are taken over when their leases have run out; please report this with the log",
        ) from cause

    async def _until_stopped(self, parts: Parts) -> None:
        await self._stopping.wait()
        await parts.shut_down(self.options.grace, self._hurry)

    async def _announced(self, link: Link, outage: Outage) -> bool:
        """Say who we are; False if we were told to stop before the database answered."""
        announcing = asyncio.create_task(self._announce(link, outage))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([announcing, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            announcing.cancel()  # nothing happens to it if it has ended
            await asyncio.gather(announcing, stopping, return_exceptions=True)
        if announcing in done:
            announcing.result()
            return True
        return False

    async def _announce(self, link: Link, outage: Outage) -> None:
        """Say who we are, what our tasks need, and which schedules our code declares."""
        call = self.store.start_worker(
            self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=None if self.options.queues is None else list(self.options.queues),
            leases={kind: task.options.lease for kind, task in self.app.tasks.items()},
            slots=self.options.slots,
        )
        met = partial(outage.met, _STARTING)
        await link.insist(call, met)
        await link.insist(self.store.declare_tasks(self.app.declaration()), met)
        if self.app.schedules.declared:
            changed = await link.insist(self.store.schedule_sync(self.app.schedules.declared), met)
            if changed:
                logger.info("schedules made or changed: %s", ", ".join(changed))
        outage.over(_STARTING)


def _error_of(task: "asyncio.Task[None]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _words(error: BaseException | None) -> str:
    return "it has ended" if error is None else f"{type(error).__name__}: {error}"
