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
        self.deaths = 0
        self.kills = 0
        """How often it died by SIGKILL."""
        self.news = ""
        """What happened last."""
        self.tell = tell

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Keep it going until cancelled."""
        while True:
            self._process = await self._start()
            code = await self._watch(self._process)
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
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, start_new_session=True, pass_fds=[speaking],
                env={**os.environ, **self._env, VARIABLE: address(speaking)},
            )  # fmt: skip
        finally:
            os.close(speaking)
            previous, self._line = self._line, listening
            if previous is not None:
                os.close(previous)

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        self._said.clear()
        assert process.stderr is not None  # noqa: S101 (it is a pipe)
        with contextlib.suppress(ValueError):  # a line beyond all bounds
            async for line in process.stderr:
                self._said.append(line.decode(errors="replace").rstrip())
        return await process.wait()


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def free_port(first: int) -> int:
    """This port, or the next one that is free."""
    for port in range(first, first + 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ConfigError(f"no port from {first} to {first + 99} is free", hint="end what occupies them")
