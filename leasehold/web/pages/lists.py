"""The pages that show a list: queues and limits, errors and canaries, workers, schedules, the database server."""

import asyncio
from collections import defaultdict
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from leasehold.db.store import Canary, JobRow, StoredSchedule, WorkerRow
from leasehold.operate import canary, limits, schedules, system, workers
from leasehold.web.flow import queue_facts
from leasehold.web.visit import MOMENT, Visit
from leasehold.web.words import number

SERVER_SECONDS: Final = 5.0
"""Seconds for which what was read of the server is shown again."""

VERIFIED_SECONDS: Final = 15.0
"""Seconds for which the result of `verify` is shown again."""

_MOST_CELLS: Final = 200
_STAGES: Final = {1: "the first ten", 2: "a tenth", 3: "all the rest"}


async def show_queues(visit: Visit) -> Response:
    """Return what waits, what runs, what holds the queues up; and the limits."""
    queues, found = await asyncio.gather(queue_facts(visit), visit.recent(limits.listed))
    return visit.page("queues.html", queues=queues, limits=found)


async def show_errors(visit: Visit) -> Response:
    """Return failures in groups, and canary retries of them."""
    groups, canaries = await asyncio.gather(visit.recent(workers.errors), visit.recent(canary.listed, 10))
    return visit.page("errors.html", groups=groups, canaries=[(one, _progress(one)) for one in canaries])


def _progress(canary: Canary) -> str:
    """Return how far a canary retry is, and why it stopped."""
    parts = [
        f"{number(canary.retried)} of {number(canary.total, canary.total_capped)} retried",
        f"{number(canary.succeeded)} succeeded",
        f"{number(canary.failed)} failed again",
    ]
    if canary.state == "running":
        parts = [_STAGES.get(canary.stage, f"stage {canary.stage}"), *parts, f"{number(canary.pending)} under way"]
    return " · ".join([*parts, canary.reason] if canary.reason else parts)


async def show_workers(visit: Visit) -> Response:
    """Return each worker's slots, and the lease of what is in them."""
    found, running = await asyncio.gather(
        visit.recent(workers.listed, workers.MOST_WORKERS), visit.recent(workers.running)
    )
    by_owner: dict[str | None, list[JobRow]] = defaultdict(list)
    for job in running:
        by_owner[job.lease_owner].append(job)
    by_owner.pop(None, None)  # they have finished between two queries
    places = [_slots(worker, by_owner.pop(worker.id, [])) for worker in found]
    gone = [place["worker"] for place in places if not place["worker"].live and not place["jobs"]]
    return visit.page(
        "workers.html",
        live=[place for place in places if place["worker"].live or place["jobs"]],
        silent=[worker for worker in gone if worker.stopped_at is None],
        stopped=[worker for worker in gone if worker.stopped_at is not None][:20],
        orphans=[job for jobs in by_owner.values() for job in jobs],
        capped=len(running) >= workers.MOST_RUNNING,
    )


def _slots(worker: WorkerRow, jobs: list[JobRow]) -> dict[str, Any]:
    """Return a worker with what it runs, and how many slots are free."""
    jobs = sorted(jobs, key=lambda job: (job.claimed_at or job.created_at, str(job.id)))
    free = max(0, min(worker.slots or 0, _MOST_CELLS) - len(jobs))
    return {"worker": worker, "jobs": jobs[:_MOST_CELLS], "free": free, "more": len(jobs[_MOST_CELLS:])}


async def show_schedules(visit: Visit) -> Response:
    """Return what runs again and again."""
    may_change = visit.may_write and not visit.caller.restricted
    return visit.page("schedules.html", schedules=await planned(visit), may_change=may_change)


async def planned(visit: Visit) -> list[tuple[StoredSchedule, list[datetime]]]:
    """Return the schedules, each with its next runs."""

    async def plan() -> list[tuple[StoredSchedule, list[datetime]]]:
        rows = await visit.run(schedules.listed)
        # In a thread: the next runs of cron expressions are computed.
        return await asyncio.to_thread(lambda: [(row, schedules.next_runs(row)) for row in rows])

    return await visit.recall("planned schedules", 2 * MOMENT, plan)


async def show_system(visit: Visit) -> Response:
    """Return the database underneath: what grows, what is held back, whether the invariants hold."""
    found, server = await asyncio.gather(
        visit.if_allowed(VERIFIED_SECONDS, system.invariants), visit.if_allowed(SERVER_SECONDS, system.server)
    )
    return visit.page("system.html", invariants=found, system=server)
