"""The program that runs `executor="process"` tasks: one job at a time, for the worker at the other end of a socket.

Started by `leasehold.worker.process` as `python -m leasehold.worker.child SOCKET PARENT`. It never outlives its worker:

- the kernel kills it when the worker dies (PR_SET_PDEATHSIG, Linux), even while a task computes in C and holds the
  interpreter's lock;
- a thread watches the socket and kills this process and its group when the other end is gone. It needs the lock for
  a moment, so without PR_SET_PDEATHSIG a task that never releases it lives until it does. It also ends the process when
  the worker has stood still (SIGSTOP) for half of the job's lease: by then the job may be another worker's.

Processes that a task starts are in this one's group and are killed with it by the worker and by the thread. Only when
the worker itself is killed may they outlive this process: the kernel does not pass its signal on.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import inspect
import logging
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from leasehold import logs
from leasehold.context import MAX_LINES, Capture, Completion, JobContext, LogLine, enter, leave, line_of
from leasehold.db.store import Store, Token
from leasehold.outcome import Cancel, Outcome, Snooze
from leasehold.task import Task
from leasehold.texts import text_of
from leasehold.worker.completion import CompleteIn
from leasehold.worker.importable import find_task
from leasehold.worker.judge import arguments_of, as_error, outcome_of
from leasehold.worker.wire import HEADER, from_outcome, length_of, pack, unpack

_PR_SET_PDEATHSIG: Final = 1

_FAILED: Final = 70
"""The exit code when this program, not its task, fails: EX_SOFTWARE."""

_RESERVE: Final = 1024**3
"""Address space beyond the memory cap: allocators and libraries reserve far more than they use."""

_PROGRESS_EVERY: Final = 0.05
"""Seconds between two messages about progress; only the latest counts."""


_LOOK: Final = 1
"""Seconds between two looks whether the worker stands still."""

_STOPPED: Final = 0.5
"""Of a lease: how long the worker may stand still, and renew nothing, before its task is ended."""


class Channel:
    """The socket to the worker. Any thread may send; only the main thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._guard = threading.Lock()
        self._latest: dict[str, Any] | None = None
        self._moved = threading.Event()
        self.lease = math.inf
        """Seconds of the lease of the job that runs."""

    def start(self) -> None:
        """Start the threads now: a capped task leaves no room for their stacks."""
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
        """The next message; without a worker, the end."""
        return unpack(self._exactly(length_of(self._exactly(HEADER))))

    def _exactly(self, wanted: int) -> bytes:
        data = bytearray()
        while len(data) < wanted:
            part = self._socket.recv(wanted - len(data))
            if not part:
                _die()
            data += part
        return bytes(data)

    def _watch(self) -> None:
        try:
            watch = select.poll()
            watch.register(self._socket, getattr(select, "POLLRDHUP", 0))  # not POLLIN: messages are the main thread's
            stopped = 0.0
            while not watch.poll(1000 * _LOOK) and stopped < self.lease * _STOPPED:
                stopped = stopped + _LOOK if _is_stopped(os.getppid()) else 0.0
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
            time.sleep(_PROGRESS_EVERY)


class ChildContext(JobContext):
    """`current_job()` here. `checkpoint()` never raises: a process that should end is killed."""

    def __init__(self, channel: Channel, call: int, completion: Completion | None, **job: Any) -> None:
        super().__init__(**job)
        self._channel = channel
        self._call = call
        self._complete = completion
        self._sent = 0

    def _completion(self) -> Completion:
        return super()._completion() if self._complete is None else self._complete

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is, from 0 to 1; the worker writes it with its next heartbeat."""
        super().progress(fraction, note)
        latest = self.take_progress()
        if latest is not None:
            sent = {"type": "progress", "call": self._call, "fraction": latest[0], "note": latest[1]}
            self._channel.send_progress(sent)

    def capture(self, line: LogLine) -> None:
        """Send a line of log to the worker, which keeps the first ones."""
        self._sent += 1
        if self._sent <= MAX_LINES + 1:  # one more: the worker notes that there were
            self._channel.send({"type": "log", "call": self._call, "line": line_of(*line)})


def main() -> None:
    """Serve the worker until it says stop."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    _die_with(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM):
        # They are for the worker, which gives its jobs time to finish. A handler, because an ignored signal would be
        # ignored by the programs that a task starts, too.
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what a killed task printed is not lost
    channel = Channel(connection)
    channel.start()
    try:
        with logs.bound():
            _serve(channel)
    except BaseException:  # noqa: BLE001 (not by returning: a thread that a task left behind must not keep us)
        traceback.print_exc()
        os._exit(_FAILED)


def _serve(channel: Channel) -> None:
    process = os.getpid()
    while True:
        message = channel.receive()
        match message["type"]:
            case "setup":
                _set_up(message)
            case "job":
                answer = _answer(channel, message)
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(OSError, ValueError):  # the task may have closed it
                        stream.flush()
                if os.getpid() != process:
                    os._exit(0)  # the task forked, and this copy came back as well
                channel.send({**answer, "call": message["call"]})
            case "stop":
                return


