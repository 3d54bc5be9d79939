"""Claims as many jobs as there is room for, as soon as there is room or a notification of work."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from leasehold import _failpoints as failpoints
from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.db.connections.link import Backoff
from leasehold.db.notify import Listener, Prober
from leasehold.db.sqlstates import of_one_row
from leasehold.db.store import ClaimedJob, IdMaker
from leasehold.errors import LeaseholdError
from leasehold.task import Task
from leasehold.upkeep.loop import Loop, Ports
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.options import Queues, WorkerOptions
from leasehold.worker.runner import Runner, Slots

logger = logger_of(__name__)

_LARGEST_CLAIM = 1000
"""Where there is a backlog. The jobs of a claim start when all of them have been claimed."""
_FIRST_CLAIM = 100
"""Where there is none: so that the first jobs need not wait for later ones."""
_PART = "claiming"


class Claimer(Loop):
    """The loop that turns free slots into leased jobs. Stopped, it waits for a claim under way."""

    def __init__(
        self, ports: Ports, *, tasks: Mapping[str, Task[..., Any]], options: WorkerOptions, slots: Slots,
        runner: Runner, keeper: LeaseKeeper, listener: Listener, prober: Prober,
    ) -> None:  # fmt: skip
        super().__init__(ports)
        self._slots = slots
        self._runner = runner
        self._keeper = keeper
        self._listener = listener
        self._prober = prober
        self._kinds = sorted(tasks)
        self._stale = min(task.options.lease for task in tasks.values()) / 2
        self._poll = options.poll
        self._queues = QueuePicker(options.queues)
        self._cursor = ClaimCursor()
        self._ids = IdMaker()
        self._most = _FIRST_CLAIM
        self.claiming_since: float | None = None
        """Since when a claim is under way without an answer; None: none is."""
        self._polling = False
        """Whether the next claim was caused by the poll interval, not by a notification."""

    def wake(self, queue: str) -> None:
        """Claim soon: this queue has work; an empty name: any may."""
        self._queues.wake(queue)
        self._work.set()

    async def run(self) -> None:
        """Claim until cancelled."""
        await self._keeper.ready.wait()
        while True:
            await self._slots.wait_for_room()
            self._work.clear()  # before the claim: a notification during it must not be lost
            wanted = min(self._slots.room, self._most)
            queues = self._queues.next()
            lanes = self._cursor.lanes(queues, monotonic())
            taken = await self._claim(queues, wanted, lanes)
            if taken and self._polling:
                self._prober.doubt()
            self._polling = False
            self._most = min(2 * self._most, _LARGEST_CLAIM) if taken == wanted else _FIRST_CLAIM
            # A claim that continued where the last one ended does not know about jobs before that: claim again.
            end_reached = lanes is None and taken < wanted
            if not self._queues.took(queues, taken, end_reached=end_reached):
                await self._wait_for_work()

    async def _claim(self, queues: Sequence[str] | None, wanted: int, lanes: str | None) -> int:
        """Claim once, repeated under its own id until it is answered: the answer may be lost, the jobs never."""
        if self._stopping:
            await asyncio.Event().wait()
        self.claiming_since = monotonic()
        self._idle.clear()
        try:
            jobs, away, asked = await self._answered(queues, wanted, lanes)
            if jobs is None:
                return 0  # what it may have taken expires with its lease
            self.claiming_since = None
            if self._outage.noted:
                self._outage.over(_PART)
            if failpoints.ARMED and jobs:
                failpoints.reach("after-claim")
            self._cursor.note(queues, jobs, wanted=wanted, began=asked, ended=monotonic(), from_start=lanes is None)
            if jobs and self._telemetry.heard:  # before they start, which may be at once
                self._telemetry.emit("jobs.claimed", jobs=len(jobs), wanted=wanted)
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
        """Return the jobs, whether the database was away, since when the leases may run; None: the worker stops.

        Every second try goes job by job: if the claim fails, or does not end, because of one of them, that finds it.
        After half the shortest lease a claim is not repeated any more, because its leases would be half over: the next
        try has a new id, and what the old one took is released when that is answered.
        """
        claim_id, each, away, backoff = self._next_id(), False, False, Backoff()
        asked, sent = monotonic(), False
        while True:
            if not sent or monotonic() - asked > self._stale:
                claim_id, asked, sent = self._next_id() if sent else claim_id, monotonic(), False
            try:
                if failpoints.ARMED:
                    failpoints.reach("before-claim")
                call = self._store.claim(self._worker_id, queues, self._kinds, wanted, claim_id, lanes=lanes, each=each)
                jobs = await self._link.run(call)
                if jobs or each or not away:
                    return jobs, away, asked
                # A claim that took nothing stores no claim_id: an earlier try that the network has delayed could still
                # take jobs. claim_each always stores it.
                claim_id, asked, sent, each = self._next_id(), monotonic(), False, True
            except LeaseholdError as error:  # whatever it is: another worker would meet it too
                sent = sent or getattr(error, "sent", True)
                each = not each
                self._outage.met(_PART, error)
                if each and of_one_row(error):  # one by one, to find the job at fault
                    continue
                if not away:
                    self._telemetry.emit("database.away", part="claimer", error=str(error))
                away = True
                if self._stopping:
                    return None, away, asked
                await asyncio.sleep(backoff.pause())

    def _next_id(self) -> UUID:
        """Return ids in the order of the claims: the database refuses one that comes after a later one."""
        return UUID(self._ids.make(1)[0])

    async def _release_unknown(self, jobs: Sequence[ClaimedJob]) -> None:
        """Release the jobs that this worker owns in the database and does not know of: the database was away."""
        try:
            owned = await self._link.run(self._store.owned(self._worker_id))
            # What has ended is kept by no keeper after a long outage; its report may still count.
            known = self._keeper.holds_token, self._slots.outbox.has_report_of
            unknown = [token for token in owned if not any(knows(token) for knows in known)]
            if unknown:
                logger.warning("giving back %d jobs that came while the database was away", len(unknown))
                await self._link.run(self._store.release(self._worker_id, unknown))
        except LeaseholdError as error:
            logger.warning("away again, %d jobs in hand: %s", len(jobs), error)  # their leases expire

    async def _wait_for_work(self) -> None:
        # Behind a pooler no notification may arrive.
        poll = self._poll if self._listener.arrives else min(1.0, self._poll)
        try:
            async with asyncio.timeout(poll * random.uniform(0.9, 1.0)):  # noqa: S311 (spread, not secrecy)
                await self._work.wait()
        except TimeoutError:
            self._polling = True
            self._queues.wake("")


class ClaimCursor:
    """Remembers the last job of each queue and kind that a claim returned, so that the next one continues there.

    Claimed jobs leave dead entries in the index of runnable jobs, which vacuum cannot remove while a session holds an
    old snapshot: every claim from the start reads all of them again. One that continues after the last job does not.
    What it cannot see (more urgent and retried jobs, and queues that had nothing so far) is found by the next scan from
    the start, which comes the sooner the cheaper such scans are.
    """

    def __init__(self) -> None:
        self._places: dict[Sequence[str] | None, tuple[float, dict[tuple[str, str], ClaimedJob]]] = {}
        """By queues: when to scan from the start again, and the last job that was claimed of each queue and kind."""

    def lanes(self, queues: Sequence[str] | None, now: float) -> str | None:
        """Return the argument `lanes` for a claim from these queues; None: scan from the start."""
        until, last = self._places.get(queues, (0.0, {}))
        if now >= until:
            return None
        jobs = last.values()
        return json.dumps([{"queue": j.queue, "kind": j.kind, "priority": j.priority, "id": j.id} for j in jobs])

    def note(self, queues: Sequence[str] | None, jobs: Sequence[ClaimedJob], *, wanted: int, began: float, ended: float,
             from_start: bool) -> None:  # fmt: skip
        """Remember what a claim returned. One that returned less than was wanted has reached the end: start again."""
        if len(jobs) < wanted:
            self._places.pop(queues, None)
            return
        if from_start:  # after a full scan of t seconds, skip full scans for 9 t, so that they cost at most 10 %
            self._places[queues] = (ended + min(1.0, 9.0 * (ended - began)), {})
        if queues in self._places:
            self._places[queues][1].update({(job.queue, job.kind): job for job in jobs})  # the last of each stays


class QueuePicker:
    """Decides which queues the next claim is for: all at once, or with weights one at a time (stride scheduling).

    Each queue's clock advances by 1/weight for every job taken from it, and the one furthest behind goes next: with
    weights 3 and 1 three of four jobs come from the first, and neither ever starves. A queue found empty is left out
    until a notification that it has work, and then starts level with the others instead of catching up.
    """

    def __init__(self, queues: Queues) -> None:
        self._all = None if queues is None else tuple(queues)
        self._weights = dict(queues) if isinstance(queues, Mapping) else {}
        self._clocks = dict.fromkeys(self._weights, 0.0)
        self._empty: set[str] = set()

    def next(self) -> tuple[str, ...] | None:
        """Return the queues to claim from; None: all that exist."""
        if not self._weights:
            return self._all
        ready = [queue for queue in self._weights if queue not in self._empty]
        return (min(ready or self._weights, key=self._clocks.__getitem__),)

    def took(self, queues: Sequence[str] | None, jobs: int, *, end_reached: bool) -> bool:
        """Note what a claim returned; return whether there is still a queue that may have work."""
        if not self._weights or queues is None:
            return not end_reached
        (queue,) = queues
        self._clocks[queue] += jobs / self._weights[queue]
        if end_reached:
            self._empty.add(queue)
        return len(self._empty) < len(self._weights)

    def wake(self, queue: str) -> None:
        """Note that this queue has work; an empty name: any of them may."""
        for name in [queue] if queue else list(self._empty):
            if name in self._empty:
                self._empty.discard(name)
                awake = [self._clocks[other] for other in self._weights if other not in self._empty and other != name]
                self._clocks[name] = max(self._clocks[name], min(awake, default=0.0))
