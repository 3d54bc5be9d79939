"""Asks for as many jobs as there is room for, the moment there is room or somebody says there is work."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from leasehold import failpoints
from leasehold.db.link import Backoff, Link
from leasehold.db.sqlstates import of_one_row
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import LeaseholdError
from leasehold.ids import IdMaker
from leasehold.worker.cursor import Cursor
from leasehold.worker.queues import QueuePicker

if TYPE_CHECKING:
    from leasehold.db.outage import Outage
    from leasehold.worker.runner import Runner
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

_LARGEST_CLAIM = 1000
"""Where there is a backlog. The jobs of a claim start when all of them have been claimed."""

_FIRST_CLAIM = 100
"""Where there is none: so that those who come early need not wait for those who come late."""

_PART = "claiming"

_POLL_WITHOUT_HINTS = 1.0
"""Seconds between looks while LISTEN does not work, behind a pooler for example."""


class Claimer:
    """The loop that turns free slots into leased jobs."""

    def __init__(self, worker: "Worker", link: Link, store: Store, runner: "Runner", outage: "Outage") -> None:
        self._worker = worker
        self._outage = outage
        self._link = link
        self._store = store
        self._runner = runner
        self._kinds = sorted(worker.app.tasks)
        self._stale = min((task.options.lease for task in worker.app.tasks.values()), default=15.0) / 2
        self._queues = QueuePicker(worker.options.queues)
        self._cursor = Cursor()
        self._ids = IdMaker()
        self._most = _FIRST_CLAIM
        self._work = asyncio.Event()
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.claiming_since: float | None = None
        """Since when a claim is under way without an answer; None: none is."""
        self._unhinted = False
        self.on_surprise: Callable[[], None] = lambda: None
        """Called when a look found work though no hint had come."""
        self.hints_arrive: Callable[[], bool] = lambda: False
        """Whether hints are known to arrive; until then the poll is short."""

    def hint(self, queue: str) -> None:
        """This queue has work; an empty name: any may."""
        self._queues.hint(queue)
        self._work.set()

    async def run(self) -> None:
        """Claim until cancelled."""
        while True:
            await self._runner.wait_for_room()
            self._work.clear()  # before the claim: a hint that comes during it must not be lost
            wanted = min(self._runner.room, self._most)
            queues = self._queues.next()
            lanes = self._cursor.lanes(queues, time.monotonic())
            taken = await self._claim(queues, wanted, lanes)
            if taken and self._unhinted:
                self.on_surprise()
            self._unhinted = False
            self._most = min(2 * self._most, _LARGEST_CLAIM) if taken == wanted else _FIRST_CLAIM
            # A claim that went on from where the last one ended says nothing about what is before: look again.
            end_reached = lanes is None and taken < wanted
            if not self._queues.took(queues, taken, end_reached=end_reached):
                await self._wait_for_work()

    async def stop(self) -> None:
        """Take no more. A claim under way is waited for, so that what it took can be given back."""
        self._stopping = True
        await self._idle.wait()

    async def _claim(self, queues: Sequence[str] | None, wanted: int, lanes: str | None) -> int:
        """One claim, repeated under its own id until it is answered: the answer may be lost, the jobs never."""
        if self._stopping:
            await asyncio.Event().wait()
        self.claiming_since = time.monotonic()
        self._idle.clear()
        try:
            jobs, away, asked = await self._answered(queues, wanted, lanes)
            if jobs is None:
                return 0  # what it may have taken expires with its lease
            self.claiming_since = None
            self._outage.over(_PART)
            if failpoints.ARMED and jobs:
                failpoints.reach("after-claim")
            self._cursor.note(
                queues, jobs, wanted=wanted, began=asked, ended=time.monotonic(), from_start=lanes is None
            )
            if jobs:  # before they start, which may be at once
                self._worker.app.telemetry.emit("jobs.claimed", jobs=len(jobs), wanted=wanted)
            self._runner.accept(jobs, asked)
            if away:
                await self._release_unknown(jobs)
            return len(jobs)
        finally:
            self.claiming_since = None
            self._idle.set()

    async def _answered(
        self, queues: Sequence[str] | None, wanted: int, lanes: str | None
    ) -> tuple[list[ClaimedJob] | None, bool, float]:
        """What the claim gave, whether the database was away, since when its leases may run; None: the worker stops.

        Every second try goes job by job: if the claim fails, or does not end, because of one of them, that finds it.
        One that may have been carried out long ago is not asked about any more: its leases would be half over. What it
        took is given back when the next one is answered.
        """
        claim_id, each, away, backoff = self._next_id(), False, False, Backoff()
        asked, sent = time.monotonic(), False
        while True:
            if not sent or time.monotonic() - asked > self._stale:
                claim_id, asked, sent = self._next_id() if sent else claim_id, time.monotonic(), False
            try:
                if failpoints.ARMED:
                    failpoints.reach("before-claim")
                call = self._store.claim(self._worker.id, queues, self._kinds, wanted, claim_id, lanes=lanes, each=each)
                jobs = await self._link.run(call)
                if jobs or each or not away:
                    return jobs, away, asked
                # What took nothing was not noted, and an earlier try that the network holds back could still take jobs.
                # One by one a claim is always noted.
                claim_id, asked, sent, each = self._next_id(), time.monotonic(), False, True
            except LeaseholdError as error:  # whatever it is: another worker would meet it too
                sent = sent or getattr(error, "sent", True)
                each = not each
                self._outage.met(_PART, error)
                if each and of_one_row(error):  # one by one, to find the job at fault
                    continue
                if not away:
                    self._worker.app.telemetry.emit("database.away", part="claimer", error=str(error))
                away = True
                if self._stopping:
                    return None, away, asked
                await asyncio.sleep(backoff.pause())

    def _next_id(self) -> UUID:
        """In the order of the claims: the database refuses one that comes after a later one."""
        return UUID(self._ids.make(1)[0])

    async def _release_unknown(self, jobs: Sequence[ClaimedJob]) -> None:
        """The database was away: give back what it thinks is ours and we know nothing of."""
        try:
            owned = await self._link.run(self._store.owned(self._worker.id))
            unknown = [token for token in owned if not self._runner.knows(token)]
            if unknown:
                logger.warning("giving back %d jobs that came while the database was away", len(unknown))
                await self._link.run(self._store.release(self._worker.id, unknown))
        except LeaseholdError as error:
            logger.warning("away again, %d jobs in hand: %s", len(jobs), error)  # their leases expire

    async def _wait_for_work(self) -> None:
        poll = self._worker.options.poll if self.hints_arrive() else min(_POLL_WITHOUT_HINTS, self._worker.options.poll)
        try:
            async with asyncio.timeout(poll * random.uniform(0.9, 1.0)):  # noqa: S311 (spread, not secrecy)
                await self._work.wait()
        except TimeoutError:
            self._unhinted = True
            self._queues.hint("")
