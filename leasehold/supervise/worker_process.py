"""One worker process, as its supervisor sees it."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leasehold._os_process import signal_name
from leasehold.supervise import RETIRED
from leasehold.supervise.report_targets import SupervisorPipe

WELL = {0, RETIRED, -signal.SIGTERM}
"""How a worker ends well. By SIGTERM itself only before it handles that signal, or after: with no jobs either way."""


class WorkerProcess:
    """A worker process and what it has reported so far. Made on the event loop of the supervisor.

    While `predecessor`, which had its place before and retires, has not ended, this one must not retire.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], on_report: Callable[[], None],
        predecessor: "WorkerProcess | None" = None,
    ) -> None:  # fmt: skip
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        passed = [writing]
        self._hold: int | None = None
        self.predecessor = predecessor
        try:
            if predecessor is not None:
                held, self._hold = os.pipe()
                passed.append(held)
            # A session of its own: Ctrl-C in a terminal is for the supervisor, which passes it on once.
            env = {**env, **SupervisorPipe.environment(*passed)}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=env, pass_fds=passed, start_new_session=True
            )
        except OSError:
            os.close(reading)
            self.let_retire()
            raise
        finally:
            for end in passed:
                os.close(end)
        self.pid = self._process.pid
        self.report: dict[str, Any] | None = None
        """The worker's last snapshot."""
        self.born = self._reported_at = time.monotonic()
        self.loaded = asyncio.Event()
        """Set at its first report: the app was imported, the database has answered; a report follows each second."""
        self.ready = asyncio.Event()
        """Set when the worker takes jobs."""
        self.retiring = asyncio.Event()
        """Set when the worker takes no more jobs and finishes what it has, to be replaced."""
        self.ended = asyncio.Event()
        self.leaving = False
        """Whether the supervisor has asked it to end."""
        self._asked = False
        self._aborted = False
        self._on_report = on_report
        self._rest = b""
        self._pipe: int | None = reading
        asyncio.get_running_loop().add_reader(reading, self._read)

    # -- what it reports

    @property
    def silence(self) -> float:
        """Seconds since its last report."""
        return time.monotonic() - self._reported_at

    def _read(self) -> None:
        if self._pipe is None:
            return
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not lines:
            return
        self.report = json.loads(lines[-1])
        self._reported_at = time.monotonic()
        self.loaded.set()
        reported = {json.loads(line)["state"] for line in lines}
        if reported != {"starting"}:
            self.ready.set()
        if "retiring" in reported:
            self.retiring.set()
        self._on_report()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def let_retire(self) -> None:
        """Let it retire from now on."""
        self.predecessor = None
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None

    # -- signals to it

    def ask(self) -> None:
        """Ask it to stop, once: a second SIGTERM means something else to it."""
        if not self._asked:
            self.hurry()

    def hurry(self) -> None:
        """Ask it to release its jobs at once."""
        self._asked = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def abort(self) -> None:
        """End it as systemd ends what hangs; PYTHONFAULTHANDLER=1 shows where that was."""
        self._process.send_signal(signal.SIGKILL if self._aborted else signal.SIGABRT)
        self._aborted = True

    # -- how it ends

    def reap(self) -> bool:
        """Return whether it has ended."""
        if self._process.poll() is None:
            return False
        self._read()
        self._close_pipe()
        self.let_retire()
        self.ended.set()
        return True

    @property
    def code(self) -> int:
        """Its exit code, or minus the number of the signal that killed it."""
        return self._process.returncode or 0

    @property
    def how(self) -> str:
        """The same in words."""
        return f"was killed by {signal_name(self.code)}" if self.code < 0 else f"ended with exit code {self.code}"
