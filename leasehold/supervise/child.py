"""One worker process, as its supervisor sees it."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leasehold.supervise import RETIRED
from leasehold.supervise.tether import VARIABLE, address

WELL = {0, RETIRED, -signal.SIGTERM}
"""How a worker ends well. By SIGTERM itself only before it handles that signal, or after: with no jobs either way."""


class Child:
    """A worker process and what it has said so far. Made on the event loop of the supervisor."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], on_word: Callable[[], None]) -> None:
        listening, speaking = os.pipe()
        os.set_blocking(listening, False)
        try:
            # A session of its own: Ctrl-C in a terminal is for the supervisor, who passes it on once.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env={**env, VARIABLE: address(speaking)}, pass_fds=[speaking],
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            os.close(listening)
            raise
        finally:
            os.close(speaking)
        self.pid = self._process.pid
        self.word: dict[str, Any] | None = None
        """The worker's last snapshot."""
        self.heard = self._born = time.monotonic()
        self.loaded = asyncio.Event()
        """Set when the app was imported and the database has answered."""
        self.ready = asyncio.Event()
        """Set when the worker takes jobs."""
        self.ended = asyncio.Event()
        self.leaving = False
        """Whether its end is the supervisor's wish."""
        self._asked = False
        self._aborted = False
        self._on_word = on_word
        self._rest = b""
        self._pipe: int | None = listening
        asyncio.get_running_loop().add_reader(listening, self._hear)

    # -- what it says

    @property
    def silence(self) -> float:
        """Seconds since it was heard of."""
        return time.monotonic() - self.heard

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._born

    @property
    def finished(self) -> int:
        """How many jobs it has run, as far as we know."""
        return int(self.word["finished"]) if self.word else 0

    def _hear(self) -> None:
        if self._pipe is None:
            return
        try:
            said = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        if not said:
            self._hang_up()
            return
        *lines, self._rest = (self._rest + said).split(b"\n")
        if not lines:
            return
        self.word = json.loads(lines[-1])
        self.heard = time.monotonic()
        self.loaded.set()
        if any(json.loads(line)["state"] != "starting" for line in lines):
            self.ready.set()
        self._on_word()

    def _hang_up(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    # -- what it is told

    def ask(self) -> None:
        """Ask it to stop, once: a second SIGTERM means something else to it."""
        if not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Ask it to give its jobs back at once."""
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
        """Whether it has ended."""
        if self._process.poll() is None:
            return False
        self._hear()
        self._hang_up()
        self.ended.set()
        return True

    @property
    def code(self) -> int:
        """What it ended with: an exit code, or minus the number of a signal."""
        return self._process.returncode if self._process.returncode is not None else 0

    @property
    def how(self) -> str:
        """The same in words."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"
