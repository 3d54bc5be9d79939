"""Fires schedules: claims what is due, enqueues its jobs, sleeps until the next due time.

Every worker runs one and none leads. The one that claims a schedule fires it; the others get an ordinary answer and go
on. A scheduler that dies between claim and fire leaves a claim that expires; the next one to claim it decides as of the
same moment and so finds the same due times, and the database makes one job of each.
"""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple
from uuid import uuid4

from leasehold import _failpoints as failpoints
from leasehold._logger import logger_of
from leasehold.db.notify import Listener
from leasehold.db.store import ClaimedSchedule
from leasehold.errors import DatabaseUnavailable, InvalidArgument, JobUnknown, LeaseholdError, LockTimeout, NotClaimable
from leasehold.upkeep.loop import PeriodicLoop, Ports

logger = logger_of(__name__)

_BATCH = 20
"""Schedules per round: few, so that several schedulers share many instead of all trying each."""
_LONGEST_PAUSE = 60.0
"""The safety net under notifications: a change whose notification was lost is seen after this time."""
_LONGEST_UNNOTIFIED = 10.0
"""The same where notifications are not known to arrive, behind a pooler for example."""
_SPREAD = 0.05
"""Seconds over which schedulers that sleep until the same due time wake."""


class DueTimes(NamedTuple):
    """Which due times of a schedule get a job each."""

    due: Sequence[datetime]
    next_run_at: datetime | None  # the first due time after the claim's moment
    missed: int  # how many due times are passed over


def plan(claim: ClaimedSchedule) -> DueTimes:
    """Return what is due, as of the moment when the schedule was first claimed. Reads no clock and no database.

    `skip`: the latest due time, unless it is later than the grace period allows. `once`: the latest, however late.
    `all`: each of them, of very many the latest.
    """
    rule, at = claim.rule, claim.judged_at
    first = claim.next_run_at or rule.after(claim.due_after)
    if first is None or first > at:
        return DueTimes(due=(), next_run_at=first, missed=0)
    runs = rule.runs(first, at, claim.max_missed if claim.missed == "all" else 1)
    due: Sequence[datetime] = runs.latest
    if claim.missed == "skip" and at - due[-1] > claim.grace:
        due = ()
    return DueTimes(due=due, next_run_at=runs.next, missed=runs.count - len(due))


class Scheduler(PeriodicLoop):
    """The loop that fires schedules when they are due. Stopped, it fires first what it has claimed: no other scheduler
    could until the claim expires.
    """

    _PART = "the scheduler"
    _GATHER = _SPREAD

    def __init__(self, ports: Ports, *, listener: Listener | None = None) -> None:
        """Without a listener, rounds are as frequent as where notifications do not arrive."""
        super().__init__(ports)
        self._listener = listener
        self._logged: set[tuple[str, str]] = set()
        # Not the event loop's own: tasks may keep all threads of that busy.
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="leasehold-plan")

    async def round(self) -> float:
        """Fire what is due; return the seconds until something may be due again."""
        passed_over: set[str] = set()
        """Tried in this round: claimed by another scheduler or locked. Those behind them are tried all the same."""
        while True:
            waiting = await self._link.run(self._store.schedule_due(_BATCH + 1 + len(passed_over)))
            waiting = [(key, seconds) for key, seconds in waiting if key not in passed_over]
            due = [key for key, seconds in waiting if seconds <= 0][:_BATCH]
            if not due:
                break
            random.shuffle(due)
            passed_over.update([key for key in due if self._stopping or not await self.fire(key)])
        notified = self._listener is not None and self._listener.arrives
        longest = (_LONGEST_PAUSE if notified else _LONGEST_UNNOTIFIED) * _chance(0.8, 1.0)
        if passed_over:
            longest = 0.5 * _chance(0.2, 1.0)
        return min((seconds for _, seconds in waiting if seconds < longest), default=longest) + _chance(0, _SPREAD)

    async def fire(self, key: str) -> bool:
        """Claim one schedule and fire it. Nothing is logged if another scheduler was faster."""
        self._idle.clear()
        try:
            # Both are sent again until they are answered: the second time they change nothing.
            claim = await self._link.insist(self._store.schedule_claim(key, self._worker_id, uuid4()), self._met)
            failpoints.reach("after-schedule-claim")
            try:
                todo = await asyncio.get_running_loop().run_in_executor(self._planner, plan, claim)
            except OSError as problem:  # of this process, not of the schedule: it is tried again when the claim expires
                self._log_once(key, problem)
                return False
            except Exception as problem:  # noqa: BLE001 (one schedule's rule stops neither the others nor the worker)
                await self._refuse(claim, problem)
                return False
            try:
                call = self._store.schedule_fire(self._worker_id, claim, todo.due, todo.next_run_at, todo.missed)
                runs = await self._link.insist(call, self._met)
                failpoints.reach("after-schedule-fire")
            except InvalidArgument as problem:
                await self._refuse(claim, problem)
                return False
        except (NotClaimable, JobUnknown):
            return False
        except LeaseholdError as problem:
            if isinstance(problem, DatabaseUnavailable) and not isinstance(problem, LockTimeout):
                raise
            self._log_once(key, problem)  # of this schedule only, a lock on its row among others: the others are fired
            return False
        finally:
            self._idle.set()
        jobs = sum(job is not None for _, job in runs)
        self._telemetry.emit("schedule.fired", key=key, jobs=jobs, missed=todo.missed)
        return True

    def _met(self, error: DatabaseUnavailable) -> None:
        if isinstance(error, LockTimeout):  # a lock that another session holds delays this schedule only
            raise error
        self._outage.met(self._PART, error)

    async def _refuse(self, claim: ClaimedSchedule, problem: Exception) -> None:
        """Log, once, that a schedule cannot be evaluated; it is not tried again until the claim expires."""
        self._log_once(claim.key, problem)
        await self._link.run(self._store.schedule_problem(self._worker_id, claim, str(problem)))

    def _log_once(self, key: str, problem: Exception) -> None:
        if (key, str(problem)) not in self._logged:
            self._logged.add((key, str(problem)))
            logger.warning("schedule %r cannot be fired: %s", key, problem)


def _chance(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 (spread, not secrecy)
