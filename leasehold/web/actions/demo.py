"""The demo's button."""

import asyncio

from starlette.responses import Response

from leasehold.http.problems import Problem
from leasehold.http.schemas import Asked
from leasehold.web.visit import Visit


class Nothing(Asked):
    """Nothing has to be said."""


async def kill(visit: Visit, _: Nothing) -> Response:
    """Kill a worker, and see that no job is lost."""
    if visit.demo is None:
        raise Problem("not-found", "this is no demo")
    killed = await asyncio.to_thread(visit.demo.kill)
    words = ", ".join(f"{name} {value}" for name, value in killed.items())
    return visit.done(f"killed {words}: watch its leases expire", killed=killed)
