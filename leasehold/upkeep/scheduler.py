"""Fires schedules: claims what is due, enqueues its jobs, sleeps until the next due time.

Every worker runs one and none leads. Whoever claims a schedule fires it; the others have an ordinary answer and go on.
A scheduler that dies between claim and fire leaves a claim that expires; whoever takes over judges as of the same
moment and so finds the same due times, and the database makes one job of each.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

from leasehold import failpoints
from leasehold.db.call import Call
from leasehold.db.link import Backoff, Link
from leasehold.db.outage import Outage
from leasehold.db.store import ClaimedSchedule, Store
from leasehold.errors import DatabaseUnavailable, InvalidJob, JobUnknown, LeaseholdError, LockTimeout, NotClaimable
from leasehold.telemetry import Telemetry
from leasehold.upkeep.missed import Plan, plan

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PART = "the scheduler"
_BATCH = 20
"""Schedules looked at in one go: few, so that several schedulers share many instead of all trying each."""
_LONGEST_PAUSE = 60.0
"""The safety net under hints: a change that nobody told us of is seen after this time."""
_LONGEST_WITHOUT_HINTS = 10.0
"""The same where hints are not known to arrive, behind a pooler for example."""
_CROWDED_PAUSE = 0.5
"""After a look at which others were at work on everything that is due."""
_SPREAD = 0.05
"""Seconds over which schedulers that sleep until the same due time wake."""


class Scheduler:
    """The loop that fires schedules when they are due."""

    def __init__(
        self, worker: str, link: Link, store: Store, telemetry: Telemetry, outage: Outage | None = None
    ) -> None:
        self._worker = worker
        self._link = link
        self._store = store
        self._outage = outage or Outage()
        self._telemetry = telemetry
        self._work = asyncio.Event()
        self._told: set[tuple[str, str]] = set()
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.hints_arrive: Callable[[], bool] = lambda: False
        """Whether hints are known to arrive; until then the looks are frequent."""

    def hint(self) -> None:
        """Schedules were changed, or may have been."""
        self._work.set()

    async def stop(self) -> None:
        """Claim no more. What is claimed is fired first: else nobody could until the claim expires."""
        self._stopping = True
        await self._idle.wait()

    async def run(self) -> None:
        """Fire what is due until cancelled."""
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
                await asyncio.sleep(_SPREAD)  # many changes at once are one look
            except TimeoutError:
                pass

    async def _round(self) -> float:
        """Fire what is due; give the seconds until something may be due again."""
        while True:
            waiting = await self._link.run(self._store.schedule_due(_BATCH + 1))
            due = [key for key, seconds in waiting if seconds <= 0][:_BATCH]
            if not due:
                longest = _LONGEST_PAUSE if self.hints_arrive() else _LONGEST_WITHOUT_HINTS
                soonest = min((seconds for _, seconds in waiting), default=longest)
                return min(soonest, longest * _chance(0.8, 1.0)) + _chance(0, _SPREAD)
            random.shuffle(due)
            fired = [await self._fire(key) for key in due if not self._stopping]
            if not any(fired):
                return _CROWDED_PAUSE * _chance(0.2, 1.0)

    async def _fire(self, key: str) -> bool:
        """Claim one schedule and fire it. Somebody else's being quicker is no failure, and nothing is logged."""
        self._idle.clear()
        try:
            # Both are sent again until they are answered: the second time they change nothing.
            claim = await self._insist(self._store.schedule_claim(key, self._worker, uuid4()))
            if failpoints.ARMED:
                failpoints.reach("after-schedule-claim")
            todo = await self._plan(claim)
            if todo is None:
                return False
            try:
                call = self._store.schedule_fire(self._worker, claim, todo.due, todo.next_run_at, todo.missed)
                runs = await self._insist(call)
                if failpoints.ARMED:
                    failpoints.reach("after-schedule-fire")
            except InvalidJob as problem:
                await self._complain(claim, problem)
                return False
        except (NotClaimable, JobUnknown):
            return False
        except LockTimeout as problem:  # its row, or its job's: another session has it
            self._say_once(key, problem)
            return False
        except DatabaseUnavailable:
            raise
        except LeaseholdError as problem:  # of this schedule: the others are fired all the same
            self._say_once(key, problem)
            return False
        finally:
            self._idle.set()
        self._telemetry.emit(
            "schedule.fired", key=key, jobs=sum(job is not None for _, job in runs), missed=todo.missed
        )
        return True

    async def _insist(self, call: Call[T]) -> T:
        """Send it until it is answered; but a lock that another session keeps holds up this schedule only."""
        backoff = Backoff()
        while True:
            try:
                return await self._link.run(call)
            except LockTimeout:
                raise
            except DatabaseUnavailable as error:
                self._outage.met(_PART, error)
                await asyncio.sleep(backoff.pause())

    async def _plan(self, claim: ClaimedSchedule) -> Plan | None:
        try:
            return await asyncio.to_thread(plan, claim)
        except Exception as problem:  # noqa: BLE001 (one schedule's rule must stop neither the others nor the worker)
            await self._complain(claim, problem)
            return None

    async def _complain(self, claim: ClaimedSchedule, problem: Exception) -> None:
        """Say, once, that a schedule makes no sense to us; the claim holds us off until it expires."""
        self._say_once(claim.key, problem)
        await self._link.run(self._store.schedule_problem(self._worker, claim, str(problem)))

    def _say_once(self, key: str, problem: Exception) -> None:
        if (key, str(problem)) not in self._told:
            self._told.add((key, str(problem)))
            logger.warning("schedule %r cannot be fired: %s", key, problem)


def _chance(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 (spread, not secrecy)
