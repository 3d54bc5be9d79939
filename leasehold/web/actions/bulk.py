"""All jobs that match a filter: counted first, then changed some at a time."""

from typing import Annotated

from pydantic import Field
from starlette.responses import JSONResponse, Response

from leasehold.db.store import Changed
from leasehold.http.ops.schemas import CancelFilter, RetryFilter
from leasehold.http.schemas import Asked
from leasehold.web.pages.jobs import chosen
from leasehold.web.visit import Visit

_COUNTED = 10_000
_AT_ONCE = 200
"""So many that one statement ends well within the time that a request has."""


class Matching(Asked):
    """Which jobs, by the names of the URL; and whether they are only counted."""

    filter: dict[str, str]
    dry_run: bool
    most: Annotated[int, Field(ge=1, le=_AT_ONCE)] = _AT_ONCE


async def retry(visit: Visit, wanted: Matching) -> Response:
    """Give the dead jobs that match another chance."""
    fitting = chosen(RetryFilter, wanted.filter) | visit.narrow
    limit = _COUNTED if wanted.dry_run else wanted.most
    return _told(visit, wanted, await visit.ask(visit.store.retry_many(fitting, limit, dry_run=wanted.dry_run)))


async def cancel(visit: Visit, wanted: Matching) -> Response:
    """Stop the jobs that match and have not ended."""
    fitting = chosen(CancelFilter, wanted.filter) | visit.narrow
    limit = _COUNTED if wanted.dry_run else wanted.most
    why = f"by {visit.visitor.caller.name}"
    call = visit.store.cancel_many(fitting, limit, dry_run=wanted.dry_run, why=why)
    return _told(visit, wanted, await visit.ask(call))


def _told(visit: Visit, wanted: Matching, found: Changed) -> Response:
    document = {"matched": found.matched, "changed": found.changed, "capped": found.capped}
    if wanted.dry_run:
        return JSONResponse({"message": f"{found.matched:,} match", **document}, headers={"cache-control": "no-store"})
    return visit.done(f"{found.changed:,} jobs changed", **document)
