"""What the loops of a worker share: their ports, how they stop, and the repetition of a round of work."""

import asyncio
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from leasehold._aio import within
from leasehold.db.connections.link import Backoff, Link
from leasehold.db.connections.outage import Outage
from leasehold.db.store import Store
from leasehold.errors import LeaseholdError
from leasehold.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Ports:
    """What a loop of a worker is connected to."""

    worker_id: str
    link: Link
    store: Store
    telemetry: Telemetry
    outage: Outage  # one for all loops


class Loop:
    """One loop of a worker; it ends only when it is cancelled."""

    def __init__(self, ports: Ports) -> None:
        self._worker_id, self._link, self._store = ports.worker_id, ports.link, ports.store
        self._telemetry, self._outage = ports.telemetry, ports.outage
        self._work = asyncio.Event()
        self._stopping = False
        self._idle = asyncio.Event()
        """Cleared while something is under way that has to be brought to its end."""
        self._idle.set()

    async def stop(self) -> None:
        """Start nothing more, and return when what is under way has ended."""
        self._stopping = True
        await self._idle.wait()


class PeriodicLoop(Loop):
    """Repeats a round after the pause that the last one returned, or earlier when it is woken.

    An error of the database is logged, and the round is tried again after a while.
    """

    _PART: ClassVar[str]  # what the log calls it
    _GATHER: ClassVar[float] = 0.0  # seconds after it was woken: many notifications cause one round

    def wake(self, _: str = "") -> None:
        """Start a round now: the callback of any notification."""
        self._work.set()

    async def run(self) -> None:
        """Repeat the round until cancelled."""
        backoff = Backoff()
        while True:
            self._work.clear()
            try:
                pause = await self.round()
                backoff.reset()
                self._outage.over(self._PART)
            except LeaseholdError as error:  # of any kind: the next round may succeed, and jobs run meanwhile
                self._outage.met(self._PART, error)
                pause = backoff.pause()
            if await within(pause, self._work):
                await asyncio.sleep(self._GATHER)

    @abstractmethod
    async def round(self) -> float:
        """Do what is due; return the seconds until something may be due again."""
