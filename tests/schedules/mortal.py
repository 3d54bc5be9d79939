"""A scheduler process that dies: before a call is sent, while the database works on it, after it was answered.

Or it stands still between claim and fire until another one has taken over, and then continues.
"""

import asyncio
import os
import random
import signal
import threading
from typing import TypeVar

from leasehold.db.call import Call
from leasehold.db.connections.link import Link
from leasehold.db.connections.outage import Outage
from leasehold.db.store import Store
from leasehold.telemetry import Telemetry
from leasehold.upkeep.loop import Ports
from leasehold.upkeep.scheduler import Scheduler

T = TypeVar("T")

NAME = "leasehold mortal scheduler"
POINTS = [f"{when} {call}" for call in ("claim", "fire") for when in ("before", "during", "after")]


class MortalLink(Link):
    """Kills its own process now and then, and writes down where."""

    def __init__(self, dsn: str, log: str, chance: float) -> None:
        super().__init__(dsn, name=NAME)
        self._log = log
        self._chance = chance

    async def run(self, call: Call[T]) -> T:
        what = next((name for name in ("claim", "fire") if f"schedule_{name}_v1" in call.sql), None)
        if what is None:
            return await super().run(call)
        self._perhaps(f"before {what}")
        if what == "fire" and random.random() < 5 * self._chance:
            await asyncio.sleep(0.2)  # nearly five minutes of the compressed day
        if random.random() < self._chance:
            threading.Timer(random.random() * 0.01, self._die, [f"during {what}"]).start()
        answer = await super().run(call)
        self._perhaps(f"after {what}")
        return answer

    def _perhaps(self, point: str) -> None:
        if random.random() < self._chance:
            self._die(point)

    def _die(self, point: str) -> None:
        file = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{point}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def main(dsn: str, log: str, chance: float) -> None:
    """Schedule until death."""
    random.seed()
    name = f"mortal:{os.getpid()}:{random.getrandbits(32):x}"

    async def run() -> None:
        link = MortalLink(dsn, log, chance)
        await Scheduler(Ports(name, link, Store("leasehold"), Telemetry(), Outage())).run()

    asyncio.run(run())
