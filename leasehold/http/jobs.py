"""What has become of a job: its status, its result, its changes as they happen; and cancelling it."""

import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import StreamingResponse

from leasehold.db.store import JobStatus, Seen
from leasehold.errors import LeaseholdError
from leasehold.http.front import Answer, operation
from leasehold.http.problems import Problem, invalid
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import EXAMPLE_ID, OVER, ResultView, StatusView, etag_of, parameter, view_of
from leasehold.operate.caller import Caller
from leasehold.operate.jobs import CANCEL
from leasehold.operate.refusals import Refusal, is_uuid


def event_stream(events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """Return a response of events, until there are no more or the client is gone."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def job_events(parts: Runtime, caller: Caller, job: Seen, last: str | None) -> AsyncGenerator[bytes, None]:
    """Yield an event at once and at each change, comments in between, and end with the job. `last`: the id of the last
    event that the client has seen, the ETag: without its quotes, which not every client repeats.
    """
    seen: Seen | None = None
    while True:
        if job != seen:
            seen, view = job, view_of(job)
            etag = etag_of(view).strip('"')
            if etag != (last or "").strip('"'):
                last = etag
                yield b"event: status\nid: " + etag.encode() + b"\ndata: " + view + b"\n\n"
        if job.status in OVER or parts.watcher.closing.is_set():
            return
        try:
            job = await parts.watcher.change(job, time.monotonic() + parts.settings.keepalive_seconds, caller.token)
            await parts.gate.check(caller)
        except LeaseholdError:
            pass  # the database is away: the stream stays open until it is back
        except Problem:
            return  # too many requests wait, or the token was revoked: the client asks again
        if job == seen:
            yield b": still here\n\n"


READERS: Final = ("status", "read", "operate")
"""With `status` a token sees the jobs of its namespace, with `read` or `operate` all of its queues and kinds."""

_WIDER: Final = ("read", "operate")

_wait: Final = TypeAdapter[int](Annotated[int, Field(ge=0, le=60)])

_JOB_ID: Final = parameter(
    "path", "jobId", "What POST /jobs returned.", {"type": "string", "format": "uuid"}, EXAMPLE_ID
)
_WAIT: Final = parameter(
    "query", "wait", "Seconds to wait for the job to finish; the response comes as soon as it has.",
    {**_wait.json_schema(), "default": 0},
)  # fmt: skip
_IF_NONE_MATCH: Final = parameter("header", "If-None-Match", "The ETag of an earlier response.", {"type": "string"})
_LAST_EVENT: Final = parameter(
    "header", "Last-Event-ID", "The id of the last event that the client has seen.", {"type": "string"}
)
_NO_CACHE: Final = (b"cache-control", b"private, no-cache")
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


@operation(
    "GET /jobs/{jobId}", "getJob", "The status of a job", READERS, result=StatusView,
    parameters=[_JOB_ID, _WAIT, _IF_NONE_MATCH],
    answers={
        200: {"description": "What the job is now.", "headers": _STATUS_HEADERS},
        304: {"description": "It is still as If-None-Match has it.", "headers": _STATUS_HEADERS},
    },
    problems=["not-found", "invalid-request", "overloaded"],
)  # fmt: skip
async def get_job(request: Request, parts: Runtime, caller: Caller) -> Answer:
    """Return what the database has of the job, and never its payload. Reads only."""
    job = await _waited(request, parts, caller)
    view = view_of(job)
    etag = etag_of(view)
    headers = [(b"etag", etag.encode()), _NO_CACHE]
    headers += [(name.encode(), value.encode()) for name, value in retry_after(job).items()]
    known = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
    if known & {"*", etag}:
        return Answer(304, b"", *headers)
    return Answer(200, view, *headers)


@operation(
    "GET /jobs/{jobId}/result", "getJobResult", "What a job's task returned", READERS, result=ResultView,
    parameters=[_JOB_ID, _WAIT], answers={200: {"description": "The job is COMPLETED."}},
    problems=["not-found", "not-finished", "job-failed", "invalid-request", "overloaded"],
)  # fmt: skip
async def get_job_result(request: Request, parts: Runtime, caller: Caller) -> Answer:
    """Return the result of a COMPLETED job; any other status is 409 with its own type. Reads only."""
    job = await _waited(request, parts, caller)
    if job.status not in OVER:
        raise Problem("not-finished", f"the job is {job.status}", headers=retry_after(job), jobId=str(job.id))
    status: JobStatus | None = await parts.database.arun(parts.database.store.status(job.id))
    if status is None:
        raise Problem("not-found", "no such job")
    if status.status != "COMPLETED":
        reason = status.reason or "unknown"
        raise Problem("job-failed", f"the job is {status.status}: {reason}", jobId=str(job.id), reason=reason)
    body = f'{{"jobId":"{job.id}","status":"COMPLETED","result":{status.result_text or "null"}}}'
    return Answer(200, body.encode(), _NO_CACHE)


@operation(
    "GET /jobs/{jobId}/events", "watchJob", "A job's changes as they happen", READERS, streams=True,
    parameters=[_JOB_ID, _LAST_EVENT],
    answers={
        200: {
            "description": "Server-sent events: `status` with a JobView at once and at each change, until it is final.",
            "content": {"text/event-stream": {"schema": _EVENT_SCHEMA, "example": _EVENT}},
        },
    },
    problems=["not-found", "overloaded"],
)  # fmt: skip
async def watch_job(request: Request, parts: Runtime, caller: Caller) -> StreamingResponse:
    """Send events until the job ends. With Last-Event-ID the stream begins with the next change. Reads only."""
    job = await seen(parts, caller, request.path_params["jobId"], *_WIDER)
    return event_stream(job_events(parts, caller, job, request.headers.get("last-event-id")))


@operation(
    "DELETE /jobs/{jobId}", "cancelJob", "Cancel a job", ("submit", "operate"), result=StatusView, parameters=[_JOB_ID],
    answers={200: {"description": "It is CANCELLED, now or before. A running task is stopped."}},
    problems=["not-found", "already-finished"],
)  # fmt: skip
async def cancel_job(request: Request, parts: Runtime, caller: Caller) -> Answer:
    """Cancel a job: one of the caller's namespace with the scope submit, any with operate."""
    job_id = request.path_params["jobId"]
    job = await seen(parts, caller, job_id, "operate")
    if not await parts.database.arun(parts.database.store.cancel(job.id, f"by {caller.name}")):
        raise Refusal(CANCEL.reason, f"the job {CANCEL.refused}", job=job.id)
    return Answer(200, view_of(await seen(parts, caller, job_id, "operate")))


OPERATIONS: Final = (get_job, get_job_result, watch_job, cancel_job)


async def seen(parts: Runtime, caller: Caller, job_id: str, *wider: str) -> Seen:
    """Return the job as it is now, if the caller may see it; a scope of `wider` shows those of other namespaces too."""
    job = await parts.watcher.read(UUID(job_id)) if is_uuid(job_id) else None
    # A job's queue, kind and origin never change, so what was visible stays so.
    if job is None or not caller.may_see(job, *wider):
        raise Problem("not-found", "no such job")
    return job


async def _waited(request: Request, parts: Runtime, caller: Caller) -> Seen:
    """Return the job when it has finished, or after `?wait=` seconds."""
    try:
        wait = _wait.validate_python(request.query_params.get("wait", 0))
    except ValidationError as error:
        raise invalid(("wait", error.errors()[0]["msg"])) from None
    job = await seen(parts, caller, request.path_params["jobId"], *_WIDER)
    deadline = time.monotonic() + min(wait, parts.settings.longest_wait)
    while job.status not in OVER and time.monotonic() < deadline and not parts.watcher.closing.is_set():
        job = await parts.watcher.change(job, deadline, caller.token)
    return job


def retry_after(job: Seen) -> dict[str, str]:
    """Return when to ask again, if that makes sense: soon, or when the job's time has come."""
    if job.status in OVER:
        return {}
    left = (job.run_at - datetime.now(UTC)).total_seconds() if job.status == "PENDING" else 0
    return {"retry-after": str(max(1, min(60, round(left))))}
