"""One worker process: its state, and how it starts and ends."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from leasehold import logs
from leasehold._aio import cancel, first_of
from leasehold._logger import logger_of
from leasehold.app import App
from leasehold.context import Capture, running_job
from leasehold.db.call import Call
from leasehold.db.database import Database
from leasehold.errors import ConfigError, DatabaseUnavailable, LockTimeout, WorkerFailed
from leasehold.worker import log_lines
from leasehold.worker.executors import check_tasks
from leasehold.worker.loops import Loops
from leasehold.worker.options import WorkerOptions
from leasehold.worker.outcomes import as_error

logger = logger_of(__name__)

_STARTING = "the start of the worker"

WorkerState: TypeAlias = Literal["starting", "working", "stuck", "waiting for the database", "retiring", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker at one moment."""

    worker: str
    pid: int
    state: WorkerState
    running: int
    """Jobs in slots."""
    slots: int
    finished: int
    """Jobs that this worker has run to an outcome, whichever."""
    at: float
    """Unix time."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Which of event loop, claimer, finisher and keeper have not moved lately, and what they wait for."""


class Worker:
    """Claims, runs, finishes. `run()` ends after `stop()`; a second `stop()` cuts the grace period short.

    `may_retire` is asked before the worker retires; while it returns False, the worker goes on.
    """

    def __init__(
        self, app: App, options: WorkerOptions | None = None, *, may_retire: Callable[[], bool] = lambda: True
    ) -> None:
        self.app = app
        self.options = options or WorkerOptions()
        self.id = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.started = asyncio.Event()
        """Set when the worker is ready to take jobs."""
        self.stopping = asyncio.Event()
        """Set when the worker takes no more jobs."""
        self.grace_begun = asyncio.Event()
        """Set when the grace period begins: at `stop()`, not at `retire()`."""
        self._hurry = asyncio.Event()
        self._stop_called = False
        self._may_retire = may_retire
        self.retired: str | None = None
        """Why the worker stopped by itself, if it did: another should be started."""
        self.left_behind = 0
        """Jobs whose tasks did not end though the worker has stopped."""
        self._loops: Loops | None = None
        self._declaring: asyncio.Task[None] | None = None

    @property
    def finished(self) -> int:
        """Jobs that were run to an outcome, whichever."""
        return self._loops.runner.finished if self._loops is not None else 0

    def stop(self) -> None:
        """Stop claiming, let running jobs finish; called again: release them at once."""
        if self._stop_called:
            self.hurry()
        self._stop_called = True
        self.grace_begun.set()
        self.stopping.set()

    def hurry(self) -> None:
        """Cut the grace period short."""
        self._hurry.set()

    def retire(self, why: str, *, hurry: bool = False) -> None:
        """Stop claiming, let running jobs finish however long they take, and end, to be replaced by a fresh process.

        A `stop()` after it is still the first. `hurry`: it uses too much memory; whether or not it may retire, running
        jobs are released, as suspects.
        """
        if not self.stopping.is_set() and (hurry or self._may_retire()):
            logger.info("worker %s retires: %s", self.id, why)
            self.retired = why
            self.stopping.set()
        if hurry and not self._hurry.is_set():
            if self._loops is not None:
                self._loops.runner.suspect_running(why)
            self.hurry()

    def snapshot(self) -> WorkerStatus:
        """Return the present state of the worker."""
        state: WorkerState = "starting"
        stuck: dict[str, str] = {}
        loops = self._loops
        if self.stopping.is_set():
            state = "draining" if self.grace_begun.is_set() else "retiring"
        elif loops is not None and self.started.is_set():
            stuck = loops.stuck()
            state = "stuck" if stuck else "working"
            if not loops.listener.listening.is_set():
                state = "waiting for the database"
        return WorkerStatus(
            worker=self.id, pid=os.getpid(), state=state, running=len(loops.slots.running) if loops else 0,
            slots=self.options.slots, finished=self.finished, at=time.time(), stuck=stuck,
        )  # fmt: skip

    @property
    def sound(self) -> bool:
        """Whether the thread that keeps the leases lives; also true before it starts and after it has stopped."""
        return self._loops is None or not self.started.is_set() or self._loops.keeper.alive

    async def run(
        self, *, died: Callable[[], object] = lambda: None, stalled: Callable[[], object] = lambda: None
    ) -> None:
        """Work until stopped. `died` is called when a loop of the worker has died, before anything else; `stalled`,
        from a thread, when the event loop has stood still for some seconds.
        """
        if not self.app.tasks:
            raise ConfigError("the app has no tasks", hint="register some with @app.task before starting a worker")
        check_tasks(self.app.tasks.values())
        database = await self.app.adatabase()
        self._loops = loops = Loops(self.id, self.app, database, self.options, retire=self.retire, stalled=stalled)
        try:
            with logs.bound(self.id):
                await self._run(loops, died)
        except BaseException:  # cancelled, or a hook failed: no connection may stay open
            if not loops.closed:
                await loops.abandon(died=False)
            raise
        finally:
            if self._declaring is not None:
                await cancel(self._declaring)

    async def _run(self, loops: Loops, died: Callable[[], object]) -> None:
        registering = asyncio.create_task(self._register(loops))
        await first_of(registering, self.stopping.wait())
        if registering.cancelled():  # stopped before the database has answered
            await loops.close()
            return
        registering.result()
        with _task_environment():
            await self.app.hooks.run_startup()
            loops.start()
            self.started.set()
            kinds = ", ".join(sorted(self.app.tasks))
            log_lines.logger.info("worker %s started: %d slots, kinds %s", self.id, self.options.slots, kinds)
            try:
                await self._until_ended(loops, died)
            finally:
                try:
                    async with asyncio.timeout(max(self.options.grace, 5.0)):
                        await self.app.hooks.run_shutdown()
                except TimeoutError:
                    logger.warning("a shutdown hook does not end; the worker ends without it")
        log_lines.logger.info("worker %s ended: %d jobs run", self.id, self.finished)

    async def _until_ended(self, loops: Loops, died: Callable[[], object]) -> None:
        """Return when it has stopped in good order. WorkerFailed: a loop has died before, and so the worker ends."""
        working = asyncio.create_task(self._until_stopped(loops))
        ends: list[asyncio.Future[Any]] = [working, loops.death]
        cancelled: asyncio.CancelledError | None = None
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
            self.grace_begun.set()
            self.stopping.set()
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # for the second time: at once
                working.cancel()
                await loops.abandon(died=False)
                raise
        if working.done() and not working.cancelled() and working.exception() is None:
            if cancelled is not None:
                raise cancelled
            return
        if loops.death.done():
            part, cause = loops.death.result()
        else:
            part, cause = "shutdown", None if working.cancelled() else working.exception()
        died()
        loops.keeper.stop()  # before all else: the jobs of this worker must become free
        text = "worker %s: its %s has died, so the worker ends; its leases run out"
        logger.critical(text, self.id, part, exc_info=cause)
        working.cancel()
        await loops.abandon(died=True)
        why = "it has ended" if cause is None else f"{type(cause).__name__}: {cause}"
        message = f"the {part} of worker {self.id} has died: {why}"
        hint = "its jobs are taken over when their leases have run out; please report this with the log"
        raise cancelled or WorkerFailed(message, hint=hint) from cause

    async def _until_stopped(self, loops: Loops) -> None:
        await self.stopping.wait()
        self.left_behind = await loops.shut_down(self.grace_begun, self._hurry)

    async def _register(self, loops: Loops) -> None:
        """Register the worker, what its tasks need, and the schedules that its code declares."""
        store, link, schedules = loops.store, loops.upkeep_link, self.app.schedules.declared
        met = partial(loops.outage.met, _STARTING)
        host, slots, queues = socket.gethostname(), self.options.slots, list(self.options.queues or ())
        kinds = list(self.app.tasks)
        call = store.start_worker(self.id, host=host, pid=os.getpid(), queues=queues, kinds=kinds, slots=slots)
        await link.insist(call, met)
        try:
            await link.insist(store.declare_tasks(self.app.declaration()), met, locked=False)
            if schedules and (changed := await link.insist(store.schedule_sync(schedules), met, locked=False)):
                logger.info("schedules made or changed: %s", ", ".join(changed))
        except LockTimeout as error:
            text = "worker %s starts before all that it declares is stored: another session keeps a row locked (%s)"
            logger.warning(text, self.id, error)
            self._declaring = asyncio.create_task(self._declare_later(await self.app.adatabase()))
        for one in loops.links:  # now: a task may leave no descriptor for a connection
            await one.insist(store.renew(self.id, []), met)
        loops.outage.over(_STARTING)

    async def _declare_later(self, database: Database) -> None:
        """Store what each task and schedule declares, one by one, until all of it is stored."""
        store = database.store
        waiting: list[Call[Any]] = [store.declare_tasks(self.app.declaration(kind)) for kind in self.app.tasks]
        waiting += [store.schedule_sync([schedule]) for schedule in self.app.schedules.declared]
        while waiting:
            call = waiting.pop(0)
            try:
                await database.arun(call)
            except DatabaseUnavailable:
                waiting.append(call)
                await asyncio.sleep(1)
            except Exception:
                logger.exception("worker %s: a declaration is not stored", self.id)
        logger.info("worker %s: nothing that it declares is locked any more", self.id)


@contextmanager
def _task_environment() -> Iterator[None]:
    """Keep log lines with the job that they are of, and asyncio tasks that a job starts from ending the loop."""
    capture = Capture(level=logging.INFO)
    logging.getLogger().addHandler(capture)
    logging.getLogger("leasehold.task").setLevel(logging.INFO)
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_make_task)
    try:
        yield
    finally:
        loop.set_task_factory(before)
        logging.getLogger().removeHandler(capture)


def _make_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> "asyncio.Task[Any]":
    """Make an asyncio task. SystemExit out of one ends the event loop; out of one that a job started it is an error."""
    return asyncio.Task(
        _Contained(coro) if asyncio.iscoroutine(coro) and running_job() is not None else coro, loop=loop, **options
    )


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose SystemExit becomes an error. An object: a coroutine that is cancelled early awaits nothing."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as end:
            raise as_error(end) from None

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as end:
            raise as_error(end) from None

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)
