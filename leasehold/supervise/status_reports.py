"""Beside a worker, in its process: reports its state to the supervisor, systemd and a file, and limits its memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from leasehold._aio import cancel
from leasehold._logger import logger_of
from leasehold._os_process import STATM, memory
from leasehold.errors import ConfigError
from leasehold.supervise.report_targets import EVERY, HealthFile, SupervisorPipe, Systemd
from leasehold.worker import Worker

logger = logger_of(__name__)

BEAT = 1.0
"""Seconds between two reports to the supervisor, and between two checks of the memory."""


@asynccontextmanager
async def status_reported(
    worker: Worker, *, pipe: SupervisorPipe | None, systemd: Systemd, health: HealthFile | None,
    memory_limit: int | None,  # in bytes
) -> AsyncIterator[Callable[[], None]]:  # fmt: skip
    """Report the worker's state while the block runs; yield what to call, in any thread, when its event loop stalls."""
    reporter = _Reporter(worker, pipe, systemd, health)
    reporter.report_to_supervisor()  # loaded
    reporter.write_file()  # one that cannot be written is found out now
    loops: list[Coroutine[Any, Any, None]] = [reporter.follow()]
    if pipe is not None:
        loops.append(reporter.repeat(BEAT, reporter.report_to_supervisor))
    if health is not None:
        loops.append(reporter.repeat(EVERY, reporter.refresh_file))
    if systemd.watchdog is not None:  # on the worker's event loop: no turn, no ping
        ping = partial(systemd.notify, "WATCHDOG=1")
        ping()
        loops.append(reporter.repeat(systemd.watchdog / 2, ping))
    if memory_limit is not None:
        loops.append(_limit_memory(worker, memory_limit))
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield reporter.stalled
    finally:
        await cancel(*tasks)
        reporter.report_to_supervisor()
        if health is not None:
            health.remove()
        systemd.notify("STOPPING=1")


@dataclass(slots=True)
class _Reporter:
    worker: Worker
    pipe: SupervisorPipe | None
    systemd: Systemd
    health: HealthFile | None
    alone: bool = False

    def report_to_supervisor(self) -> None:
        if self._send():
            return
        if not self.alone:
            self.alone = True
            logger.warning("the supervisor has gone: this worker stops, running jobs have the grace period")
        elif not self.worker.grace_begun.is_set():  # a beat later: here the kernel sends no signal for it
            self.worker.stop()

    def refresh_file(self) -> None:
        try:
            self.write_file()
        except ConfigError as error:
            logger.warning("%s", error)

    def stalled(self) -> None:
        """Write once that the event loop stands still, from a thread: then the file gets old."""
        self._send()
        self.write_file()

    def _send(self) -> bool:
        return self.pipe is None or self.pipe.send(asdict(self.worker.snapshot()))

    def write_file(self) -> None:
        if self.health is not None:
            self.health.write(asdict(self.worker.snapshot()))

    async def follow(self) -> None:
        """Report at once that the worker is ready, and that it stops."""
        for event, state in ((self.worker.started, "READY=1"), (self.worker.stopping, "STOPPING=1")):
            await event.wait()
            self.report_to_supervisor()
            self.refresh_file()
            self.systemd.notify(state)

    async def repeat(self, pause: float, step: Callable[[], None]) -> None:
        """Repeat the step while leases are being renewed."""
        while True:
            await asyncio.sleep(pause)
            if self.worker.sound:
                step()


def check_memory_limit(limit: int) -> None:
    """Refuse a limit that the process exceeds before it has run anything: it would only restart for ever."""
    if not STATM.exists():
        raise ConfigError(f"a memory limit needs {STATM}, which is not here")
    if (used := memory()[1]) >= limit:
        what = f"the {used >> 20} MB of a worker that has run no job"
        raise ConfigError(f"memory limit {limit >> 20} MB is not more than {what}")


async def _limit_memory(worker: Worker, limit: int) -> None:
    while True:
        used = memory()[1]
        if used > limit:
            worker.retire(f"{used >> 20} MB used, {limit >> 20} MB allowed by --memory-limit", hurry=used > 2 * limit)
        await asyncio.sleep(BEAT)
