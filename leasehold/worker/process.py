"""Runs `executor="process"` tasks in processes that can be killed: at a timeout, with a lost lease, by their own bugs.

The processes are started when first needed, by exec and not by fork: they share neither connections nor locks with the
worker. They are kept for further jobs, one at a time. The program at the other end is `leasehold.worker.process_main`.

A process and whatever it started in its process group are killed together. A thread waits for its end, and notices it
also when a copy of its socket lives on in some fork of it.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from leasehold import logs
from leasehold._logger import logger_of
from leasehold._os_process import restore_standard, signal_name
from leasehold.context import JobContext
from leasehold.db.store import ClaimedJob
from leasehold.errors import LeaseholdError
from leasehold.outcome import Outcome
from leasehold.task import Task
from leasehold.worker.executors import NotStarted, TimedOut
from leasehold.worker.process_main import HEADER, Garbage, length_of, pack, to_outcome, unpack
from leasehold.worker.surroundings import Surroundings

logger = logger_of(__name__)

_START: Final = 60.0
"""Seconds for a process to start and to import the task; the task's own timeout counts from then on."""
_RETIRE: Final = 10.0
"""Seconds for a process that gets no more jobs to exit by itself: a thread that a task left behind may keep it."""
_RETIRING: Final = 10
"""At most so many processes are on their way out; of more, the first is killed."""


class ProcessDied(LeaseholdError):
    """The process that ran the attempt is gone, and with it the attempt."""


class _Gone(Exception):
    """The connection to the process has ended."""


class ProcessExecutor:
    """A pool of at most `slots` processes.

    `worker` and `schema` let a task in a process complete its job in its own transaction. A process is replaced after
    `most` jobs, None: never, and after one that left behind what cannot be put back.
    """

    def __init__(self, slots: int, *, worker: str, schema: str, most: int | None = None) -> None:
        self._most = most
        self._room = asyncio.Semaphore(slots)
        self._worker = {"id": worker, "schema": schema}
        self._surroundings = Surroundings.now()  # before any task runs, which may change them
        self._children: set[TaskProcess] = set()
        self._idle: list[TaskProcess] = []
        self._retiring: list[TaskProcess] = []

    async def run(self, task: Task[..., Any], job: ClaimedJob, context: JobContext) -> Outcome:
        """Run the attempt in a process and return its outcome, which is made there: the exception stays in the process.

        Raises ProcessDied or TimedOut when there is none. Cancelled, it kills the process at once.
        """
        async with self._room:
            while True:
                reused = bool(self._idle)
                child = self._idle.pop() if reused else self._start()
                try:
                    outcome = await child.run(task, job, context, self._worker)
                except (_Gone, Garbage) as end:
                    died = await child.died(job, end)
                    if child.started or not reused:
                        raise died from None
                    # It died idle, or of what an earlier job left behind. This one has not begun: another process.
                    logger.warning("an idle process was useless: %s", died)
                    continue
                finally:
                    if not child.reusable:
                        await child.end()
                if child.reusable:
                    self._keep(child)
                return outcome

    async def close(self) -> None:
        """Let idle processes exit, kill the others."""
        children = list(self._children)
        for child in self._idle:
            child.stop()
        self._idle.clear()
        if children:
            await asyncio.wait([child.dead for child in children], timeout=2.0)
        for child in children:
            await child.end()

    def kill(self) -> None:
        """Kill all of them, and do not wait for it."""
        for child in list(self._children):
            child.kill()

    def _start(self) -> "TaskProcess":
        try:
            child = TaskProcess(self._surroundings)
        except (OSError, MemoryError, RuntimeError) as error:
            raise NotStarted(f"no process could be started: {error}") from error
        self._children.add(child)
        child.dead.add_done_callback(lambda _: self._forget(child))
        return child

    def _keep(self, child: "TaskProcess") -> None:
        """Keep it for the next job. One that shall have no more exits by itself; `close` waits for it."""
        if child.dead.done():
            child.close()
        elif not child.spoilt and (self._most is None or child.calls < self._most):
            self._idle.append(child)
        else:
            child.stop()
            self._retiring.append(child)
            asyncio.get_running_loop().call_later(_RETIRE, child.kill)  # does nothing to one that is dead
            if len(self._retiring) > _RETIRING:
                self._retiring[0].kill()

    def _forget(self, child: "TaskProcess") -> None:
        self._children.discard(child)
        for unused in (self._idle, self._retiring):
            if child in unused:
                unused.remove(child)
                child.close()


