"""Schedules: run now, on, off."""

from collections.abc import Awaitable
from typing import TypeVar

from starlette.responses import Response

from leasehold.errors import JobUnknown
from leasehold.http.ops.callers import check_unrestricted
from leasehold.http.problems import Problem
from leasehold.http.schemas import Asked, Name
from leasehold.web.visit import Visit

T = TypeVar("T")


class Named(Asked):
    """Which schedule."""

    key: Name


async def run_now(visit: Visit, wanted: Named) -> Response:
    """One job now; the next run stays where it is."""
    _check(visit)
    [job_id] = await visit.parts.database.anew_ids(1)
    await _known(visit.ask(visit.store.schedule_run_now(wanted.key, job_id)))
    return visit.done("a job was enqueued", job=f"/jobs/{job_id}")


async def enable(visit: Visit, wanted: Named) -> Response:
    """Switch it on."""
    _check(visit)
    await _known(visit.ask(visit.store.schedule_enable(wanted.key)))
    return visit.done(f"{wanted.key} is on")


async def disable(visit: Visit, wanted: Named) -> Response:
    """Switch it off."""
    _check(visit)
    await _known(visit.ask(visit.store.schedule_disable(wanted.key)))
    return visit.done(f"{wanted.key} is off")


def _check(visit: Visit) -> None:
    check_unrestricted(visit.visitor.caller, "changing schedules")


async def _known(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except JobUnknown:
        raise Problem("not-found", "no such schedule") from None
