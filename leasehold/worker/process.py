"""Runs `executor="process"` tasks in processes that can be killed: at a timeout, with a lost lease, by their own bugs.

The processes are started when first needed, by exec and not by fork: they share neither connections nor locks with the
worker. They are kept for further jobs, one at a time. The program at the other end is `leasehold.worker.child`.

A process and whatever it started in its process group are killed together. A process that dies is noticed by its
pidfd, also when a copy of its socket lives on in some fork of it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from leasehold import logs
from leasehold.context import JobContext
from leasehold.db.store import ClaimedJob
from leasehold.errors import LeaseholdError
from leasehold.outcome import Outcome
from leasehold.task import Task
from leasehold.worker.executors import NotStarted, timed_out
from leasehold.worker.wire import HEADER, Garbage, length_of, pack, to_outcome, unpack

logger = logging.getLogger(__name__)

_START: Final = 60.0
"""Seconds for a process to start and to import the task; the task's own timeout counts from then on."""

_STOP: Final = 2.0
"""Seconds for an idle process to exit by itself when the worker stops."""

_RETIRE: Final = 10.0
"""Seconds for a process that had its number of jobs to exit by itself: a thread that a task left behind may keep it."""

_RETIRING: Final = 10
"""At most so many processes are on their way out; of more, the first is killed."""

_KILLED: Final = 5.0
"""Seconds to wait for a killed process. It runs no more code of the task, but the kernel may be busy with it."""

_LAST_WORDS: Final = 1.0
"""Seconds between the end of a process's connection and its exit, before it is taken for running on in silence."""


class ProcessDied(LeaseholdError):
    """The process that ran the attempt is gone, and with it the attempt."""


class _Gone(Exception):
    """The connection to the process has ended."""


class ProcessExecutor:
    """A pool of at most `slots` processes.

    `worker` and `schema` let a task in a process complete its job in its own transaction. A process is replaced after
    `most` jobs; None: never.
    """

    def __init__(
        self, slots: int, *, worker: str | None = None, schema: str = "leasehold", most: int | None = None
    ) -> None:
        self._most = most
        self._room = asyncio.Semaphore(slots)
        self._worker = None if worker is None else {"id": worker, "schema": schema}
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        self._retiring: list[Child] = []

    async def run(self, task: Task[..., Any], job: ClaimedJob, context: JobContext) -> Outcome:
        """Run the attempt in a process and give its outcome, which the process judges: the exception lives there.

        Raises ProcessDied or TimedOut when there is none. Cancelled, it kills the process at once.
        """
        async with self._room:
            while True:
                reused = bool(self._idle)
                attempt = _Attempt(self._idle.pop() if reused else self._start(), task, job, context)
                try:
                    outcome = await attempt.run(self._worker)
                except (_Gone, Garbage) as end:
                    died = await attempt.died(end)
                    if attempt.started or not reused:
                        raise died from None
                    # It died idle, or of what an earlier job left behind. This one has not begun: another process.
                    logger.warning("an idle process was useless: %s", died)
                    continue
                finally:
                    if not attempt.reusable:
                        await attempt.child.end()
                if attempt.reusable:
                    self._keep(attempt.child)
                return outcome

    async def close(self) -> None:
        """Let idle processes exit, kill the others."""
        children = list(self._children)
        for child in self._idle:
            child.stop()
        self._idle.clear()
        if children:
            await asyncio.wait([child.dead for child in children], timeout=_STOP)
        for child in children:
            await child.end()

    def kill(self) -> None:
        """Kill all of them, and do not wait for it."""
        for child in list(self._children):
            child.kill()

    def _start(self) -> "Child":
        try:
            child = Child()
        except (OSError, MemoryError, RuntimeError) as error:
            raise NotStarted(f"no process could be started: {error}") from error
        self._children.add(child)
        child.dead.add_done_callback(lambda _: self._forget(child))
        return child

    def _keep(self, child: "Child") -> None:
        if child.dead.done():
            child.close()
            return
        if self._most is not None and child.calls >= self._most:
            self._retire(child)
            return
        self._idle.append(child)

    def _retire(self, child: "Child") -> None:
        """Let it exit by itself, and kill it if it does not; `close` waits for it."""
        child.stop()
        self._retiring.append(child)
        late = asyncio.get_running_loop().call_later(_RETIRE, child.kill)

        def gone(_: object) -> None:
            late.cancel()
            self._retiring.remove(child)
            child.close()

        child.dead.add_done_callback(gone)
        if len(self._retiring) > _RETIRING:
            self._retiring[0].kill()

    def _forget(self, child: "Child") -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            child.close()


