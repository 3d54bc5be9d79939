"""/ops/jobs: pages of jobs, one job, why it does not run, what it said; retry, cancel, run now."""

import base64
import binascii
import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from leasehold.db.store import Obstacle
from leasehold.errors import InvalidJob
from leasehold.http.auth import Caller
from leasehold.http.ops.callers import JobId, Looker, Operator, narrowed, visible
from leasehold.http.ops.schemas import (
    AttemptLog,
    ErrorClass,
    Explanation,
    JobDetailView,
    JobFilter,
    JobList,
    JobLogs,
    LogLine,
    ObstacleView,
    OpsJob,
    State,
    attempt_view,
    job_view,
)
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import Runtime, runtime
from leasehold.http.schemas import Key, Name, Tag, When

router = APIRouter(tags=["ops"])


class JobQuery(JobFilter):
    """Which jobs, and which page of them. In a query a field is there or it is not: there is no null."""

    kind: Name | SkipJsonSchema[None] = Field(None, description="Jobs of this type.")
    queue: Name | SkipJsonSchema[None] = Field(None, description="Jobs of this queue.")
    tag: Tag | SkipJsonSchema[None] = Field(None, description="Jobs with this tag.")
    exclusive_key: Key | SkipJsonSchema[None] = Field(None, description="Jobs with this exclusive key.")
    error_class: ErrorClass | SkipJsonSchema[None] = Field(
        None, description="Jobs whose latest recorded attempt ended with this class of error."
    )
    created_after: When | SkipJsonSchema[None] = Field(None, description="Created at this moment or later.")
    created_before: When | SkipJsonSchema[None] = Field(None, description="Created before this moment.")
    state: Annotated[list[State], Field(max_length=6)] | SkipJsonSchema[None] = Field(
        None, description="In this state; may be given several times."
    )
    cursor: Annotated[str, Field(max_length=10_000)] | SkipJsonSchema[None] = Field(
        None, description="From the page before, with the same filter."
    )
    limit: int = Field(50, ge=1, le=1000, description="At most so many jobs.")


@router.get(
    "/jobs",
    operation_id="listJobs",
    summary="Jobs, a page at a time",
    response_model=JobList,
    responses=responses("not-found", "invalid-request"),
)
async def list_jobs(request: Request, caller: Looker, query: Annotated[JobQuery, Query()]) -> JobList:
    """Dead and successful jobs: latest finished first. Queued ones: in claim order. Running ones: the lease that ends
    first first. All others: latest created first. Each call does a bounded amount of work, so a page may be short, even
    empty, without being the last.
    """
    parts = await runtime(request)
    filter_ = query.fields() | narrowed(caller)
    call = parts.database.store.list_jobs(filter_, _opened(query.cursor), query.limit)
    try:
        page = await parts.database.arun(call)
    except InvalidJob:
        if query.cursor is None:
            raise
        raise _nowhere() from None  # the filter has been checked
    return JobList(jobs=[OpsJob(**job_view(job)) for job in page.jobs], cursor=_closed(page.cursor))


@router.get(
    "/jobs/{jobId}",
    operation_id="inspectJob",
    summary="Everything about a job",
    response_model=JobDetailView,
    responses=responses("not-found"),
)
async def job_detail(request: Request, caller: Looker, job_id: JobId) -> Response:
    """What it carries and the text of its errors only with the scope operate."""
    parts = await runtime(request)
    return await _detail(parts, caller, (await visible(parts, caller, job_id)).id)


@router.get(
    "/jobs/{jobId}/explain",
    operation_id="explainJob",
    summary="Why is this job not running?",
    response_model=Explanation,
    responses=responses("not-found"),
)
async def explain(request: Request, caller: Looker, job_id: JobId) -> Explanation:
    """Every reason that holds at this moment, the one to look at first on top."""
    parts = await runtime(request)
    job = await visible(parts, caller, job_id)
    reasons = await parts.database.arun(parts.database.store.explain(job.id))
    return Explanation(job_id=job.id, reasons=[await _obstacle(parts, caller, reason) for reason in reasons])


@router.get(
    "/jobs/{jobId}/logs",
    operation_id="readJobLogs",
    summary="What a job's task said",
    response_model=JobLogs,
    responses=responses("not-found"),
)
async def logs(request: Request, caller: Operator, job_id: JobId) -> JobLogs:
    """The lines that each attempt logged, oldest attempt first."""
    parts = await runtime(request)
    job = await visible(parts, caller, job_id)
    found = await parts.database.arun(parts.database.store.logs(job.id))
    attempts = [AttemptLog(attempt=log.attempt, lines=[_line(line) for line in log.lines]) for log in found]
    return JobLogs(job_id=job.id, attempts=attempts)


