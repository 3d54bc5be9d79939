"""Jobs: pages of them, one with everything about it, why it is not running; retry, cancel, run now, one or many."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from uuid import UUID

from leasehold.db.call import Call
from leasehold.db.store import Changed, JobDetail, JobPage, LogRow, Obstacle, Store
from leasehold.errors import InvalidArgument, JobUnknown
from leasehold.operate.caller import CONTENT
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import Reason, Refusal, invalid_cursor, read_cursor, write_cursor

_Page = TypeVar("_Page", JobPage, Changed)

STATES: Final = ("queued", "running", "retry", "dead", "success", "created")
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that operators do to jobs."""

    verb: str
    done: str
    """How messages name the change that was made."""
    reason: Reason
    """Why a job is refused whose state does not allow it."""
    refused: str
    """How messages name the refusal."""
    one: Callable[[Store, UUID, str], Call[bool]]
    """Of a job, with the reason."""
    many: Callable[[Store, Mapping[str, Any], int, bool, str, str | None], Call[Changed]] | None = None
    """Of the jobs that match, at most so many; whether they are only counted; with the reason; from a place on."""


RETRY: Final = Change(
    verb="retry", done="retried", reason="wrong state", refused="is not dead",
    one=lambda store, job, _: store.retry(job),
    many=lambda store, wanted, limit, dry_run, _, at: store.retry_many(wanted, limit, at, dry_run=dry_run),
)  # fmt: skip
CANCEL: Final = Change(
    verb="cancel", done="cancelled", reason="finished", refused="has already finished and cannot be cancelled",
    one=lambda store, job, why: store.cancel(job, why),
    many=lambda store, wanted, limit, dry_run, why, at: store.cancel_many(wanted, limit, at, dry_run=dry_run, why=why),
)  # fmt: skip
RUN_NOW: Final = Change(
    verb="run", done="may run now", reason="wrong state", refused="does not wait for its time",
    one=lambda store, job, _: store.run_now(job),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job, why it is not running, and what its attempts logged."""

    detail: JobDetail
    obstacles: list[Obstacle]
    logs: list[LogRow]


async def listed(op: Operator, wanted: Mapping[str, Any], cursor: str | None = None, limit: int = 50) -> JobPage:
    """Return a page of the jobs that match and that the caller may see. It may be short and yet not be the last."""
    if (content := wanted.keys() & CONTENT) and not op.caller.sees_content:
        raise Refusal("forbidden", f"filtering by {min(content)} needs a token with the scope operate")
    return await _continued(cursor, lambda place: page(op, wanted, place, limit))


async def page(op: Operator, wanted: Mapping[str, Any], place: str | None = None, limit: int = 50) -> JobPage:
    """Return the jobs that match behind a place, as the caller may see them."""
    found = await op.ask(op.store.list_jobs(op.caller.narrowed(wanted), place, limit))
    return replace(found, jobs=[op.caller.visible(job) for job in found.jobs])


async def detail(op: Operator, job: UUID) -> JobDetail:
    """Return everything about a job, as the caller may see it."""
    await _check_visible(op, job)
    found = await op.ask(op.store.job_detail(job))
    if found is None:
        raise _unknown(job)
    visible = op.caller.visible
    return replace(visible(found), job=visible(found.job), attempts=[visible(attempt) for attempt in found.attempts])


async def explain(op: Operator, job: UUID) -> list[Obstacle]:
    """Return every reason why the job is not running, the most important first; none: a worker may claim it."""
    await _check_visible(op, job)
    obstacles = await op.ask(op.store.explain(job))
    for number, obstacle in enumerate(obstacles):
        if obstacle.blocker is not None and not await _visible(op, [obstacle.blocker]):
            words = "another job of the same exclusive key is running"
            obstacles[number] = replace(obstacle, blocker=None, detail=words)
    return obstacles


async def shown(op: Operator, job: UUID) -> ShownJob:
    """Return all that there is to show of a job."""
    found = await detail(op, job)
    return ShownJob(detail=found, obstacles=await explain(op, job), logs=await _logs(op, job))


async def logs(op: Operator, job: UUID) -> list[LogRow]:
    """Return the lines that each attempt logged, oldest attempt first; none for callers that do not see content."""
    await _check_visible(op, job)
    found = await _logs(op, job)
    if not found:
        await detail(op, job)  # which raises, if there is no such job
    return found


async def _logs(op: Operator, job: UUID) -> list[LogRow]:
    return await op.ask(op.store.logs(job)) if op.caller.sees_content else []


async def change(op: Operator, how: Change, job: UUID, why: str | None = None) -> bool:
    """Change a job; False: its state does not allow it."""
    await _check_visible(op, job)
    return await op.ask(how.one(op.store, job, why or f"by {op.caller.name}"))


async def changed(op: Operator, how: Change, job: UUID) -> JobDetail:
    """Change a job and return it, or raise a Refusal if its state does not allow that."""
    if not await change(op, how, job):
        raise Refusal(how.reason, f"the job {how.refused}", job=job)
    return await detail(op, job)


async def change_each(op: Operator, how: Change, jobs: Iterable[UUID]) -> int:
    """Change several jobs; return how many were changed. Those that do not exist or may not be seen are left out."""
    count = 0
    for job in await _visible(op, list(jobs)):
        with suppress(JobUnknown):
            count += await op.ask(how.one(op.store, job, f"by {op.caller.name}"))
    return count


async def change_matching(
    op: Operator, how: Change, wanted: Mapping[str, Any], limit: int, *, dry_run: bool, why: str | None = None,
    cursor: str | None = None,
) -> Changed:  # fmt: skip
    """Change the jobs that match, at most `limit`; a dry run only counts them. `cursor`: of the call before."""
    if how.many is None:
        raise ValueError(f"{how.verb} is for one job at a time")
    many, given = how.many, (op.store, op.caller.narrowed(wanted), limit, dry_run, why or f"by {op.caller.name}")
    return await _continued(cursor, lambda place: op.ask(many(*given, place)))


async def _check_visible(op: Operator, job: UUID) -> None:
    if not await _visible(op, [job]):
        raise _unknown(job)


async def _visible(op: Operator, jobs: list[UUID]) -> list[UUID]:
    """Return those that a restricted caller may see, whose queue and kind never change; for any other, all."""
    if not op.caller.restricted:
        return jobs
    found = await op.ask(op.store.statuses(jobs))
    allowed = {row.id for row in found if op.caller.may(queue=row.queue, kind=row.kind)}
    return [job for job in jobs if job in allowed]


def _unknown(job: UUID) -> JobUnknown:
    return JobUnknown(f"no job has the id {job}", hint="was its transaction rolled back, or was it pruned?")


async def _continued(cursor: str | None, ask: Callable[[str | None], Awaitable[_Page]]) -> _Page:
    """Ask from the place of a cursor on, and return the answer with the cursor that continues it."""
    place = None if cursor is None else _place(cursor)
    try:
        found = await ask(place)
    except InvalidArgument:
        if cursor is None:
            raise
        raise invalid_cursor() from None  # the filter was checked before
    return replace(found, cursor=None if found.cursor is None else write_cursor(found.cursor))


def _place(cursor: str) -> str:
    """Return the place that a cursor holds, as SQL wrote it."""
    try:
        place = json.loads(read_cursor(cursor))
    except (ValueError, RecursionError):
        raise invalid_cursor() from None
    if not isinstance(place, list) or not place or not all(isinstance(part, str | int) for part in place):
        raise invalid_cursor()
    return json.dumps(place)
