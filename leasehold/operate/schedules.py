"""Schedules: list, make, change, switch on and off, run now. Changes are for callers without restrictions."""

from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

from leasehold.db.call import Call
from leasehold.db.store import StoredSchedule
from leasehold.errors import ConfigError, JobUnknown
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import unknown
from leasehold.schedule import Schedule

T = TypeVar("T")

WHAT: Final = "changing schedules"


async def listed(op: Operator, key: str | None = None) -> list[StoredSchedule]:
    """Return the schedules, by key, or the one of a key; content only for callers that see it."""
    rows = await op.ask(op.store.schedule_list(key))
    return [op.caller.visible(row) for row in rows if op.caller.may(queue=row.queue, kind=row.kind)]


async def one(op: Operator, key: str) -> StoredSchedule:
    """Return one schedule."""
    for row in await listed(op, key):
        return row
    raise unknown("schedule")


async def put(op: Operator, schedule: Schedule) -> StoredSchedule:
    """Make a schedule, or change it to be like this one."""
    await _change(op, op.store.schedule_put(schedule))
    return await one(op, schedule.key)


async def enable(op: Operator, key: str, *, from_now: bool = False) -> bool:
    """Switch it on; False: it was on. What came due meanwhile is missed, or forgotten if it counts from now."""
    return await _change(op, op.store.schedule_enable(key, from_now=from_now))


async def disable(op: Operator, key: str) -> bool:
    """Switch it off until an operator switches it on; False: it was off."""
    return await _change(op, op.store.schedule_disable(key))


async def run_now(op: Operator, key: str, job: str, idempotency_key: str | None = None) -> UUID:
    """Enqueue one job of it now, under this id unless the idempotency key has one; the next run stays."""
    return await _change(op, op.store.schedule_run_now(key, job, idempotency_key))


async def remove(op: Operator, key: str) -> None:
    """Remove it. Its jobs stay; code that declares it makes it anew."""
    if not await _change(op, op.store.schedule_remove(key)):
        raise unknown("schedule")


def next_runs(row: StoredSchedule) -> list[datetime]:
    """Return the next five due times, which take time to compute."""
    try:
        return row.upcoming(5)
    except ConfigError:  # SQL took a rule that makes no sense; the row's `problem` says so
        return []


async def _change(op: Operator, call: Call[T]) -> T:
    op.caller.check_unrestricted(WHAT)
    try:
        return await op.ask(call)
    except JobUnknown:
        raise unknown("schedule") from None
