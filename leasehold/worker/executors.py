"""Where a task's function runs: on the event loop, or in a thread of ours."""

import asyncio
import contextlib
import contextvars
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.errors import LeaseholdError
from leasehold.outcome import Error, Failed, Outcome
from leasehold.worker.judge import NO_RESULT, as_error, outcome_of

if TYPE_CHECKING:
    from leasehold.context import JobContext
    from leasehold.task import Task


logger = logging.getLogger(__name__)


_STOPS = frozenset({"checkpoint", "progress", "heartbeat"})
"""What a task calls of its job, and is stopped by."""


class TimedOut(LeaseholdError, TimeoutError):
    """The attempt took longer than its task's timeout."""


def timed_out(task: "Task[..., Any]") -> TimedOut:
    """The error of an attempt whose time is over."""
    return TimedOut(f"{task.kind} took longer than its timeout of {task.options.timeout} s")


_CANCELLED = 2.0
"""Seconds that a cancelled function gets to end before its slot is given to another job."""

_left_behind: set["asyncio.Future[object]"] = set()


async def run_in_time(
    task: "Task[..., Any]", function: Callable[..., Coroutine[Any, Any, object]], /, **arguments: Any
) -> object:
    """Await the function; at its timeout it is cancelled. If it does not end then, it is left behind with a warning."""
    running = asyncio.ensure_future(_in_one_process(function, arguments, forks()))
    try:
        await asyncio.wait([running], timeout=task.options.timeout)
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait([running])
        return running.result()  # mostly that it was cancelled
    if running.done():
        return running.result()
    running.cancel()
    await asyncio.wait([running], timeout=_CANCELLED)
    if not running.done():
        logger.warning(
            "%s goes on after its timeout of %g s though it was cancelled; its slot is given to another job",
            task.kind, task.options.timeout,
        )  # fmt: skip
        _left_behind.add(running)  # until it ends: asyncio itself keeps no hold of it
        running.add_done_callback(_forget)
    elif not running.cancelled() and running.exception() is None:
        return running.result()  # it was about to end
    raise timed_out(task)


async def _in_one_process(
    function: Callable[..., Coroutine[Any, Any, object]], arguments: Mapping[str, Any], process: int
) -> object:
    try:
        return await function(**arguments)
    finally:
        end_copy_of(process)


def _forget(running: "asyncio.Future[object]") -> None:
    _left_behind.discard(running)
    if not running.cancelled():
        running.exception()  # else asyncio says that it was never retrieved


class NotStarted(LeaseholdError):
    """The system has no thread or process for the attempt, which has not begun."""


class Ended(NamedTuple):
    """How a function in a thread has ended."""

    outcome: Outcome
    error: Exception | None
    """What it raised."""


class ThreadExecutor:
    """A bounded pool of threads. A thread cannot be killed: its task learns of its end at `checkpoint()`.

    The threads are daemons, unlike those of concurrent.futures: one that never ends must not keep a stopped
    worker from exiting.
    """

    _PATIENCE = 0.5
    """Seconds that a told task gets to reach its checkpoint before a stopping worker leaves it behind."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._process = forks()

    async def run(
        self,
        task: "Task[..., Any]",
        function: Callable[..., object],
        arguments: Mapping[str, Any],
        context: "JobContext",
    ) -> "Ended":
        """Run the task's function in a thread. Its slot is free only when the function has really ended.

        The outcome is made in the thread too: what the task returned or raised is written as text by code of its own,
        which may take long.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ended] = loop.create_future()
        call = partial(contextvars.copy_context().run, _ended, task, context.retry_count, function, arguments)
        if self._busy == self._threads:
            self._add_thread()
        self._busy += 1
        self._work.put(partial(_call, call, loop, done, self._process))
        timeout = task.options.timeout
        began = time.monotonic()
        late = None if timeout is None else loop.call_later(timeout, _overdue, task, context)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done], timeout=self._PATIENCE)
            if done.done():
                return done.result()
            raise
        finally:
            self._busy -= 1
            if late is not None:
                late.cancel()
                if done.done() and isinstance(context.stop_reason, TimedOut):
                    took = time.monotonic() - began
                    logger.warning(
                        "%s %s ended after %.1f s, its timeout is %g s", task.kind, context.id, took, timeout
                    )

    def _add_thread(self) -> None:
        name = f"leasehold-task-{self._threads + 1}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            raise NotStarted(f"no thread could be started: {error}") from error
        self._threads += 1

    def close(self) -> None:
        """Let the idle threads end."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (call := self._work.get()) is not None:
            call()


def _overdue(task: "Task[..., Any]", context: "JobContext") -> None:
    """Its time is over. A thread cannot be stopped: say so, once, and have its next checkpoint raise."""
    context.stop(timed_out(task))
    logger.warning(
        "%s %s is past its timeout of %g s and goes on in its thread until it ends or calls checkpoint()",
        task.kind, context.id, task.options.timeout,
    )  # fmt: skip


def warn_of_threads(tasks: "Iterable[Task[..., Any]]") -> None:
    """Say what a timeout can do to a plain function, where it looks as if more was expected."""
    for task in tasks:
        options, names = task.options, getattr(task.function, "__code__", None)
        if options.timeout is None or options.executor != "thread" or names is None:
            continue
        if not _STOPS.intersection(names.co_names):
            logger.warning(
                "%s: a timeout cannot stop a plain function in a thread, only its next current_job().checkpoint() does;"
                " with executor='process' it can be stopped", task.kind,
            )  # fmt: skip


_UNSAID = Ended(
    Failed(
        error=Error(type="MemoryError", message="no memory to write down how the task has ended", traceback=""),
        retry_after=60.0,
    ),
    None,
)
"""Made beforehand."""


def _call(
    attempt: "Callable[[], Ended]", loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Ended]", process: int
) -> None:
    """Run in the thread; hand what came of it to the event loop, if that still listens."""
    try:
        ended = attempt()
    except BaseException:  # noqa: BLE001 (no memory even to say what was raised: the thread goes on, the job fails)
        ended = _UNSAID
    end_copy_of(process)
    with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has gone
        loop.call_soon_threadsafe(_set, done, ended)


def _ended(
    task: "Task[..., Any]", retry_count: int, function: Callable[..., object], arguments: Mapping[str, Any]
) -> "Ended":
    try:
        value = function(**arguments)
    except BaseException as raised:  # noqa: BLE001 (it is the job's outcome, SystemExit included)
        error = as_error(raised)
        return Ended(outcome_of(task, retry_count, error), error)
    return Ended(NO_RESULT if value is None else outcome_of(task, retry_count, value), None)


_forks = 0


def _forked() -> None:
    global _forks  # noqa: PLW0603 (a process has one number, as it has one id)
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def forks() -> int:
    """Which process this is among its copies: unlike its id, the number costs no system call for each job."""
    return _forks


def end_copy_of(process: int) -> None:
    """If the task forked, and its copy came back as well, that ends here: one worker is enough."""
    if _forks != process:
        os._exit(0)


def _set(done: "asyncio.Future[Ended]", ended: "Ended") -> None:
    if not done.done():
        done.set_result(ended)
