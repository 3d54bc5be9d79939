"""Pause and resume."""

from starlette.responses import Response

from leasehold.http.ops.callers import check_whole_queue
from leasehold.http.ops.schemas import Words
from leasehold.http.schemas import Asked, Name
from leasehold.web.visit import Visit


class Pause(Asked):
    """Which queue, and why."""

    queue: Name
    reason: Words = ""


class Resume(Asked):
    """Which queue."""

    queue: Name


async def pause(visit: Visit, wanted: Pause) -> Response:
    """Let no job of a queue be claimed."""
    caller = visit.visitor.caller
    check_whole_queue(caller, wanted.queue)
    await visit.ask(visit.store.pause(wanted.queue, wanted.reason.strip() or None, caller.name))
    return visit.done(f"{wanted.queue} is paused; what runs goes on")


async def resume(visit: Visit, wanted: Resume) -> Response:
    """Let them be claimed again."""
    check_whole_queue(visit.visitor.caller, wanted.queue)
    resumed = await visit.ask(visit.store.resume(wanted.queue))
    return visit.done(f"{wanted.queue} goes on" if resumed else f"{wanted.queue} was not paused")
