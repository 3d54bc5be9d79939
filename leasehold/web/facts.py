"""What the pages look at: each look is bounded, and shared by all who look within a moment."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from leasehold.db.store import ErrorGroup, JobRow, LimitRow, QueueRow, Rate, StoredSchedule, WorkerRow
from leasehold.errors import ConfigError
from leasehold.web.visit import Visit

MOMENT: Final = 1.0
"""Seconds for which most answers are good."""

CHECKED: Final = 15.0
"""Seconds for which the invariants' verdict is good."""

MOST_RUNNING: Final = 1000
MOST_WORKERS: Final = 200
_MOST_WAITING: Final = 100
_MOST_DEAD: Final = 100


def _narrow(visit: Visit) -> dict[str, Any]:
    caller = visit.visitor.caller
    return {
        "queues": None if caller.queues is None else sorted(caller.queues),
        "kinds": None if caller.kinds is None else sorted(caller.kinds),
    }


async def counts(visit: Visit) -> dict[str, tuple[int, bool]] | None:
    """Jobs by state; None for those who may see some queues or kinds only."""
    if visit.visitor.restricted:
        return None
    found: dict[str, tuple[int, bool]] = await visit.recall("counts", MOMENT, lambda: visit.ask(visit.store.counts()))
    return found


async def queues(visit: Visit) -> list[QueueRow]:
    """The queues."""
    return await visit.recall("queues", MOMENT, lambda: visit.ask(visit.store.queues(**_narrow(visit))))


async def rates(visit: Visit) -> list[Rate]:
    """How fast the queues fill and empty."""
    return await visit.recall("rates", 2 * MOMENT, lambda: visit.ask(visit.store.rates(**_narrow(visit))))


async def errors(visit: Visit) -> list[ErrorGroup]:
    """Recent failures in groups."""
    return await visit.recall("errors", 2 * MOMENT, lambda: visit.ask(visit.store.errors(**_narrow(visit))))


async def workers(visit: Visit) -> list[WorkerRow]:
    """The workers that were seen last, as far as they serve what the visitor may know of."""
    found = await visit.recall("workers", MOMENT, lambda: visit.ask(visit.store.workers(MOST_WORKERS)))
    caller = visit.visitor.caller
    return [row for row in found if _serves(row.queues, caller.queues) and _serves(row.kinds, caller.kinds)]


def _serves(names: Sequence[str] | None, allowed: frozenset[str] | None) -> bool:
    return allowed is None or names is None or not allowed.isdisjoint(names)


async def running(visit: Visit) -> list[JobRow]:
    """Jobs that run, at most a thousand."""

    async def look() -> list[JobRow]:
        page = await visit.ask(visit.store.list_jobs({"state": "running"} | visit.narrow, None, MOST_RUNNING))
        return list(page.jobs)

    return await visit.recall("running", MOMENT, look)


async def unknown_kinds(visit: Visit, queues: Sequence[str]) -> dict[str, list[str]]:
    """Of the jobs that wait in these queues, looked at up to a hundred in each, the kinds that no live worker knows."""

    async def look() -> dict[str, list[str]]:
        live = [worker for worker in await workers(visit) if worker.live]
        if not live or len(live) == MOST_WORKERS or any(worker.kinds is None for worker in live):
            return {}  # none lives, which is said elsewhere; or one that is not seen here may know them
        known = {kind for worker in live for kind in worker.kinds or ()}
        found = {}
        for queue in queues:
            fitting = {"state": "queued", "queue": queue} | visit.narrow
            page = await visit.ask(visit.store.list_jobs(fitting, None, _MOST_WAITING))
            found[queue] = sorted({job.kind for job in page.jobs} - known)
        return found

    return await visit.recall(f"unknown kinds in {json.dumps(list(queues))}", 2 * MOMENT, look)


async def dead_lately(visit: Visit, since: timedelta) -> tuple[list[JobRow], bool]:
    """Jobs that died lately, latest first, cancelled ones aside; True: there may be more."""

    async def look() -> tuple[list[JobRow], bool]:
        page = await visit.ask(visit.store.list_jobs({"state": "dead"} | visit.narrow, None, _MOST_DEAD))
        recent = [job for job in page.jobs if job.finished_at is not None and job.finished_at > visit.now - since]
        found = [job for job in recent if job.reason != "cancelled"]
        return found, len(recent) == _MOST_DEAD

    return await visit.recall("dead", 2 * MOMENT, look)


async def limits(visit: Visit) -> list[LimitRow]:
    """The limits that the visitor may know of."""
    found: list[LimitRow] = await visit.recall("limits", MOMENT, lambda: visit.ask(visit.store.limits()))
    if not visit.visitor.restricted:
        return found
    caller = visit.visitor.caller
    known = {"queue": caller.queues or frozenset(), "kind": caller.kinds or frozenset()}
    return [row for row in found if row.name in known.get(row.scope, frozenset())]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """A schedule and its next runs."""

    row: StoredSchedule
    next_runs: list[datetime]


async def schedules(visit: Visit) -> list[ScheduleFacts]:
    """The schedules, each with its next five runs."""

    async def look() -> list[ScheduleFacts]:
        rows = await visit.ask(visit.store.schedule_list())
        mine = [row for row in rows if visit.visitor.caller.may(queue=row.queue, kind=row.kind)]
        # Reckoning with calendars takes its time.
        return await asyncio.to_thread(lambda: [ScheduleFacts(row=row, next_runs=_next_runs(row)) for row in mine])

    return await visit.recall("schedules", 2 * MOMENT, look)


def _next_runs(row: StoredSchedule) -> list[datetime]:
    try:
        return row.upcoming(5)
    except ConfigError:  # SQL took a rule that makes no sense; `problem` tells
        return []
