"""The queues: what waits, what runs, what holds them up; and the limits."""

import asyncio

from starlette.responses import Response

from leasehold.web import facts
from leasehold.web.flow import queue_facts
from leasehold.web.visit import Visit


async def show(visit: Visit) -> Response:
    """The page."""
    queues, limits = await asyncio.gather(queue_facts(visit), facts.limits(visit))
    return visit.page("queues.html", queues=queues, limits=limits)
