"""Workers: what they run, what failed or died lately, what waits for a worker that knows its kind."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from leasehold.db.store import ErrorGroup, JobRow, WorkerRow
from leasehold.operate.jobs import page
from leasehold.operate.operator import Operator

MOST_RUNNING: Final = 1000
MOST_WORKERS: Final = 200
_MOST_DEAD: Final = 100


async def listed(op: Operator, limit: int = 200) -> list[WorkerRow]:
    """Return the workers seen last that serve what the caller may see; their other queues and kinds are left out."""
    known = []
    for row in await op.ask(op.store.workers(limit)):
        queues, kinds = _common(op.caller.queues, row.queues), _common(op.caller.kinds, row.kinds)
        if queues != [] and kinds != []:
            known.append(replace(row, queues=queues, kinds=kinds))
    return known


async def errors(
    op: Operator, *, queue: str | None = None, kind: str | None = None, scan: int = 10_000
) -> list[ErrorGroup]:
    """Return the latest recorded attempts, grouped by kind and error class; texts only for callers that see content."""
    found = await op.ask(op.store.errors(**op.caller.narrow(queue=queue, kind=kind), scan=scan))
    return [op.caller.visible(group) for group in found]


def _common(allowed: frozenset[str] | None, names: list[str] | None) -> list[str] | None:
    return names if allowed is None or names is None else [name for name in names if name in allowed]


async def running(op: Operator) -> list[JobRow]:
    """Return jobs that run, at most a thousand, the lease that ends first first."""
    return (await page(op, {"state": "running"}, limit=MOST_RUNNING)).jobs


async def dead_lately(op: Operator, now: datetime, within: timedelta) -> tuple[list[JobRow], bool]:
    """Return jobs that died lately, latest first, without cancelled ones; True: there may be more."""
    dead = await page(op, {"state": "dead"}, limit=_MOST_DEAD)
    recent = [job for job in dead.jobs if job.finished_at is not None and job.finished_at > now - within]
    return [job for job in recent if job.reason != "cancelled"], len(recent) == _MOST_DEAD


async def unknown_kinds(op: Operator, queues: Sequence[str]) -> dict[str, list[str]]:
    """Return, of up to a hundred waiting jobs in each queue, the kinds that no live worker knows."""
    seen = await listed(op, MOST_WORKERS)
    live = [worker for worker in seen if worker.live]
    if not live or len(live) == MOST_WORKERS or any(worker.kinds is None for worker in live):
        return {}  # no worker lives, which is shown elsewhere; or one that is not listed may know them
    known = {kind for worker in live for kind in worker.kinds or ()}
    found = {}
    for queue in queues:
        waiting = await page(op, {"state": "queued", "queue": queue}, limit=100)
        found[queue] = sorted({job.kind for job in waiting.jobs} - known)
    return found
