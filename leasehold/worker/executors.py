"""Where a task's function runs: on the event loop with a timeout, or in a thread of ours."""

import asyncio
import contextlib
import contextvars
import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.context import JobContext
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.outcome import Error, Failed, Outcome
from leasehold.task import Task
from leasehold.worker.outcomes import NO_RESULT, as_error, outcome_of

logger = logger_of(__name__)

_Ended: TypeAlias = tuple[Outcome, Exception | None]
"""How a function in a thread has ended: its outcome, and what it raised."""


class TimedOut(LeaseholdError, TimeoutError):
    """The attempt took longer than its task's timeout."""

    @classmethod
    def of(cls, task: Task[..., Any]) -> "TimedOut":
        """Return the error of an attempt of this task."""
        return cls(f"{task.kind} took longer than its timeout of {task.options.timeout} s")


class NotStarted(LeaseholdError):
    """The system has no thread or process for the attempt, which has not begun."""


# -- on the event loop

_left_behind: set["asyncio.Future[object]"] = set()


async def run_in_time(
    task: Task[..., Any], function: Callable[..., Coroutine[Any, Any, object]], /, **arguments: Any
) -> object:
    """Await the function; at its timeout it is cancelled. If it does not end then, it is left behind with a warning."""
    running = asyncio.ensure_future(_in_one_process(function, arguments, Fork.number))
    try:
        try:
            await asyncio.wait([running], timeout=task.options.timeout)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait([running])
            return running.result()  # mostly that it was cancelled
        if running.done():
            return running.result()
        running.cancel()
        await asyncio.wait([running], timeout=2.0)  # after that its slot is given to another job
        if not running.done():
            text = "%s goes on after its timeout of %g s though it was cancelled; its slot is given to another job"
            logger.warning(text, task.kind, task.options.timeout)
            _left_behind.add(running)  # until it ends: asyncio itself keeps no hold of it
            running.add_done_callback(_forget)
        elif not running.cancelled() and running.exception() is None:
            return running.result()  # it was about to end
        raise TimedOut.of(task)
    finally:
        del running  # it keeps what the function raised, in whose traceback this frame is (see `AttemptRunner`)


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
        running.exception()  # else asyncio logs that it was never retrieved


class Fork:
    """Which process this is among its copies: unlike its id, the number costs no system call for each job."""

    number = 0


os.register_at_fork(after_in_child=lambda: setattr(Fork, "number", Fork.number + 1))


def end_copy_of(process: int) -> None:
    """End the copy of this process that a task has forked and that came back as well: one worker is enough."""
    if Fork.number != process:
        os._exit(0)


# -- in a thread


class ThreadExecutor:
    """A bounded pool of threads. A thread cannot be killed: its task learns of its end at `checkpoint()`.

    They are daemons, unlike those of concurrent.futures: one that never ends must not keep a worker from exiting.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._process = Fork.number

    async def run(
        self, task: Task[..., Any], function: Callable[..., object], arguments: Mapping[str, Any], context: JobContext
    ) -> _Ended:
        """Run the task's function in a thread. Its slot is free only when the function has really ended.

        The outcome is made in the thread too: code of the task, which may take long, writes it as text.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Ended] = loop.create_future()
        call = partial(contextvars.copy_context().run, _ended, task, context.retry_count, function, arguments)
        if self._busy == self._threads:
            self._add_thread()
        self._busy += 1
        self._work.put(partial(_call, call, done, self._process))
        timeout = task.options.timeout
        began = monotonic()
        late = None if timeout is None else loop.call_later(timeout, _overdue, task, context)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done], timeout=0.5)  # to reach its checkpoint, before it is left behind
            if done.done():
                return done.result()
            raise
        finally:
            self._busy -= 1
            if late is not None:
                late.cancel()
                if done.done() and isinstance(context.stop_reason, TimedOut):
                    text = "%s %s ended after %.1f s, its timeout is %g s"
                    logger.warning(text, task.kind, context.id, monotonic() - began, timeout)

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
            del call  # or an idle thread keeps what the last task raised, and all that its frames refer to


def _overdue(task: Task[..., Any], context: JobContext) -> None:
    """Log, once, that the attempt's time is over, and make its next checkpoint raise: a thread cannot be stopped."""
    context.stop(TimedOut.of(task))
    text = "%s %s is past its timeout of %g s and goes on in its thread until it ends or calls checkpoint()"
    logger.warning(text, task.kind, context.id, task.options.timeout)


_NO_MEMORY = Error(type="MemoryError", message="no memory to write down how the task has ended", traceback="")
_UNKNOWN_END: _Ended = (Failed(error=_NO_MEMORY, retry_after=60.0), None)
"""Made beforehand."""


def _call(attempt: Callable[[], _Ended], done: "asyncio.Future[_Ended]", process: int) -> None:
    """Run in the thread; hand what came of it to the event loop, if that still listens."""
    try:
        ended = attempt()
    except BaseException:  # noqa: BLE001 (no memory even to describe what was raised: the thread goes on, the job fails)
        ended = _UNKNOWN_END
    end_copy_of(process)
    with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has gone
        done.get_loop().call_soon_threadsafe(done.set_result, ended)
    del done, ended  # what was raised leads back to this frame


def _ended(
    task: Task[..., Any], retry_count: int, function: Callable[..., object], arguments: Mapping[str, Any]
) -> _Ended:
    try:
        value = function(**arguments)
    except BaseException as raised:  # noqa: BLE001 (it is the job's outcome, SystemExit included)
        error = as_error(raised)
        try:
            return outcome_of(task, retry_count, error), error
        finally:
            del error  # this frame is in its traceback (see `AttemptRunner`)
    return NO_RESULT if value is None else outcome_of(task, retry_count, value), None


# -- which tasks can run where


def find_task(module: str, name: str) -> Task[..., Any]:
    """Return the task that a module has under the qualified name of its function."""
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Task):
        raise TypeError(f"{module}.{name} is a {type(found).__name__}, no task")
    return found


def check_tasks(tasks: Iterable[Task[..., Any]]) -> None:
    """Refuse tasks that a process could not find by importing their module; warn of timeouts that cannot stop one."""
    for task in tasks:
        executor, code = task.options.executor, getattr(task.function, "__code__", None)
        stops = code is None or not {"checkpoint", "progress", "heartbeat"}.isdisjoint(code.co_names)
        if executor == "process":
            _check_import(task)
        elif executor == "thread" and task.options.timeout is not None and not stops:
            logger.warning(
                "%s: a timeout cannot stop a plain function in a thread, only its next current_job().checkpoint() does;"
                " with executor='process' it can be stopped", task.kind,
            )  # fmt: skip


def _check_import(task: Task[..., Any]) -> None:
    module, name = task.function.__module__, task.function.__qualname__
    problem = f"{task.kind}: a process cannot import {module}.{name}"
    if task.options.memory is not None and sys.platform != "linux":
        raise ConfigError(f"{task.kind}: memory can be capped on Linux only", hint="leave memory out")
    if module == "__main__":
        raise ConfigError(problem, hint="move the task from the script into a module that the script imports")
    if "<locals>" in name:
        raise ConfigError(problem, hint="define the task at the top of its module, not inside a function")
    try:
        found = find_task(module, name)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"{problem}: {error}", hint="keep the task under the name of its function") from None
    if found.kind != task.kind:
        raise ConfigError(f"{problem}: that is {found.kind}", hint="one function, one kind")
