"""The program that runs `executor="process"` tasks: one job at a time, for the worker at the other end of a socket.

Started by `leasehold.worker.process` as `python -m leasehold.worker.process_main SOCKET PARENT`. It never outlives the
worker: the kernel kills it when the worker dies (PR_SET_PDEATHSIG, Linux), even while a task holds the interpreter's
lock; and a thread, which needs that lock for a moment, kills this process and its group when the other end of the
socket is gone, or when the worker has stood still (SIGSTOP) for half of the job's lease: by then the job may be another
worker's. Processes that a task starts are in this one's group; only if the worker itself is killed may they outlive it.

Messages are JSON objects in frames, never pickle. Every object has a `type`. To the process: `setup` once, then one
`job` after the other, and `stop`. From it, each with the number of the `call` that it belongs to: `started`, any number
of `progress`, `log` and `completing`, and one `outcome`; or `broken`, when the task cannot be found.
"""

import asyncio
import contextlib
import faulthandler
import inspect
import json
import logging
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from leasehold import logs
from leasehold._os_process import do_nothing_at_signals, follow_parent
from leasehold._os_process import memory as memory_used
from leasehold._texts import text_of
from leasehold.context import MAX_LINES, Capture, JobContext, LogLine, enter, leave, line_of
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import InvalidArguments
from leasehold.outcome import Cancel, Cancelled, Error, Failed, Outcome, Snooze, Snoozed, Success
from leasehold.task import Task
from leasehold.worker.executors import find_task
from leasehold.worker.outcomes import as_error, complete_in, fields_of, outcome_of, set_aside
from leasehold.worker.surroundings import Surroundings

_FAILED: Final = 70
"""The exit code when this program, not its task, fails: EX_SOFTWARE."""
_LINE: Final = 0.3
"""Seconds for a line of log to be written before the task goes on: standard error may be a pipe that is not read."""
_FRAME: Final = struct.Struct("!4sI")
_MARK: Final = b"LHP1"
"""Begins every frame. What a task writes to the socket by mistake is found out at once, not taken for a length."""
HEADER: Final = _FRAME.size
LARGEST: Final = 16 * 1024 * 1024
"""Bytes of one message. Payload, result and error are bounded far below it, escaped as they may be."""


class Garbage(Exception):
    """What was received is no message."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Return the message as one frame. ASCII only, so that no text is too odd to be sent."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > LARGEST:
        raise ValueError(f"a message of {len(body):,} bytes is longer than {LARGEST:,}")
    return _FRAME.pack(_MARK, len(body)) + body


def length_of(header: bytes) -> int:
    """Return how many bytes follow the header of a frame."""
    mark, length = _FRAME.unpack(header)
    if mark != _MARK or length > LARGEST:
        raise Garbage(f"no frame begins with {header!r}")
    return int(length)


def unpack(body: bytes) -> dict[str, Any]:
    """Return the message in a frame."""
    try:
        message = json.loads(body)
    except ValueError as error:
        raise Garbage(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise Garbage("not an object")
    return message


def to_outcome(message: Mapping[str, Any]) -> Outcome:
    """Return the outcome in a message's fields."""
    try:
        match message:
            case {"outcome": "success", "result": str() | None as result}:
                return Success(result)
            case {
                "outcome": "failed",
                "error": {"class": str(name), "message": str(text), "traceback": str(trace)},
                "retry_after": int() | float() | None as after,
                "fatal": bool(fatal),
            }:
                error = Error(type=name, message=text, traceback=trace)
                return Failed(error=error, retry_after=after, fatal=fatal)
            case {"outcome": "snoozed", "retry_after": int() | float() as after}:
                return Snoozed(after)
            case {"outcome": "cancelled", "error": {"message": str(reason)}}:
                return Cancelled(reason)
    except ValueError as error:
        raise Garbage(str(error)) from None
    raise Garbage(f"no outcome: {str(message)[:200]}")


