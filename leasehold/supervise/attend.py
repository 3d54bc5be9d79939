"""Beside a worker, in its process: says how it is doing to whoever asked, and watches its memory."""

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from leasehold.errors import ConfigError
from leasehold.supervise.health import EVERY, HealthFile
from leasehold.supervise.systemd import Systemd
from leasehold.supervise.tether import Tether
from leasehold.worker import Worker

logger = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between two words to the supervisor, and between two looks at the memory."""

_STATM = Path("/proc/self/statm")


@asynccontextmanager
async def attended(
    worker: Worker,
    *,
    tether: Tether | None = None,
    systemd: Systemd | None = None,
    health: HealthFile | None = None,
    memory_limit: int | None = None,
) -> AsyncIterator[None]:
    """Attend to the worker while the block runs. `memory_limit` is in bytes."""
    attendant = _Attendant(worker, tether, systemd or Systemd(), health)
    attendant.say()  # loaded; also, a health file that cannot be written is found out now
    worker.on_standstill = attendant.standstill
    loops: list[Coroutine[Any, Any, None]] = [attendant.moments(), attendant.beats(), attendant.reports()]
    if systemd is not None and systemd.watchdog is not None:
        loops.append(attendant.pings(systemd.watchdog / 2))
    if memory_limit is not None:
        loops.append(_watch_memory(worker, memory_limit))
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        attendant.end()


class _Attendant:
    def __init__(self, worker: Worker, tether: Tether | None, systemd: Systemd, health: HealthFile | None) -> None:
        self._worker = worker
        self._tether = tether
        self._systemd = systemd
        self._health = health

    def say(self) -> None:
        word = self._worker.snapshot().as_dict()
        if self._tether is not None:
            self._tell(word)
        if self._health is not None:
            self._health.write(word)

    def standstill(self) -> None:
        """From a thread, once: the event loop stands still, and says nothing itself. Then the file grows old."""
        word = self._worker.snapshot().as_dict()
        if self._tether is not None:
            self._tether.send(word)
        if self._health is not None:
            self._health.write(word)

    def end(self) -> None:
        if self._tether is not None:
            self._tell(self._worker.snapshot().as_dict())
        if self._health is not None:
            self._health.remove()
        self._systemd.stopping()

    async def moments(self) -> None:
        """What must not wait for the next beat."""
        await self._worker.started.wait()
        with contextlib.suppress(ConfigError):
            self.say()
        self._systemd.ready()
        await self._worker.stopping.wait()
        self._systemd.stopping()
        with contextlib.suppress(ConfigError):
            self.say()

    async def beats(self) -> None:
        while self._tether is not None:
            await asyncio.sleep(BEAT)
            if self._worker.sound:
                self._tell(self._worker.snapshot().as_dict())

    async def reports(self) -> None:
        while self._health is not None:
            await asyncio.sleep(EVERY)
            if not self._worker.sound:
                continue
            try:
                self._health.write(self._worker.snapshot().as_dict())
            except ConfigError as error:
                logger.warning("%s", error)

    async def pings(self, pause: float) -> None:
        """This runs on the worker's event loop: no turn, no ping."""
        while True:
            if self._worker.sound:
                self._systemd.alive()
            await asyncio.sleep(pause)

    def _tell(self, word: dict[str, Any]) -> None:
        """Without a supervisor there is nobody to work for, also where the kernel sends no signal for it."""
        if self._tether is not None and not self._tether.send(word) and not self._worker.stopping.is_set():
            logger.warning("the supervisor is gone")
            self._worker.stop()


def resident() -> int:
    """How much memory this process occupies, in bytes."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def check_memory_limit(limit: int) -> None:
    """A limit that the process exceeds before it has run anything would only make it restart for ever."""
    if not _STATM.exists():
        raise ConfigError(f"a memory limit needs {_STATM}, which is not here")
    if (used := resident()) >= limit:
        raise ConfigError(
            f"memory limit {limit >> 20} MB is not more than the {used >> 20} MB of a worker that has run no job"
        )


async def _watch_memory(worker: Worker, limit: int, look: Callable[[], int] = resident) -> None:
    while True:
        used = look()
        if used > limit:
            worker.retire(f"{used >> 20} MB used, {limit >> 20} MB allowed")
        if used > 2 * limit:
            worker.hurry()
        await asyncio.sleep(BEAT)
