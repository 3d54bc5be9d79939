"""Asks for as many jobs as there is room for, the moment there is room or somebody says there is work."""

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from leasehold.db.link import Backoff, Link
from leasehold.db.store import Store
from leasehold.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from leasehold.worker.runner import Runner
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

_LARGEST_CLAIM = 500


class Claimer:
    """The loop that turns free slots into leased jobs."""

    def __init__(self, worker: "Worker", link: Link, store: Store, runner: "Runner") -> None:
        self._worker = worker
        self._link = link
        self._store = store
        self._runner = runner
        self._kinds = sorted(worker.app.tasks)
        self._work = asyncio.Event()
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self) -> None:
        """There may be work."""
        self._work.set()

    async def run(self) -> None:
        """Claim until cancelled."""
        while True:
            await self._runner.wait_for_room()
            self._work.clear()  # before the claim: a hint that comes during it must not be lost
            wanted = min(self._runner.room, _LARGEST_CLAIM)
            taken = await self._claim(wanted)
            if taken < wanted:
                await self._wait_for_work()

    async def stop(self) -> None:
        """Take no more. A claim under way is waited for, so that what it took can be given back."""
        self._stopping = True
        await self._idle.wait()

    async def _claim(self, wanted: int) -> int:
        """One claim, repeated under its own id until it is answered: the answer may be lost, the jobs never."""
        if self._stopping:
            await asyncio.Event().wait()
        call = self._store.claim(self._worker.id, self._worker.options.queues, self._kinds, wanted, uuid4())
        backoff = Backoff()
        asked = time.monotonic()  # before the first try: the lease may run since then
        self._idle.clear()
        try:
            while True:
                try:
                    jobs = await self._link.run(call)
                    break
                except DatabaseUnavailable as error:
                    logger.warning("claiming waits for the database: %s", error)
                    if self._stopping:
                        return 0  # what it may have taken expires with its lease
                    await asyncio.sleep(backoff.pause())
            self._runner.accept(jobs, asked)
            return len(jobs)
        finally:
            self._idle.set()

    async def _wait_for_work(self) -> None:
        pause = self._worker.options.poll * random.uniform(0.8, 1.0)  # noqa: S311 (spread, not secrecy)
        try:
            async with asyncio.timeout(pause):
                await self._work.wait()
        except TimeoutError:
            pass
