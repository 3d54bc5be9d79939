"""Some jobs, chosen one by one."""

from collections.abc import Awaitable, Callable
from typing import Annotated
from uuid import UUID

from pydantic import Field
from starlette.responses import Response

from leasehold.http.ops.callers import visible
from leasehold.http.problems import Problem
from leasehold.http.schemas import Asked
from leasehold.web.visit import Visit


class Chosen(Asked):
    """The jobs."""

    ids: Annotated[list[str], Field(min_length=1, max_length=200)]


async def retry(visit: Visit, wanted: Chosen) -> Response:
    """Give dead jobs another chance."""
    return await _each(visit, wanted, "retried", lambda job: visit.ask(visit.store.retry(job)))


async def cancel(visit: Visit, wanted: Chosen) -> Response:
    """Stop jobs for good."""
    why = f"by {visit.visitor.caller.name}"
    return await _each(visit, wanted, "cancelled", lambda job: visit.ask(visit.store.cancel(job, why)))


async def run_now(visit: Visit, wanted: Chosen) -> Response:
    """Let jobs that wait for their time wait no longer."""
    return await _each(visit, wanted, "may run now", lambda job: visit.ask(visit.store.run_now(job)))


async def _each(visit: Visit, wanted: Chosen, done: str, act: Callable[[UUID], Awaitable[bool]]) -> Response:
    changed = 0
    for text in wanted.ids:
        try:
            job = await visible(visit.parts, visit.visitor.caller, text)
            changed += await act(job.id)
        except Problem:
            if len(wanted.ids) == 1:
                raise
    left = len(wanted.ids) - changed
    if not changed:
        raise Problem("illegal-transition", "nothing was changed: no job is in a state that allows it")
    message = f"{changed} job{'s' if changed > 1 else ''} {done}"
    return visit.done(message + (f"; {left} left as they are: their state does not allow it" if left else ""))
