"""What has become of a job: its status, its result, its changes as they happen; and cancelling it."""

import re
import time
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response

from leasehold.db.store import JobStatus, Seen
from leasehold.http.auth import Caller, Need
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import Runtime, runtime
from leasehold.http.schemas import JobView, ResultView, etag_of, view_of
from leasehold.http.stream import EventStream

router = APIRouter(tags=["jobs"])

OVER: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
"""The statuses that a job keeps."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)

JobId = Annotated[
    str,
    Path(
        alias="jobId",
        description="What POST /jobs gave.",
        openapi_examples={"a job": {"value": "019a5f2e-7c11-7abc-8def-0123456789ab"}},
        json_schema_extra={"format": "uuid"},
    ),
]
Wait = Annotated[
    int,
    Query(ge=0, le=60, description="Seconds to wait for the job to finish; the answer comes as soon as it has."),
]
Reader = Annotated[Caller, Depends(Need("status", "read"))]
"""With `status` it sees its namespace's own jobs, with `read` all of its queues and kinds."""

Canceller = Annotated[Caller, Depends(Need("submit", "operate"))]
"""With `submit` it cancels its namespace's own jobs, with `operate` all of its queues and kinds."""

_EVENT_SCHEMA = {
    "type": "object",
    "description": "Each event.",
    "required": ["event", "id", "data"],
    "properties": {
        "event": {"const": "status"},
        "id": {"type": "string", "description": "To be sent as Last-Event-ID when the stream is taken up again."},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/JobView"},
        },
    },
}
_EVENT = "event: status\nid: 00d67790aee6549ad95f8d13\ndata: {}\n\n"
_STATUS_HEADERS = {
    "ETag": {"description": "Changes exactly when the answer does.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "While the job has not finished: seconds after which to ask again.",
        "schema": {"type": "integer", "minimum": 1},
    },
}


@router.get(
    "/jobs/{jobId}",
    operation_id="getJob",
    summary="The status of a job",
    response_model=JobView,
    responses={
        200: {"description": "What the job is now.", "headers": _STATUS_HEADERS},
        304: {"description": "It is still as If-None-Match has it.", "headers": _STATUS_HEADERS},
        **responses("not-found", "invalid-request", "overloaded"),
    },
)
async def get_job(
    request: Request,
    caller: Reader,
    job_id: JobId,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header(description="The ETag of an earlier answer.")] = None,
) -> Response:
    """What the database has of the job, and never its payload. Reads only."""
    parts = await runtime(request)
    job = await _finished_or_late(parts, caller, await seen(parts, caller, job_id), wait)
    view = view_of(job)
    etag = etag_of(view)
    headers = {"etag": etag, "cache-control": "private, no-cache", **retry_after(job)}
    if if_none_match is not None and _matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    return Response(view, media_type="application/json", headers=headers)


@router.get(
    "/jobs/{jobId}/result",
    operation_id="getJobResult",
    summary="What a job's task returned",
    response_model=ResultView,
    responses={
        200: {"description": "The job is COMPLETED."},
        **responses("not-found", "not-finished", "job-failed", "invalid-request", "overloaded"),
    },
)
async def get_job_result(request: Request, caller: Reader, job_id: JobId, wait: Wait = 0) -> Response:
    """The result of a COMPLETED job; any other status is 409 with its own type. Reads only."""
    parts = await runtime(request)
    job = await _finished_or_late(parts, caller, await seen(parts, caller, job_id), wait)
    if job.status not in OVER:
        raise Problem("not-finished", f"the job is {job.status}", headers=retry_after(job), jobId=str(job.id))
    status: JobStatus | None = await parts.database.arun(parts.database.store.status(job.id))
    if status is None:
        raise Problem("not-found", "no such job")
    if status.status != "COMPLETED":
        reason = status.reason or "unknown"
        raise Problem("job-failed", f"the job is {status.status}: {reason}", jobId=str(job.id), reason=reason)
    body = f'{{"jobId":"{job.id}","status":"COMPLETED","result":{status.result_text or "null"}}}'
    return Response(body, media_type="application/json", headers={"cache-control": "private, no-cache"})


@router.get(
    "/jobs/{jobId}/events",
    operation_id="watchJob",
    summary="A job's changes as they happen",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: `status` with a JobView at once and at each change, until it is final.",
            "content": {"text/event-stream": {"schema": _EVENT_SCHEMA, "example": _EVENT}},
        },
        **responses("not-found", "invalid-request", "overloaded"),
    },
)  # fmt: skip
async def watch_job(
    request: Request,
    caller: Reader,
    job_id: JobId,
    last_event_id: Annotated[str | None, Header(description="The id of the last event that was seen.")] = None,
) -> EventStream:
    """A stream that ends with the job. With Last-Event-ID it begins with the next change. Reads only."""
    parts = await runtime(request)
    job = await seen(parts, caller, job_id)
    check = partial(parts.gate.check, caller)
    change = partial(parts.watcher.change, who=caller.token)
    return EventStream(parts.watcher, job, parts.settings, last=last_event_id, final=OVER, check=check, change=change)


@router.delete(
    "/jobs/{jobId}",
    operation_id="cancelJob",
    summary="Cancel a job",
    response_model=JobView,
    responses={
        200: {"description": "It is CANCELLED, now or before. A running task is stopped."},
        **responses("not-found", "already-finished"),
    },
)
async def cancel_job(request: Request, caller: Canceller, job_id: JobId) -> Response:
    """Cancel a job: the caller's own with the scope submit, any with operate."""
    parts = await runtime(request)
    job = await seen(parts, caller, job_id, "operate")
    if not await parts.database.arun(parts.database.store.cancel(job.id)):
        raise Problem("already-finished", "the job has ended otherwise", jobId=str(job.id))
    return Response(view_of(await seen(parts, caller, job_id, "operate")), media_type="application/json")


async def seen(parts: Runtime, caller: Caller, job_id: str, wider: str = "read") -> Seen:
    """The job as it is now, if there is one and it is the caller's business; with the scope `wider` it need not be its
    namespace's own.
    """
    job = await parts.watcher.look(UUID(job_id)) if _UUID.fullmatch(job_id) else None
    # A job's queue, kind and origin never change, so what was visible stays so.
    if job is None or not caller.may_see(job, wider):
        raise Problem("not-found", "no such job")
    return job


async def _finished_or_late(parts: Runtime, caller: Caller, job: Seen, wait: int) -> Seen:
    deadline = time.monotonic() + min(wait, parts.settings.longest_wait)
    while job.status not in OVER and time.monotonic() < deadline and not parts.watcher.closing.is_set():
        job = await parts.watcher.change(job, deadline, caller.token)
    return job


def retry_after(job: Seen) -> dict[str, str]:
    """When to ask again, if that makes sense: soon, or when the job's time has come."""
    if job.status in OVER:
        return {}
    left = (job.run_at - datetime.now(UTC)).total_seconds() if job.status == "PENDING" else 0
    return {"retry-after": str(max(1, min(60, round(left))))}


def _matches(condition: str, etag: str) -> bool:
    return condition.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in condition.split(","))
