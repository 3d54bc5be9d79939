"""Parts that run in processes of their own and are started again when they die: of `leasehold dev` and `demo`."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping

from leasehold.errors import ConfigError
from leasehold.supervise.tether import VARIABLE, address

_KEPT = 40
"""Lines of what a process said last."""

_LONGEST = 10_000
"""Bytes of a line that are shown and kept. What is longer comes in pieces: it must never stop being read."""

_LAST_WORDS = 1.0
"""Seconds in which to read what a process said before it ended; a fork of it may hold its standard error open."""


class Part:
    """A part in a process of its own, started again when it dies: kill it and see.

    It does not outlive this process, however that ends.
    """

    def __init__(
        self,
        what: str,
        arguments: list[str],
        *,
        tell: Callable[[str], None],
        hear: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
        pause: float = 0.5,
    ) -> None:
        self._what = what
        self._command = [sys.executable, "-m", "leasehold", *arguments]
        self._env = dict(env or {})
        self._pause = pause
        self._process: asyncio.subprocess.Process | None = None
        self._line: int | None = None
        self._said: deque[str] = deque(maxlen=_KEPT)
        self._replacing = False
        self.deaths = 0
        self.kills = 0
        """How often it died by SIGKILL."""
        self.news = ""
        """What happened last."""
        self.tell = tell
        self.hear = hear
        """Called with each line that it prints or logs."""

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Keep it going until cancelled."""
        while True:
            self._process = await self._start()
            code = await self._watch(self._process)
            if self._replacing:
                self._replacing = False
                continue
            self.deaths += 1
            self.kills += code == -signal.SIGKILL
            self.news = f"{self._what} {self._process.pid} ended ({_how(code)}); starting another"
            if code not in {0, -signal.SIGKILL}:
                self.news = "\n".join([self.news, *self._said])
            self.tell(self.news)
            await asyncio.sleep(self._pause)

    async def stop(self) -> None:
        """End it in good order."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
        if self._line is not None:
            os.close(self._line)
            self._line = None

    def replace(self) -> None:
        """End it in good order, for another to be started at once."""
        if self.pid is not None and self._process is not None:
            self._replacing = True
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _start(self) -> asyncio.subprocess.Process:
        listening, speaking = os.pipe()
        try:
            # A session of its own: Ctrl-C is for us, who stop it in good order. The pipe is a supervisor's: what holds
            # its other end has this process for its master, and ends when that does. Nobody has to read it.
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True, pass_fds=[speaking],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env, VARIABLE: address(speaking)},
            )  # fmt: skip
        finally:
            os.close(speaking)
            previous, self._line = self._line, listening
            if previous is not None:
                os.close(previous)

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        """Read all that it says, whatever that is: a pipe that is not read would stop it."""
        self._said.clear()
        reading = asyncio.create_task(self._read(process))
        try:
            code = await process.wait()
            await asyncio.wait([reading], timeout=_LAST_WORDS)
            return code
        finally:
            reading.cancel()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 (it is a pipe)
        rest = b""
        while chunk := await process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._heard(line)
        if rest:
            self._heard(rest)

    def _heard(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), _LONGEST):
            text = line[start : start + _LONGEST].decode(errors="replace").rstrip()
            self._said.append(text)
            if self.hear is not None:
                self.hear(text)


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def free_port(first: int) -> int:
    """This port, or the next one that is free."""
    for port in range(first, first + 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ConfigError(f"no port from {first} to {first + 99} is free", hint="end what occupies them")