@router.post(
    "/jobs/{jobId}/retry",
    operation_id="retryJob",
    summary="Give a dead job another chance",
    response_model=JobDetailView,
    responses=responses("not-found", "illegal-transition"),
)
async def retry(request: Request, caller: Operator, job_id: JobId) -> Response:
    """It is queued again with a fresh budget of failures."""
    parts = await runtime(request)
    job = await visible(parts, caller, job_id)
    if not await parts.database.arun(parts.database.store.retry(job.id)):
        raise Problem("illegal-transition", "only a dead job can be retried", jobId=str(job.id))
    return await _detail(parts, caller, job.id)


@router.post(
    "/jobs/{jobId}/cancel",
    operation_id="stopJob",
    summary="Stop a job for good",
    response_model=JobDetailView,
    responses=responses("not-found", "already-finished"),
)
async def cancel(request: Request, caller: Operator, job_id: JobId) -> Response:
    """It is CANCELLED, now or before. A running task is told at its next heartbeat."""
    parts = await runtime(request)
    job = await visible(parts, caller, job_id)
    if not await parts.database.arun(parts.database.store.cancel(job.id, f"by {caller.name}")):
        raise Problem("already-finished", "the job has ended otherwise", jobId=str(job.id))
    return await _detail(parts, caller, job.id)


@router.post(
    "/jobs/{jobId}/run",
    operation_id="runJobNow",
    summary="Let a waiting job run now",
    response_model=JobDetailView,
    responses=responses("not-found", "illegal-transition"),
)
async def run(request: Request, caller: Operator, job_id: JobId) -> Response:
    """A job that waits for its runAt, or for the end of its backoff, waits no longer."""
    parts = await runtime(request)
    job = await visible(parts, caller, job_id)
    if not await parts.database.arun(parts.database.store.run_now(job.id)):
        raise Problem("illegal-transition", "the job does not wait for its time", jobId=str(job.id))
    return await _detail(parts, caller, job.id)


async def _detail(parts: Runtime, caller: Caller, job_id: UUID) -> Response:
    found = await parts.database.arun(parts.database.store.job_detail(job_id))
    if found is None:
        raise Problem("not-found", "no such job")
    whole = "operate" in caller.scopes
    attempts = [attempt_view(attempt, whole=whole) for attempt in found.attempts]
    fields: dict[str, Any] = {**job_view(found.job), "attempts": attempts}
    if not whole:
        view = JobDetailView(**fields).model_dump_json(by_alias=True, exclude_unset=True)
        return Response(view, media_type="application/json", headers={"cache-control": "private, no-store"})
    fields |= {"idempotency_key": found.idempotency_key, "reason_detail": found.reason_detail}
    view = JobDetailView(**fields).model_dump_json(by_alias=True, exclude_unset=True)
    # As PostgreSQL wrote them: Python's numbers are not JSON's.
    carried = f',"payload":{found.payload},"result":{found.result or "null"}}}'
    return Response(view[:-1] + carried, media_type="application/json", headers={"cache-control": "private, no-store"})


async def _obstacle(parts: Runtime, caller: Caller, found: Obstacle) -> ObstacleView:
    view = ObstacleView(reason=found.reason, detail=found.detail, blocker=found.blocker, until=found.until)
    if found.blocker is None or not narrowed(caller):
        return view
    try:
        await visible(parts, caller, str(found.blocker))
    except Problem:
        view = view.model_copy(update={"blocker": None, "detail": "another job of the same exclusive key is running"})
    return view


def _line(line: list[Any]) -> LogLine:
    at, level, text = (*map(str, line[:3]), "", "", "")[:3]
    return LogLine(at=at, level=level, text=text)


def _closed(cursor: str | None) -> str | None:
    return None if cursor is None else base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def _opened(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        place = json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        raise _nowhere() from None
    if not isinstance(place, list) or not place or not all(isinstance(part, str | int) for part in place):
        raise _nowhere()
    return json.dumps(place)


def _nowhere() -> Problem:
    return Problem("not-found", "this is no cursor; give the one that the page before came with, and its filter")