class Channel:
    """The socket to the worker. Any thread may send; only the main thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._guard = threading.Lock()
        self._latest: dict[str, Any] | None = None
        self._moved = threading.Event()
        self.lease = math.inf
        """Seconds of the lease of the job that runs."""
        # Now: a capped task leaves no room for the stacks of threads.
        threading.Thread(target=self._watch, name="leasehold-watch", daemon=True).start()
        threading.Thread(target=self._pass_progress_on, name="leasehold-progress", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message, whole."""
        frame = pack(message)
        with self._guard:
            self._socket.sendall(frame)

    def send_progress(self, message: dict[str, Any]) -> None:
        """Send it soon, unless a newer one comes first."""
        self._latest = message
        self._moved.set()

    def receive(self) -> dict[str, Any]:
        """Return the next message; without a worker, this process ends."""
        return unpack(self._exactly(length_of(self._exactly(HEADER))))

    def _exactly(self, wanted: int) -> bytes:
        data = self._reader.read(wanted)
        if len(data) < wanted:
            _die()
        return data

    def _watch(self) -> None:
        try:
            watch = select.poll()
            watch.register(self._socket, getattr(select, "POLLRDHUP", 0))  # not POLLIN: messages are the main thread's
            stopped = 0  # seconds that the worker renews nothing
            while not watch.poll(1000) and stopped < self.lease / 2:
                stopped = stopped + 1 if _is_stopped(os.getppid()) else 0
        finally:
            _die()

    def _pass_progress_on(self) -> None:
        while True:
            self._moved.wait()
            self._moved.clear()
            message, self._latest = self._latest, None
            if message is not None:
                with contextlib.suppress(OSError):  # the main thread finds out by itself
                    self.send(message)
            time.sleep(0.05)  # only the latest counts


class ChildContext(JobContext):
    """`current_job()` here. `checkpoint()` never raises: a process that should end is killed."""

    def __init__(self, channel: Channel, call: int, job: ClaimedJob, complete: Callable[..., Awaitable[None]]) -> None:
        super().__init__(job.id, job.kind, job.queue, job.attempt, job.retry_count, job.max_attempts)
        self._channel = channel
        self._call = call
        self._complete_in = complete
        self._sent = 0

    def completing(self) -> None:
        """Tell the worker, before anything can be committed, that the task completes its job in its own transaction."""
        self._channel.send({"type": "completing", "call": self._call})

    async def _complete(self, connection: object, result: object, *, blocking: bool) -> None:
        await self._complete_in(connection, result, blocking=blocking)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is, from 0 to 1; the worker writes it with its next heartbeat."""
        super().progress(fraction, note)
        if (latest := self.take_progress()) is not None:
            fraction, note = latest
            self._channel.send_progress({"type": "progress", "call": self._call, "fraction": fraction, "note": note})

    def capture(self, line: LogLine) -> None:
        """Send a line of log to the worker, which keeps the first ones."""
        self._sent += 1
        if self._sent <= MAX_LINES + 1:  # one more: the worker notes that there were
            self._channel.send({"type": "log", "call": self._call, "line": line_of(*line)})


def main() -> None:
    """Serve the worker until it sends stop."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    connection.set_inheritable(False)
    if not follow_parent(int(sys.argv[2]), signal.SIGKILL):
        os._exit(_FAILED)  # it died before the kernel could be asked
    do_nothing_at_signals()  # they are for the worker, which lets its jobs finish
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what a killed task printed is not lost
    channel = Channel(connection)
    try:
        with logs.bound():
            _serve(channel)
    except BaseException:  # noqa: BLE001 (not by returning: a thread that a task left behind must not keep us)
        _print_error()
        os._exit(_FAILED)


def _serve(channel: Channel) -> None:
    process = os.getpid()
    while True:
        message = channel.receive()
        match message["type"]:
            case "setup":
                Surroundings(**message["surroundings"]).restore()
                level, style = logs.Level(message["level"]), logs.Format(message["format"])
                logs.configure(level, style, background=True, wait=_LINE)
                logging.getLogger().addHandler(Capture(level=logging.INFO))
                logging.getLogger("leasehold.task").setLevel(logging.INFO)
            case "job":
                answer = _answer(channel, message)
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(OSError, ValueError):  # the task may have closed it
                        stream.flush()
                logs.flush(_LINE)
                if os.getpid() != process:
                    os._exit(0)  # the task forked, and this copy came back as well
                channel.send({**answer, "call": message["call"]})
            case "stop":
                return


