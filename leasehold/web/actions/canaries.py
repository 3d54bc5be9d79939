"""Retry an error group a few jobs at a time; it stops itself when they fail again."""

from uuid import UUID

from starlette.responses import Response

from leasehold.errors import JobUnknown
from leasehold.http.ops.callers import check_unrestricted
from leasehold.http.ops.schemas import ErrorClass
from leasehold.http.problems import Problem
from leasehold.http.schemas import Asked, Name
from leasehold.web.visit import Visit


class Start(Asked):
    """Which group."""

    kind: Name
    error_class: ErrorClass


class Stop(Asked):
    """Which canary."""

    id: UUID


async def start(visit: Visit, wanted: Start) -> Response:
    """Ten jobs first."""
    caller = visit.visitor.caller
    check_unrestricted(caller, "a canary retry")
    try:
        await visit.ask(visit.store.canary_start(wanted.kind, wanted.error_class, by=caller.name))
    except JobUnknown:
        raise Problem("not-found", "no dead job of this group is left to be retried") from None
    return visit.done("ten jobs are tried first; the rest follows if they succeed")


async def stop(visit: Visit, wanted: Stop) -> Response:
    """No further jobs; those that were retried go on."""
    check_unrestricted(visit.visitor.caller, "a canary retry")
    await visit.ask(visit.store.canary_stop(wanted.id, visit.visitor.caller.name))
    return visit.done("the canary retry is stopped")