class Child:
    """One process. To be made on the event loop, by the thread that runs it: the kernel kills the process when the
    thread that started it ends, so a passing thread must not be that.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "leasehold.worker.child", str(theirs.fileno()), str(os.getpid())]
        try:
            # -P: nothing in the current directory may shadow what the child imports before it has the worker's path.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self.calls = 0
        """Jobs given to it so far."""
        self.dead: asyncio.Future[int] = self._loop.create_future()
        """Done when the process has ended and was reaped; its exit code, negative for a signal."""
        try:
            self._watch()
        except BaseException:  # no thread, no memory
            self.kill()
            self._process.wait()
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        try:
            await self._loop.sock_sendall(self._socket, pack(message))
        except OSError as error:
            raise _Gone from error

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        return unpack(await self._exactly(length_of(await self._exactly(HEADER))))

    async def _exactly(self, wanted: int) -> bytes:
        while len(self._buffer) < wanted:
            try:
                part = await self._loop.sock_recv(self._socket, 65_536)
            except OSError as error:
                raise _Gone from error
            if not part:
                raise _Gone
            self._buffer += part
        data = bytes(self._buffer[:wanted])
        del self._buffer[:wanted]
        return data

    def stop(self) -> None:
        """Ask an idle process to exit."""
        with contextlib.suppress(OSError):
            self._socket.send(pack({"type": "stop"}))

    def kill(self) -> None:
        """Kill it and its group. Until it is reaped nobody else can have its number."""
        if not self.dead.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill it, and return when it is gone."""
        self.kill()
        try:
            if not await self.wait(_KILLED):
                logger.error("process %d does not end, though killed", self.pid)
        finally:
            self.close()

    async def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        if not self.dead.done():
            await asyncio.wait([self.dead], timeout=seconds)
        return self.dead.done()

    def close(self) -> None:
        """Give up our end of the socket: the process ends if it has not."""
        self._socket.close()

    # -- its end

    def _watch(self) -> None:
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not on this platform, or forbidden in this sandbox
            threading.Thread(target=self._wait_in_thread, name=f"leasehold-wait-{self.pid}", daemon=True).start()
        else:
            try:
                self._loop.add_reader(pidfd, self._exited, pidfd)
            except BaseException:
                os.close(pidfd)
                raise

    def _exited(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self.kill()  # before it is reaped: what it left behind in its group
        self._process.wait()
        self._reaped()

    def _wait_in_thread(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has gone
            self._loop.call_soon_threadsafe(self._reaped)

    def _reaped(self) -> None:
        self.dead.set_result(self._process.returncode)
        # A fork of it may hold the other end open: make our reader see what was sent, and then the end.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class _Attempt:
    """One job in one process."""

    def __init__(self, child: Child, task: Task[..., Any], job: ClaimedJob, context: JobContext) -> None:
        self.child = child
        self.started = False
        """Whether the function may have been called."""
        self.reusable = False
        """Whether the process can take another job."""
        self._task = task
        self._job = job
        self._context = context

    async def run(self, worker: Mapping[str, str] | None) -> Outcome:
        deadline = asyncio.timeout(_START)
        try:
            async with deadline:
                if not self.child.calls:
                    level, look = logs.chosen()
                    await self.child.send({"type": "setup", "path": sys.path, "level": level, "format": look})
                self.child.calls += 1
                await self.child.send(self._request(worker))
                while True:
                    message = await self.child.receive()
                    if (outcome := self._take(message, deadline)) is not None:
                        self.reusable = message.get("spent") is False
                        return outcome
        except TimeoutError:
            if not deadline.expired():
                raise
            if self.started:
                raise timed_out(self._task) from None
            raise ProcessDied(f"the process of job {self._job.id} did not start within {_START:g} s") from None

    def _request(self, worker: Mapping[str, str] | None) -> dict[str, Any]:
        job, function = self._job, self._task.function
        return {
            "type": "job",
            "call": self.child.calls,
            "module": function.__module__,
            "name": function.__qualname__,
            "memory": self._task.options.memory,
            "worker": worker,
            "job": {
                "id": job.id, "kind": job.kind, "queue": job.queue, "payload": job.payload, "attempt": job.attempt,
                "retry_count": job.retry_count, "max_attempts": job.max_attempts, "claim_id": job.claim_id,
                "lease": job.lease_seconds,
            },
        }  # fmt: skip

    def _take(self, message: Mapping[str, Any], deadline: asyncio.Timeout) -> Outcome | None:
        mine = message.get("call") == self.child.calls
        match message:
            case {"type": "progress", "fraction": int() | float() as fraction, "note": str(note)}:
                if mine:  # else a thread that an earlier job left behind
                    self._progress(fraction, note)
            case {"type": "log", "line": [int() | float() as at, str(level), str(text)]}:
                if mine:
                    self._context.capture((at, level, text))
            case {"type": "started"} if mine and not self.started:
                self.started = True
                timeout = self._task.options.timeout
                deadline.reschedule(None if timeout is None else asyncio.get_running_loop().time() + timeout)
            case {"type": "outcome"} if mine and self.started:
                return to_outcome(message)
            case {"type": "broken", "why": str(why)} if mine:
                raise ProcessDied(f"the process of job {self._job.id} cannot run {self._task.kind}: {why}")
            case _:
                raise Garbage(f"unexpected: {str(message)[:200]}")
        return None

    def _progress(self, fraction: float, note: str) -> None:
        # It refuses a wrong fraction, which the process has checked, and raises when the job should stop: we are
        # cancelled for that.
        with contextlib.suppress(ValueError, LeaseholdError):
            self._context.progress(fraction, note)

    async def died(self, end: Exception) -> ProcessDied:
        """What became of the process, which is no more after this."""
        how = "it wrote something that is no message, and was killed"
        hint = None
        if isinstance(end, _Gone):
            if await self.child.wait(_LAST_WORDS):
                how, hint = _how(self.child.dead.result())
            else:
                how = "it closed its connection, and was killed"
        else:
            logger.warning("process %d, job %s: %s", self.child.pid, self._job.id, end)
        await self.child.end()
        return ProcessDied(f"the process of job {self._job.id} died: {how}", hint=hint)


def _how(code: int) -> tuple[str, str | None]:
    if code >= 0:
        return f"exit code {code}", None
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "by somebody, or by the kernel for want of memory" if -code == signal.SIGKILL else None
    return f"killed by {name}", hint
