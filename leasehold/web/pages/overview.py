"""The overview, in the order in which one looks at it during an incident."""

import asyncio
from datetime import datetime
from itertools import islice

from starlette.responses import Response

from leasehold.web import facts
from leasehold.web.attention import HOUR, attention
from leasehold.web.flow import queue_facts
from leasehold.web.invariants import invariants
from leasehold.web.machine import holder_words, machine
from leasehold.web.pages.data import SPANS, span_of
from leasehold.web.visit import Visit

_SHOWN = 6

_LOOKED = 5
"""Queues that need attention in which the overview looks for kinds that no worker knows."""


async def show(visit: Visit) -> Response:
    """The page."""
    (queues, dead, errors, running, workers), (found, schedules, counts, holder, system) = await asyncio.gather(
        asyncio.gather(
            queue_facts(visit),
            facts.dead_lately(visit, HOUR),
            facts.errors(visit),
            facts.running(visit),
            facts.workers(visit),
        ),
        asyncio.gather(
            invariants(visit), facts.schedules(visit), facts.counts(visit), holder_words(visit), machine(visit)
        ),
    )
    looked = [one.row.queue for one in queues if one.tone in {"bad", "warn"} and one.row.paused_at is None][:_LOOKED]
    unknown = await facts.unknown_kinds(visit, looked) if looked else {}
    items = attention(
        now=visit.now, queues=queues, dead=dead, errors=errors, running=running, workers=workers,
        unknown=unknown, invariants=found, holder=holder, standby=system is not None and system.standby,
    )  # fmt: skip
    return visit.page(
        "overview.html",
        items=items,
        queues=queues,
        groups=sorted(errors, key=lambda group: -group.attempts)[:_SHOWN],
        invariants=found,
        counts=counts,
        fires=_fires(schedules),
        live_workers=sum(worker.live for worker in workers),
        span=span_of(visit.request.query_params.get("span")),
        spans=SPANS,
        slots=sum(worker.slots or 0 for worker in workers if worker.live),
    )


def _fires(schedules: list[facts.ScheduleFacts]) -> list[tuple[datetime, facts.ScheduleFacts]]:
    """The next runs of all schedules."""
    every = ((moment, schedule) for schedule in schedules for moment in schedule.next_runs)
    return list(islice(sorted(every, key=lambda one: (one[0], one[1].row.key)), _SHOWN))
