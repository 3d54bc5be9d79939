"""Failures in groups, and canary retries of them."""

import asyncio

from starlette.responses import Response

from leasehold.web import facts
from leasehold.web.canaries import canaries
from leasehold.web.visit import Visit


async def show(visit: Visit) -> Response:
    """The page."""
    groups, running = await asyncio.gather(facts.errors(visit), canaries(visit))
    return visit.page("errors.html", groups=groups, canaries=running)
