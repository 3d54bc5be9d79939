"""Who works: each worker's slots, and the lease of what is in them."""

import asyncio
from dataclasses import dataclass

from starlette.responses import Response

from leasehold.db.store import JobRow, WorkerRow
from leasehold.web import facts
from leasehold.web.visit import Visit

_MOST_CELLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A worker with what it runs, and how many of its slots are free."""

    worker: WorkerRow
    jobs: list[JobRow]
    free: int
    more: int
    """Jobs that are not shown."""


async def show(visit: Visit) -> Response:
    """The page."""
    workers, running = await asyncio.gather(facts.workers(visit), facts.running(visit))
    by_owner: dict[str, list[JobRow]] = {}
    for job in running:
        if job.lease_owner is not None:  # else it has ended between two looks
            by_owner.setdefault(job.lease_owner, []).append(job)
    places = [_place(worker, by_owner.pop(worker.id, [])) for worker in workers]
    gone = [place for place in places if not place.worker.live and not place.jobs]
    return visit.page(
        "workers.html",
        live=[place for place in places if place.worker.live or place.jobs],
        silent=[place for place in gone if place.worker.stopped_at is None],
        stopped=[place for place in gone if place.worker.stopped_at is not None][:20],
        orphans=[job for jobs in by_owner.values() for job in jobs],
        capped=len(running) >= facts.MOST_RUNNING,
    )


def _place(worker: WorkerRow, jobs: list[JobRow]) -> Place:
    jobs = sorted(jobs, key=lambda job: (job.claimed_at or job.created_at, str(job.id)))
    shown = jobs[:_MOST_CELLS]
    free = max(0, min(worker.slots or 0, _MOST_CELLS) - len(jobs))
    return Place(worker=worker, jobs=shown, free=free, more=len(jobs) - len(shown))