def _set_up(message: Mapping[str, Any]) -> None:
    sys.path[:] = message["path"]
    logs.configure(logs.Level(message["level"]), logs.Format(message["format"]))
    logging.getLogger().addHandler(Capture(level=logging.INFO))
    logging.getLogger("leasehold.task").setLevel(logging.INFO)


def _answer(channel: Channel, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        task = find_task(message["module"], message["name"])
    except BaseException as error:  # noqa: BLE001 (importing it ran the user's code)
        traceback.print_exc()
        return {"type": "broken", "why": f"{type(error).__name__}: {text_of(error, 1000)}"}
    job = message["job"]
    channel.lease = job["lease"]
    channel.send({"type": "started", "call": message["call"]})
    context = ChildContext(
        channel, message["call"], _completion(task, message), id=job["id"], kind=job["kind"], queue=job["queue"],
        attempt=job["attempt"], retry_count=job["retry_count"], max_attempts=job["max_attempts"],
    )  # fmt: skip
    outcome, spent = _attempt(task, context, job["payload"], message["memory"])
    return {"type": "outcome", "spent": spent, **from_outcome(outcome)}


def _completion(task: Task[..., Any], message: Mapping[str, Any]) -> Completion | None:
    worker, job = message["worker"], message["job"]
    if worker is None:
        return None
    token = Token(job["id"], job["attempt"], job["claim_id"])
    return CompleteIn(worker["id"], Store(worker["schema"]), task, token)


def _attempt(task: Task[..., Any], context: ChildContext, payload: str, memory: int | None) -> tuple[Outcome, bool]:
    """What came of the function, and whether it ran out of memory."""
    entered = enter(context)
    try:
        value = _capped(memory, partial(_call, task, payload, context))
        return outcome_of(task, context.retry_count, value), False
    except BaseException as error:  # noqa: BLE001 (whatever a task raises is its outcome, SystemExit included)
        raised = as_error(error)
    finally:
        leave(entered)
    if memory is not None and isinstance(raised, MemoryError) and not raised.args:
        raised.args = (f"more than the {memory:,} bytes that {task.kind} may allocate",)
    hooks = task._app.hooks  # noqa: SLF001 (here is the exception, so here they can look at it)
    if hooks.on_error and not isinstance(raised, Snooze | Cancel):
        asyncio.run(hooks.run_on_error(context, raised))
    return outcome_of(task, context.retry_count, raised), _ran_out_of_memory(raised)


def _call(task: Task[..., Any], payload: str, context: ChildContext) -> object:
    arguments = arguments_of(task, payload)
    hooks = task._app.hooks  # noqa: SLF001 (what is around a task is around it here)
    if not inspect.iscoroutinefunction(task.function):
        return hooks.call(context, task.function, **arguments)
    value, error = asyncio.run(_awaited(partial(hooks.acall, context, task.function), arguments))
    if error is not None:
        raise error
    return value


async def _awaited(
    function: Callable[..., Awaitable[object]], arguments: Mapping[str, Any]
) -> tuple[object, BaseException | None]:
    """Catches the error here, inside: its traceback is the task's, without the event loop's."""
    try:
        return await function(**arguments), None
    except BaseException as error:  # noqa: BLE001 (raised again by the caller)
        return None, error


def _capped(memory: int | None, call: Callable[[], object]) -> object:
    """Call with at most `memory` bytes more than the process uses now; beyond that there is MemoryError.

    RLIMIT_DATA counts what is allocated: the heap and private mappings. RLIMIT_AS counts everything mapped, so it
    stops shared mappings too, but also what is only reserved: it is the wider fence.
    """
    if memory is None:
        return call()
    size, data = _used()
    before = [(which, resource.getrlimit(which)) for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    for (which, (soft, hard)), wanted in zip(before, (data + memory, size + memory + _RESERVE), strict=True):
        limits = [limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(which, (min(limits), hard))
    try:
        return call()
    finally:
        for which, limits_before in before:
            resource.setrlimit(which, limits_before)


def _used() -> tuple[int, int]:
    """Bytes of address space and of data, as the kernel counts them for the limits."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    size = resource.getpagesize()
    return int(pages[0]) * size, int(pages[5]) * size


def _ran_out_of_memory(error: BaseException) -> bool:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if issubclass(type(cause), MemoryError):  # not isinstance(), which asks the exception
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the worker dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_FAILED)  # it died before we could ask


def _is_stopped(process: int) -> bool:
    """Whether it stands still by SIGSTOP. Where there is no /proc, nothing is known of it."""
    try:
        return (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[0]
            == "T"
        )
    except (OSError, IndexError):
        return False


def _die() -> NoReturn:
    """The worker is gone, and nobody wants to know how the task ends."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(_FAILED)


if __name__ == "__main__":
    # Under its own name, by which a traceback knows the worker's frames from the task's.
    from leasehold.worker.child import main as serve

    serve()