class TaskProcess:
    """One process. To be made on the event loop, by the thread that runs it: the kernel kills the process when the
    thread that started it ends, so a passing thread must not be that.
    """

    def __init__(self, given: Surroundings) -> None:
        restore_standard()
        ours, theirs = socket.socketpair()
        # Both ends explicitly: a task may have called socket.setdefaulttimeout().
        ours.setblocking(False)
        theirs.setblocking(True)
        # Not -m: the package of the module imports the module first, of which Python warns, or it ends with an error.
        program = "from leasehold.worker.process_main import main; main()"
        command = [sys.executable, "-P", "-c", program, str(theirs.fileno()), str(os.getpid())]
        try:
            # -P: nothing in the current directory may shadow what the child imports before it has the worker's path.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, pass_fds=[theirs.fileno()],
                start_new_session=True, cwd=given.folder, env=given.env, umask=given.umask,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self._given = given
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self.calls = 0
        """Jobs given to it so far."""
        self.started = False
        """Whether the function of the present job may have been called."""
        self.reusable = False
        """Whether it can take another job."""
        self.spoilt = False
        """Whether its last job left behind what the next one would suffer from, such as a thread that may end both."""
        self.dead: asyncio.Future[int] = self._loop.create_future()
        """Done when the process has ended and was reaped; its exit code, negative for a signal."""
        self.pid = self._process.pid
        try:
            threading.Thread(target=self._wait, name=f"leasehold-wait-{self.pid}", daemon=True).start()
        except BaseException:  # no thread, no memory
            self.kill()
            self._process.wait()
            self.close()
            raise

    # -- a job

    async def run(
        self, task: Task[..., Any], job: ClaimedJob, context: JobContext, worker: Mapping[str, str]
    ) -> Outcome:
        """Run one job and return its outcome."""
        self.started = self.reusable = False
        deadline = asyncio.timeout(_START)
        try:
            async with deadline:
                if not self.calls:
                    level, style = logs.chosen
                    given = self._given.to_send()
                    await self._send({"type": "setup", "surroundings": given, "level": level, "format": style})
                self.calls += 1
                module, name, memory = task.function.__module__, task.function.__qualname__, task.options.memory
                called = {"module": module, "name": name, "memory": memory, "worker": worker, "job": asdict(job)}
                await self._send({"type": "job", "call": self.calls, **called})
                while True:
                    message = unpack(await self._exactly(length_of(await self._exactly(HEADER))))
                    if (outcome := self._take(message, task, context, deadline)) is not None:
                        self.reusable = message.get("spent") is False
                        self.spoilt = message.get("left") is not False
                        return outcome
        except TimeoutError:
            if not deadline.expired():
                raise
            if self.started:
                raise TimedOut.of(task) from None
            raise ProcessDied(f"the process of job {job.id} did not start within {_START:g} s") from None

    def _take(
        self, message: Mapping[str, Any], task: Task[..., Any], context: JobContext, deadline: asyncio.Timeout
    ) -> Outcome | None:
        mine = message.get("call") == self.calls
        match message:
            case {"type": "progress", "fraction": int() | float() as fraction, "note": str(note)}:
                if mine:  # else a thread that an earlier job left behind
                    # A wrong fraction, which the process has checked, is refused; if the job should stop, we are
                    # cancelled for that.
                    with contextlib.suppress(ValueError, LeaseholdError):
                        context.progress(fraction, note)
            case {"type": "log", "line": [int() | float() as at, str(level), str(text)]}:
                if mine:
                    context.capture((at, level, text))
            case {"type": "completing"}:
                if mine:
                    context.completing()
            case {"type": "started"} if mine and not self.started:
                self.started = True
                timeout = task.options.timeout
                deadline.reschedule(None if timeout is None else self._loop.time() + timeout)
            case {"type": "outcome"} if mine and self.started:
                return to_outcome(message)
            case {"type": "broken", "why": str(why)} if mine:
                raise ProcessDied(f"the process of job {context.id} cannot run {task.kind}: {why}")
            case _:
                raise Garbage(f"unexpected: {str(message)[:200]}")
        return None

    async def died(self, job: ClaimedJob, end: Exception) -> ProcessDied:
        """End the process, and return how it died."""
        how, hint = "it wrote something that is no message, and was killed", None
        if not isinstance(end, _Gone):
            logger.warning("process %d, job %s: %s", self.pid, job.id, end)
        elif await self.wait(1.0):  # between the end of its connection and its exit
            code = self.dead.result()
            how = f"killed by {signal_name(code)}" if code < 0 else f"exit code {code}"
            hint = "by a person, or by the kernel for want of memory" if code == -signal.SIGKILL else None
        else:
            how = "it closed its connection, and was killed"
        await self.end()
        return ProcessDied(f"the process of job {job.id} died: {how}", hint=hint)

    async def _send(self, message: Mapping[str, Any]) -> None:
        try:
            await self._loop.sock_sendall(self._socket, pack(message))
        except OSError as error:
            raise _Gone from error

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

    # -- its end

    def stop(self) -> None:
        """Ask an idle process to exit."""
        with contextlib.suppress(OSError):
            self._socket.send(pack({"type": "stop"}))

    def kill(self) -> None:
        """Kill it and its group. Until it is reaped no other process can have its number."""
        if not self.dead.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill it, and return when it is gone."""
        self.kill()
        try:
            if not await self.wait(5.0):  # it runs no more code of the task, but the kernel may be busy with it
                logger.error("process %d does not end, though killed", self.pid)
        finally:
            self.close()

    async def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""
        await asyncio.wait([self.dead], timeout=seconds)
        return self.dead.done()

    def close(self) -> None:
        """Close our end of the socket: the process ends if it has not."""
        self._socket.close()

    def _wait(self) -> None:
        """Wait in a thread, and leave the process to be reaped on the event loop: else `kill` could hit another one."""
        with contextlib.suppress(ChildProcessError):  # a task has reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has gone
            self._loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        self.kill()  # before it is reaped: what it left behind in its group
        self.dead.set_result(self._process.wait())
        # A fork of it may hold the other end open: make our reader see what was sent, and then the end.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
