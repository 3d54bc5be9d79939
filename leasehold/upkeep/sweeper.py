"""Takes back expired leases and makes due jobs runnable."""

import asyncio
import random
from functools import partial

from leasehold.db.notify import Listener
from leasehold.upkeep.loop import PeriodicLoop, Ports

_BATCH = 1000
_BUSY_PAUSE = 1.0
"""While jobs run or wait for their time anywhere: a lease may be taken, and lost, between two rounds."""


class Sweeper(PeriodicLoop):
    """The loop that runs `sweep` and `promote` when something is due."""

    _PART = "upkeep"
    _GATHER = 0.1

    def __init__(self, ports: Ports, *, listener: Listener) -> None:
        super().__init__(ports)
        self._listener = listener

    async def round(self) -> float:
        """Do what is due; return the seconds until something may be due again."""
        while True:
            swept, promoted, due = await self._link.run(self._store.upkeep(self._worker_id, _BATCH))
            if swept or promoted:
                self._telemetry.emit("upkeep.done", swept=swept, promoted=promoted)
            if max(swept, promoted) < _BATCH:
                break
        later = partial(asyncio.get_running_loop().call_later, _BUSY_PAUSE, self._work.set)
        self._listener.at_next_job = later if due is None else None
        spread = random.uniform(0.8, 1.0)  # noqa: S311 (spread, not secrecy)
        # A notification ends the longer pause, which is under a minute, or this worker would be taken for dead.
        return 40.0 * spread if due is None else min(due + 0.001, _BUSY_PAUSE * spread)
