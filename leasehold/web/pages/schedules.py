"""What runs again and again."""

from starlette.responses import Response

from leasehold.web import facts
from leasehold.web.visit import Visit


async def show(visit: Visit) -> Response:
    """The page."""
    found = await facts.schedules(visit)
    return visit.page(
        "schedules.html", schedules=found, may_change=visit.visitor.may_write and not visit.visitor.restricted
    )
