"""/ops/workers, /ops/errors, /ops/stats: what is going on."""

from collections.abc import Sequence

from fastapi import APIRouter, Request

from leasehold.db.store import WorkerRow
from leasehold.http.auth import Caller
from leasehold.http.ops.callers import Looker, check_unrestricted
from leasehold.http.ops.pages import Page, page_of
from leasehold.http.ops.schemas import (
    ErrorGroupView,
    ErrorList,
    Figure,
    Stats,
    WorkerList,
    WorkerView,
)
from leasehold.http.problems import responses
from leasehold.http.runtime import runtime

router = APIRouter(tags=["ops"])


@router.get(
    "/workers",
    operation_id="listWorkers",
    summary="The workers",
    response_model=WorkerList,
    responses=responses("not-found", "invalid-request"),
)
async def list_workers(request: Request, caller: Looker, page: Page) -> WorkerList:
    """The latest thousand, those seen last first, whether they live or not."""
    parts = await runtime(request)
    views = [_worker(caller, row) for row in await parts.database.arun(parts.database.store.workers(1000))]
    known = [view for view in views if view.queues != [] and view.kinds != []]
    shown, cursor = page_of(known, page, lambda view: view.id)
    return WorkerList(workers=shown, cursor=cursor)


@router.get(
    "/errors",
    operation_id="listErrors",
    summary="Recent failures, in groups",
    response_model=ErrorList,
    responses=responses("not-found", "invalid-request"),
)
async def list_errors(request: Request, caller: Looker, page: Page) -> ErrorList:
    """The latest ten thousand recorded attempts, grouped by job type and class of error."""
    parts = await runtime(request)
    queues = None if caller.queues is None else sorted(caller.queues)
    kinds = None if caller.kinds is None else sorted(caller.kinds)
    found = await parts.database.arun(parts.database.store.errors(queues=queues, kinds=kinds))
    whole = "operate" in caller.scopes
    shown, cursor = page_of(found, page, lambda group: f"{group.kind} {group.error_class}")
    return ErrorList(
        cursor=cursor,
        errors=[
            ErrorGroupView(
                job_type=group.kind,
                error_class=group.error_class,
                attempts=group.attempts,
                jobs=group.jobs,
                first_seen=group.first_seen,
                last_seen=group.last_seen,
                last_job=group.last_job,
                last_message=group.last_message if whole else None,
            )
            for group in shown
        ],
    )


@router.get("/stats", operation_id="getStats", summary="A few figures", response_model=Stats)
async def stats(request: Request, caller: Looker) -> Stats:
    """Jobs by state, what ended in the last minute, live workers and their slots. For tokens without restrictions."""
    check_unrestricted(caller, "what concerns everything")
    parts = await runtime(request)
    found = await parts.database.arun(parts.database.store.stats())
    return Stats(figures={name: Figure(value=value, capped=capped) for name, (value, capped) in found.items()})


def _worker(caller: Caller, row: WorkerRow) -> WorkerView:
    fields = {name: getattr(row, name) for name in WorkerView.model_fields if name not in ("queues", "kinds")}
    return WorkerView(**fields, queues=_common(caller.queues, row.queues), kinds=_common(caller.kinds, row.kinds))


def _common(allowed: frozenset[str] | None, names: Sequence[str] | None) -> list[str] | None:
    """What of a worker's queues or kinds the caller may know."""
    if allowed is None or names is None:
        return None if names is None else list(names)
    return [name for name in names if name in allowed]
