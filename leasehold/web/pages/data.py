"""What the pages' scripts fetch."""

import asyncio
from typing import Final

from starlette.responses import JSONResponse, Response

from leasehold.http.ops.statistics import statistics_for
from leasehold.http.problems import Problem
from leasehold.web.visit import Visit

_NO_STORE = {"cache-control": "no-store"}
SPANS: Final = ((900, "15 min"), (3600, "1 h"), (6 * 3600, "6 h"), (24 * 3600, "24 h"), (7 * 24 * 3600, "7 d"))
"""Seconds that the charts may reach back."""


def span_of(text: str | None) -> int:
    """The span that was asked for; an hour if that is none of ours."""
    return next((seconds for seconds, _ in SPANS if str(seconds) == text), 3600)


async def statistics(visit: Visit) -> Response:
    """The figures behind the charts: what /ops/statistics tells."""
    seconds = span_of(visit.request.query_params.get("seconds"))
    caller = visit.visitor.caller

    async def look() -> bytes:
        found = await statistics_for(visit.parts.database, caller, seconds=seconds)
        return found.model_dump_json(by_alias=True).encode()

    body = await visit.recall(f"statistics {seconds}", 5.0, look)
    return Response(body, media_type="application/json", headers=_NO_STORE)


async def scoreboard(visit: Visit) -> Response:
    """What the demo's header shows."""
    if visit.demo is None:
        raise Problem("not-found", "this is no demo")
    found = await visit.recall("scoreboard", 1.0, lambda: asyncio.to_thread(visit.demo.scoreboard))  # type: ignore[union-attr]
    return JSONResponse(found, headers=_NO_STORE)
