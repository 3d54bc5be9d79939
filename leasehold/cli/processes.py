"""The processes of `leasehold dev` and `leasehold demo`, which are started again when they die."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leasehold._aio import cancel
from leasehold.errors import ConfigError
from leasehold.supervise.report_targets import SupervisorPipe

_LONGEST = 10_000
"""Bytes of a line that are shown and kept. A longer one is cut into pieces, so that reading never stops."""


@dataclass(eq=False)
class Part:
    """A process that is started again when it dies, and does not outlive this process, however that ends."""

    what: str
    arguments: list[str]
    on_death: Callable[[str], None]
    on_line: Callable[[str], None] | None = None  # called with each line that it prints or logs
    env: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.5  # seconds until another is started
    deaths: int = 0
    kills: int = 0  # deaths by SIGKILL
    news: str = ""
    _process: Process | None = None
    _pipe: int | None = None
    _output: deque[str] = field(default_factory=lambda: deque(maxlen=40))  # lines that are shown when it dies
    _replacing: bool = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Keep it running until cancelled."""
        while True:
            self._process = await self._start()
            code = await self._watch(self._process)
            if self._replacing:
                self._replacing = False
                continue
            self.deaths += 1
            self.kills += code == -signal.SIGKILL
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self.news = f"{self.what} {self._process.pid} ended ({how}); starting another"
            if code not in {0, -signal.SIGKILL}:
                self.news = "\n".join([self.news, *self._output])
            self.on_death(self.news)
            await asyncio.sleep(self.pause)

    async def stop(self) -> None:
        """End it in good order."""
        self.send(signal.SIGTERM)
        if self._process is not None:
            await self._process.wait()
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def replace(self) -> None:
        """End it in good order, for another to be started at once."""
        if self.pid is not None:
            self._replacing = True
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _start(self) -> Process:
        reading, writing = os.pipe()
        try:
            # A session of its own: Ctrl-C is for this process, which then stops the part in good order. The pipe is a
            # supervisor's: the part ends when this process does. It does not have to be read.
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "leasehold", *self.arguments, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
                start_new_session=True, pass_fds=[writing],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.env, **SupervisorPipe.environment(writing)},
            )  # fmt: skip
        finally:
            os.close(writing)
            previous, self._pipe = self._pipe, reading
            if previous is not None:
                os.close(previous)

    async def _watch(self, process: Process) -> int:
        """Read all output, since a full pipe would stop the process; return its exit code."""
        self._output.clear()
        reading = asyncio.create_task(self._read(process))
        try:
            code = await process.wait()
            await asyncio.wait([reading], timeout=1.0)  # a fork may hold its standard error open
            return code
        finally:
            reading.cancel()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101 (it is a pipe)
        rest = b""
        while chunk := await process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._keep(line)
        if rest:
            self._keep(rest)

    def _keep(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), _LONGEST):
            text = line[start : start + _LONGEST].decode(errors="replace").rstrip()
            self._output.append(text)
            if self.on_line is not None:
                self.on_line(text)


async def run_parts(parts: Sequence[Part], loops: list[Coroutine[Any, Any, None]], stopping: asyncio.Event) -> None:
    """Run the parts and the loops until `stopping` is set or one of them fails; then stop the parts."""
    waiting = asyncio.create_task(stopping.wait())
    tasks = [asyncio.create_task(loop) for loop in (*(part.run() for part in parts), *loops)]
    try:
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiting}:
            task.result()
    finally:
        await cancel(waiting, *tasks)
        await asyncio.gather(*(part.stop() for part in parts))


def free_port(first: int) -> int:
    """Return this port, or the next one that is free."""
    for port in range(first, first + 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ConfigError(f"no port from {first} to {first + 99} is free", hint="end what occupies them")
