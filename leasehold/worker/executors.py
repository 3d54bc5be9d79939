"""Where a task's function runs: on the event loop, or in a thread of ours."""

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError
from leasehold.worker.judge import as_error

if TYPE_CHECKING:
    from leasehold.context import JobContext
    from leasehold.task import Task


logger = logging.getLogger(__name__)


class TimedOut(LeaseholdError, TimeoutError):
    """The attempt took longer than its task's timeout."""


def timed_out(task: "Task[..., Any]") -> TimedOut:
    """The error of an attempt whose time is over."""
    return TimedOut(f"{task.kind} took longer than its timeout of {task.options.timeout} s")


_CANCELLED = 2.0
"""Seconds that a cancelled function gets to end before its slot is given to another job."""

_left_behind: set["asyncio.Future[object]"] = set()


async def run_in_time(task: "Task[..., Any]", /, **arguments: Any) -> object:
    """Await the function; at its timeout it is cancelled. If it does not end then, it is left behind with a warning."""
    running = asyncio.ensure_future(task.function(**arguments))
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


def _forget(running: "asyncio.Future[object]") -> None:
    _left_behind.discard(running)
    if not running.cancelled():
        running.exception()  # else asyncio says that nobody has asked for it


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

    async def run(self, task: "Task[..., Any]", arguments: Mapping[str, Any], context: "JobContext") -> object:
        """Run the function in a thread. Its slot is free only when the function has really ended."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()
        function = partial(contextvars.copy_context().run, task.function, **arguments)
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"leasehold-task-{self._threads}", daemon=True).start()
        self._work.put(partial(_call, function, loop, done))
        timeout = task.options.timeout
        late = None if timeout is None else loop.call_later(timeout, context.stop, timed_out(task))
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

    def close(self) -> None:
        """Let the idle threads end."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (call := self._work.get()) is not None:
            call()


def _call(function: Callable[[], object], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[object]") -> None:
    """Run in the thread; hand what came of it to the event loop, if that still listens."""
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 (it is the job's outcome, SystemExit included)
        answer = partial(_fail, done, error)
    else:
        answer = partial(_succeed, done, value)
    with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has gone
        loop.call_soon_threadsafe(answer)


def _succeed(done: "asyncio.Future[object]", value: object) -> None:
    if not done.done():
        done.set_result(value)


def _fail(done: "asyncio.Future[object]", error: BaseException) -> None:
    if not done.done():
        # A future refuses StopIteration, and anything but an Exception would end the event loop.
        fit = as_error(error)
        done.set_exception(RuntimeError(f"the task raised {fit!r}") if isinstance(fit, StopIteration) else fit)
