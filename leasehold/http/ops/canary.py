"""/ops/canaries: the dead jobs of one type and class of error, retried with care."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Request
from pydantic import ConfigDict, Field

from leasehold.db.pool import Database
from leasehold.db.store import Canary
from leasehold.errors import JobUnknown
from leasehold.http.auth import Caller
from leasehold.http.body import body_of, read_model
from leasehold.http.ops.bulk import BODY_PROBLEMS
from leasehold.http.ops.callers import Looker, Operator, uuid_of
from leasehold.http.ops.pages import CURSOR, Page, PageQuery, page_of
from leasehold.http.ops.schemas import ErrorClass
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import runtime
from leasehold.http.schemas import Asked, Moment, Name, View

router = APIRouter(tags=["ops"])

CanaryId = Annotated[
    str,
    Path(
        alias="canaryId",
        description="The canary's id.",
        openapi_examples={"a canary": {"value": "019a5f2e-7c11-7abc-8def-0123456789ab"}},
        json_schema_extra={"format": "uuid"},
    ),
]


class CanaryRequest(Asked):
    """Which group."""

    model_config = ConfigDict(strict=True, title="CanaryRequest")

    job_type: Name = Field(description="Of the dead jobs.")
    error_class: ErrorClass | None = Field(
        None, description="Of their latest recorded attempt, as in /ops/errors; null: those without one."
    )


class CanaryView(View):
    """A canary retry: ten jobs, then a tenth of them, then all; it stops itself when too many fail again."""

    id: UUID
    job_type: str
    error_class: str | None
    queues: list[str] | None = Field(description="Only jobs of these; null: all.")
    state: Literal["running", "stopped", "done"]
    stage: int = Field(description="1: the first ten; 2: a tenth of them; 3: all the rest.")
    total: int = Field(description="Dead jobs found at the start, counted up to 10,000.")
    total_capped: bool
    retried: int
    succeeded: int
    failed: int = Field(description="That failed again.")
    pending: int = Field(description="Retried, with no outcome yet.")
    reason: str | None = Field(description="Why it was stopped.")
    started_by: str | None
    created_at: Moment
    updated_at: Moment
    finished_at: Moment | None


class CanaryList(View):
    """The canaries, the latest first."""

    canaries: list[CanaryView]
    cursor: str | None = Field(description=CURSOR)


@router.get(
    "/canaries",
    operation_id="listCanaries",
    summary="The canary retries",
    response_model=CanaryList,
    responses=responses("not-found", "invalid-request"),
)
async def list_canaries(request: Request, caller: Looker, page: Page) -> CanaryList:
    """The latest first."""
    parts = await runtime(request)
    return await canaries_for(parts.database, caller, page)


@router.post(
    "/canaries",
    operation_id="startCanary",
    summary="Retry a group of dead jobs with care",
    status_code=202,
    response_model=CanaryView,
    responses=responses("not-found", *BODY_PROBLEMS),
    openapi_extra=body_of(CanaryRequest, {"jobType": "SEND_EMAIL", "errorClass": "ConnectionError"}),
)
async def start_canary(request: Request, caller: Operator) -> CanaryView:
    """Ten jobs first. Where one is running for the group already, the answer is that one. 404: nothing to retry."""
    parts = await runtime(request)
    wanted = await read_model(request, CanaryRequest)
    return await start_for(parts.database, caller, wanted.job_type, wanted.error_class)


@router.post(
    "/canaries/{canaryId}/stop",
    operation_id="stopCanary",
    summary="Stop a canary retry",
    response_model=CanaryView,
    responses=responses("not-found"),
)
async def stop_canary(request: Request, caller: Operator, canary_id: CanaryId) -> CanaryView:
    """No more jobs are retried; those that were, run. Stopping one that has ended changes nothing."""
    parts = await runtime(request)
    return await stop_for(parts.database, caller, uuid_of(canary_id, "canary"))


async def canaries_for(database: Database, caller: Caller, page: PageQuery | None = None) -> CanaryList:
    """Those that the caller may see."""
    found = [row for row in await database.arun(database.store.canaries(1000)) if _knows(caller, row)]
    shown, cursor = page_of(found, page or PageQuery(cursor=None, limit=200), lambda row: str(row.id))
    return CanaryList(canaries=[_view(row) for row in shown], cursor=cursor)


async def start_for(database: Database, caller: Caller, kind: str, error_class: str | None) -> CanaryView:
    """Start one for as many queues as the caller may change."""
    if caller.kinds is not None and kind not in caller.kinds:
        raise Problem("not-found", "no such job type")
    queues = None if caller.queues is None else sorted(caller.queues)
    try:
        started = await database.arun(database.store.canary_start(kind, error_class, by=caller.name, queues=queues))
    except JobUnknown:
        raise Problem("not-found", "no dead job of that type has that class of error") from None
    return await _one(database, caller, started)


async def stop_for(database: Database, caller: Caller, canary: UUID) -> CanaryView:
    """Stop it, if it is the caller's business."""
    await _one(database, caller, canary)
    await database.arun(database.store.canary_stop(canary, caller.name))
    return await _one(database, caller, canary)


async def _one(database: Database, caller: Caller, canary: UUID) -> CanaryView:
    for row in await database.arun(database.store.canaries(1, canary)):
        if _knows(caller, row):
            return _view(row)
    raise Problem("not-found", "no such canary, or it is for queues that the token does not know")


def _knows(caller: Caller, row: Canary) -> bool:
    """A token for some queues knows of the canaries for these, and of no others."""
    if caller.kinds is not None and row.kind not in caller.kinds:
        return False
    return caller.queues is None or (row.queues is not None and set(row.queues) <= caller.queues)


def _view(row: Canary) -> CanaryView:
    fields = {name: getattr(row, name) for name in CanaryView.model_fields if name != "job_type"}
    return CanaryView(**fields, job_type=row.kind)