def _answer(channel: Channel, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        task = find_task(message["module"], message["name"])
    except BaseException as error:  # noqa: BLE001 (importing it ran the user's code)
        _print_error()
        return {"type": "broken", "why": f"{type(error).__name__}: {text_of(error, 1000)}"}
    job, worker = ClaimedJob(**message["job"]), message["worker"]
    channel.lease = job.lease_seconds
    channel.send({"type": "started", "call": message["call"]})
    complete = partial(complete_in, worker=worker["id"], store=Store(worker["schema"]), task=task, token=job)
    context = ChildContext(channel, message["call"], job, complete)
    before = set(threading.enumerate())
    surroundings = Surroundings.now()  # with what importing the task has changed
    outcome, spent = _attempt(task, context, job.payload, message["memory"])
    clean = surroundings.restore() and set(threading.enumerate()) <= before and not _has_children()
    return {"type": "outcome", "spent": spent, "left": not clean, **fields_of(outcome)}


def _print_error() -> None:
    if logs.say(traceback.format_exc()):
        logs.flush(_LINE)
    else:
        traceback.print_exc()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _attempt(task: Task[..., Any], context: ChildContext, payload: str, memory: int | None) -> tuple[Outcome, bool]:
    """Return what came of the function, and whether it ran out of memory."""
    entered = enter(context)
    try:
        value = _capped(memory, partial(_call, task, payload, context))
        return outcome_of(task, context.retry_count, value), False
    except BaseException as error:  # noqa: BLE001 (whatever a task raises is its outcome, SystemExit included)
        raised = as_error(error)
    finally:
        leave(entered)
    try:
        if memory is not None and isinstance(raised, MemoryError) and not raised.args:
            raised.args = (f"more than the {memory:,} bytes that {task.kind} may allocate",)
        hooks = task._app.hooks  # noqa: SLF001 (the exception exists only here)
        if hooks.on_error and not isinstance(raised, Snooze | Cancel):
            asyncio.run(hooks.run_on_error(context, raised))
        return outcome_of(task, context.retry_count, raised), _ran_out_of_memory(raised)
    finally:
        del raised  # this frame is in its traceback (see `AttemptRunner`)


def _call(task: Task[..., Any], payload: str, context: ChildContext) -> object:
    try:
        arguments = task.arguments.decode(payload)
    except InvalidArguments as invalid:
        raise set_aside(invalid) from None
    hooks = task._app.hooks  # noqa: SLF001 (what is around a task is around it here)
    if not inspect.iscoroutinefunction(task.function):
        return hooks.call(context, task.function, **arguments)
    caught: list[BaseException] = []
    value = asyncio.run(_awaited(partial(hooks.acall, context, task.function), arguments, caught))
    if caught:
        raise caught.pop()
    return value


async def _awaited(
    function: Callable[..., Awaitable[object]], arguments: Mapping[str, Any], caught: list[BaseException]
) -> object:
    """Return the value, or add the error to `caught`: its traceback is the task's, without the event loop's.

    The error is not returned: from Python 3.12 on asyncio keeps what a coroutine returned until the collector runs.
    """
    try:
        return await function(**arguments)
    except BaseException as error:  # noqa: BLE001 (raised again by the caller)
        caught.append(error)
        return None


def _capped(memory: int | None, call: Callable[[], object]) -> object:
    """Call with at most `memory` bytes more than the process uses now; beyond that there is MemoryError.

    RLIMIT_DATA counts what is allocated: the heap and private mappings. RLIMIT_AS counts everything mapped, so it
    stops shared mappings too, but also what is only reserved, which is far more than is used: it has 1 GiB more.
    """
    if memory is None:
        return call()
    size, _, _, _, _, data, _ = memory_used()
    before = [(which, resource.getrlimit(which)) for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    for (which, (soft, hard)), wanted in zip(before, (data + memory, size + memory + (1 << 30)), strict=True):
        limits = [limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(which, (min(limits), hard))
    try:
        return call()
    finally:
        for which, limits_before in before:
            resource.setrlimit(which, limits_before)


def _ran_out_of_memory(error: BaseException) -> bool:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if issubclass(type(cause), MemoryError):  # not isinstance(), which asks the exception
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def _is_stopped(process: int) -> bool:
    """Return whether it is stopped by SIGSTOP; False where there is no /proc."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rsplit(")", 1)[1].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _die() -> NoReturn:
    """End this process and its group: the worker is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(_FAILED)
