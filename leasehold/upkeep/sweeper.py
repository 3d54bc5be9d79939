"""Takes back expired leases and makes due jobs runnable."""

import asyncio
import random

from leasehold.db.link import Backoff, Link
from leasehold.db.outage import Outage
from leasehold.db.store import Store
from leasehold.errors import LeaseholdError
from leasehold.telemetry import Telemetry

_PART = "upkeep"
_BATCH = 1000
_BUSY_PAUSE = 1.0
"""While jobs run or wait for their time anywhere: a lease may be taken, and lost, between two looks."""
_IDLE_PAUSE = 40.0
"""While nothing runs or waits: a hint wakes us before. Under a minute, or this worker would be taken for dead."""


class Sweeper:
    """The loop that runs `sweep` and `promote` when something is due."""

    def __init__(
        self, worker: str, link: Link, store: Store, telemetry: Telemetry, outage: Outage | None = None
    ) -> None:
        self._worker = worker
        self._link = link
        self._telemetry = telemetry
        self._store = store
        self._outage = outage or Outage()
        self._work = asyncio.Event()
        self._idle = False

    def hint(self, *, due: bool) -> None:
        """Jobs were enqueued. Look again if one waits for its time, or if so far there was nothing at all."""
        if due or self._idle:
            self._work.set()

    async def run(self) -> None:
        """Sweep and promote until cancelled."""
        backoff = Backoff()
        while True:
            self._work.clear()
            try:
                pause = await self._round()
                backoff.reset()
                self._outage.over(_PART)
            except LeaseholdError as error:  # whatever it is: it is tried again, and jobs go on meanwhile
                self._outage.met(_PART, error)
                pause = backoff.pause()
            try:
                async with asyncio.timeout(pause):
                    await self._work.wait()
                await asyncio.sleep(0.1)  # a thousand hints a second must not mean a thousand looks
            except TimeoutError:
                pass

    async def _round(self) -> float:
        """Do what is due; give the seconds until something may be due again."""
        while True:
            swept, promoted, due = await self._link.run(self._store.upkeep(self._worker, _BATCH))
            if swept or promoted:
                self._telemetry.emit("upkeep.done", swept=swept, promoted=promoted)
            if max(swept, promoted) < _BATCH:
                break
        self._idle = due is None
        longest = _IDLE_PAUSE if due is None else _BUSY_PAUSE
        spread = longest * random.uniform(0.8, 1.0)  # noqa: S311 (spread, not secrecy)
        return spread if due is None else min(due + 0.001, spread)
