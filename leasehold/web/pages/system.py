"""The database underneath: what grows, what is held back, whether the invariants hold."""

import asyncio

from starlette.responses import Response

from leasehold.web.invariants import invariants
from leasehold.web.machine import holders, machine
from leasehold.web.visit import Visit


async def show(visit: Visit) -> Response:
    """The page."""
    found, system, held = await asyncio.gather(invariants(visit), machine(visit), holders(visit))
    return visit.page("system.html", invariants=found, system=system, holders=held)
