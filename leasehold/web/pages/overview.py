"""The overview, in the order in which it is read during an incident; and what its scripts fetch."""

import asyncio
from typing import Final

from starlette.responses import JSONResponse, Response

from leasehold.http.ops.schemas import statistics_view
from leasehold.http.problems import Problem
from leasehold.operate import statistics as operate
from leasehold.operate import system, workers
from leasehold.web.attention import HOUR, attention
from leasehold.web.flow import queue_facts
from leasehold.web.pages.lists import SERVER_SECONDS, VERIFIED_SECONDS, planned
from leasehold.web.visit import MOMENT, Visit

_SHOWN: Final = 6
_NO_STORE: Final = {"cache-control": "no-store"}
_SPANS: Final = {900: "15 min", 3600: "1 h", 6 * 3600: "6 h", 24 * 3600: "24 h", 7 * 24 * 3600: "7 d"}
"""Seconds that the charts may reach back."""


async def show(visit: Visit) -> Response:
    """Return the page."""
    queues, dead, errors, running, found_workers, counts = await asyncio.gather(
        queue_facts(visit),
        visit.recall("dead", MOMENT, lambda: visit.run(workers.dead_lately, visit.now, HOUR)),
        visit.recent(workers.errors),
        visit.recent(workers.running),
        visit.recent(workers.listed, workers.MOST_WORKERS),
        visit.if_allowed(MOMENT, system.counts),
    )
    found, schedules, server = await asyncio.gather(
        visit.if_allowed(VERIFIED_SECONDS, system.invariants),
        planned(visit),
        visit.if_allowed(SERVER_SECONDS, system.server),
    )
    searched = [one.row.queue for one in queues if one.row.ready and one.row.paused_at is None]
    unknown = await visit.recent(workers.unknown_kinds, tuple(searched[:5])) if searched else {}  # the worst first
    items = attention(
        now=visit.now, queues=queues, dead=dead, errors=errors, running=running, workers=found_workers,
        unknown=unknown, invariants=found or [], server=server,
    )  # fmt: skip
    fires = [(moment, schedule) for schedule, next_runs in schedules for moment in next_runs]
    return visit.page(
        "overview.html",
        items=items,
        queues=queues,
        groups=sorted(errors, key=lambda group: -group.attempts)[:_SHOWN],
        invariants=found,
        counts=counts,
        fires=sorted(fires, key=lambda one: (one[0], one[1].key))[:_SHOWN],
        live_workers=sum(worker.live for worker in found_workers),
        slots=sum(worker.slots or 0 for worker in found_workers if worker.live),
        span=_span_of(visit, "span"),
        spans=_SPANS,
    )


def _span_of(visit: Visit, name: str) -> int:
    """Return the span that was asked for; an hour if that is none of ours."""
    text = visit.request.query_params.get(name)
    return next((seconds for seconds in _SPANS if str(seconds) == text), 3600)


async def statistics(visit: Visit) -> Response:
    """Return the figures behind the charts, as /ops/statistics returns them."""
    seconds = _span_of(visit, "seconds")

    async def read() -> bytes:
        found = await visit.run(operate.read, seconds=seconds)
        return statistics_view(found).model_dump_json(by_alias=True).encode()

    body = await visit.recall(f"statistics {seconds}", 5.0, read)
    return Response(body, media_type="application/json", headers=_NO_STORE)


async def scoreboard(visit: Visit) -> Response:
    """Return what the demo's header shows."""
    demo = visit.demo
    if demo is None:
        raise Problem("not-found", "this is no demo")
    found = await visit.recall("scoreboard", 1.0, lambda: asyncio.to_thread(demo.scoreboard))
    return JSONResponse(found, headers=_NO_STORE)
