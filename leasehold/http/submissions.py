"""POST /jobs and POST /jobs/batch: intents are recorded, nothing is run."""

from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request

from leasehold.errors import IdempotencyConflict, InvalidJob, NotPermitted
from leasehold.http.answers import Answer, SwiftRoute
from leasehold.http.auth import Caller
from leasehold.http.body import KEY_HEADER, errors_of, header_key, read_aside, read_body
from leasehold.http.parsing import Member, checked_text, expect_end, parse_items, parse_members
from leasehold.http.problems import Problem, invalid, responses
from leasehold.http.runtime import runtime
from leasehold.http.schemas import BatchView, JobRequest, JobView, Submission, element_of, view_of
from leasehold.http.submitter import not_allowed
from leasehold.intent import MAX_KEY_BYTES
from leasehold.tokens import SEPARATOR, stored_key

router = APIRouter(tags=["jobs"])

EXAMPLE: dict[str, Any] = {
    "jobType": "SEND_EMAIL",
    "payload": {"to": "user@example.com", "subject": "Welcome"},
    "idempotencyKey": "req_550e8400-e29b-41d4-a716-446655440000",
}
_MAY_GO_WRONG = (
    "malformed-json", "key-conflict", "slow-body", "idempotency-conflict", "body-too-large", "unsupported-media-type",
    "invalid-request", "outcome-unknown", "overloaded",
)  # fmt: skip


async def submit_job(request: Request) -> Answer:
    """Record the intent to run a job, and answer at once; a worker runs it later.

    With a key that was used before nothing new is recorded: the answer is the job that has the key, exactly as if it
    had just been made. After no answer, or 503, repeat the request with the same key: there will be one job.
    """
    parts = await runtime(request)
    caller = await parts.gate.admit(request.scope, "submit")
    settings = parts.settings
    body = await read_body(request, most=settings.body_bytes, seconds=settings.body_seconds)
    submission = await read_aside(body, _one, body, header_key(request), caller, settings.body_bytes)
    job = await parts.submitter.submit(submission)
    location = (b"location", f"{request.scope.get('root_path', '')}/jobs/{job.id}".encode())
    if job.differs is not None:
        return Answer(202, view_of(job), location, (b"idempotency-differs", job.differs.encode()))
    return Answer(202, view_of(job), location)


async def submit_batch(request: Request) -> Answer:
    """Record many jobs in one transaction: all or none.

    Each has its own idempotencyKey. What is wrong with one is named by its place, `jobs.3.payload`.
    """
    parts = await runtime(request)
    caller = await parts.gate.admit(request.scope, "submit")
    settings = parts.settings
    body = await read_body(request, most=settings.batch_bytes, seconds=settings.body_seconds)
    submissions = await read_aside(body, _many, body, caller, settings.batch_bytes, settings.batch_jobs)
    try:
        jobs = await parts.submitter.submit_all(submissions)
    except IdempotencyConflict as error:
        place = error.args[0].partition(":")[0].replace("[", ".").removesuffix("]")
        detail = f"{place}: the key belongs to another job; nothing was recorded"
        raise Problem("idempotency-conflict", detail) from error
    except InvalidJob as error:
        raise invalid(("jobs", error.args[0])) from error
    except NotPermitted as error:
        if error.args[0].startswith("jobs["):
            raise not_allowed() from error
        raise
    return Answer(202, b'{"jobs":[' + b",".join(map(view_of, jobs)) + b"]}")


def _one(body: bytes, key: str | None, caller: Caller, most: int) -> Submission:
    text = checked_text(body, most=most)
    members, end = parse_members(text)
    expect_end(text, end)
    return _submission(text, members, key, caller)


def _many(body: bytes, caller: Caller, most: int, most_jobs: int) -> list[Submission]:
    text = checked_text(body, most=most)
    items = _items(text, most_jobs)
    submissions = [_submission(text, item, None, caller, f"jobs.{n}.") for n, item in enumerate(items)]
    _check_keys(submissions)
    return submissions


def _check_keys(submissions: list[Submission]) -> None:
    """Refuse a batch with two different jobs under one key: only the first would ever be recorded."""
    seen: dict[str, tuple[int, Submission]] = {}
    for place, submission in enumerate(submissions):
        first, other = seen.setdefault(submission.key, (place, submission))
        if submission.element != other.element:
            detail = f"jobs.{place}: its key is that of jobs.{first}, which is another job; nothing was recorded"
            raise Problem("idempotency-conflict", detail)


def _items(text: str, most: int) -> list[dict[str, Member]]:
    members, end = parse_members(text)
    expect_end(text, end)
    if unknown := members.keys() - {"jobs"}:
        raise invalid((min(unknown), "unknown field"))
    if "jobs" not in members:
        raise invalid(("jobs", "Field required"))
    items, _ = parse_items(text, members["jobs"].begin)
    if not 1 <= len(items) <= most:
        raise invalid(("jobs", f"{len(items)} jobs; send 1 to {most:,}"))
    return items


def _submission(
    text: str, members: dict[str, Member], header_key: str | None, caller: Caller, prefix: str = ""
) -> Submission:
    try:
        request = JobRequest.model_validate({name: member.value for name, member in members.items()})
    except ValidationError as error:
        raise invalid(*errors_of(error, prefix)) from None
    key = request.idempotency_key
    if header_key is not None:
        if key is not None and key != header_key:
            raise Problem("key-conflict", "the Idempotency-Key header and idempotencyKey differ: send one of them")
        key = header_key
    if key is None or key[:1] == SEPARATOR:
        if key is not None:
            raise invalid((f"{prefix}idempotencyKey", "begins with a control character"))
        needed = "needed for each job" if prefix else "needed, here or as the header Idempotency-Key"
        raise invalid((f"{prefix}idempotencyKey", needed))
    if not caller.may_submit(queue=request.queue, kind=request.job_type):
        raise Problem("forbidden", "this token is not good for that queue or jobType")
    payload = members.get("payload")
    exact = "{}" if payload is None else text[payload.begin : payload.end]
    return submission_of(request, key, exact, caller, prefix)


def submission_of(request: JobRequest, key: str, payload: str, caller: Caller, prefix: str = "") -> Submission:
    """A request of this caller, ready for the database: its job is of the caller's namespace, and so may its key be."""
    kept = key if caller.key_namespace is None else stored_key(caller.key_namespace, key)
    if (beyond := len(kept.encode()) - MAX_KEY_BYTES) > 0:
        most = len(key.encode()) - beyond
        raise invalid((f"{prefix}idempotencyKey", f"longer than {most} bytes, which this token may use"))
    element = element_of(request, kept, payload, caller.queues, caller.namespace, own=not caller.sees_all)
    return Submission(request.job_type, request.queue, key, element, caller.queues, caller.kinds)


def _job_schema() -> dict[str, Any]:
    return {"$ref": "#/components/schemas/JobRequest"}


def _body(schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


_ACCEPTED = {
    "Idempotency-Differs": {
        "description": "Only with a used key: which fields its job had otherwise when it was recorded.",
        "schema": {"type": "string", "examples": ["payload, queue"]},
    },
    "Location": {"description": "Where the job's status is.", "schema": {"type": "string", "format": "uri-reference"}},
}

router.routes.append(
    SwiftRoute(
        "/jobs", submit_job, methods=["POST"], status_code=202, response_model=JobView, operation_id="submitJob",
        summary="Submit a job", tags=["jobs"],
        responses={202: {"description": "Recorded, now or before.", "headers": _ACCEPTED}, **responses(*_MAY_GO_WRONG)},
        openapi_extra={"parameters": [KEY_HEADER], **_body(_job_schema(), EXAMPLE), "x-scopes": ["submit"]},
    )
)  # fmt: skip
router.routes.append(
    SwiftRoute(
        "/jobs/batch", submit_batch, methods=["POST"], status_code=202, response_model=BatchView,
        operation_id="submitJobs", summary="Submit many jobs", tags=["jobs"],
        responses={202: {"description": "Recorded, now or before."}, **responses(*_MAY_GO_WRONG)},
        openapi_extra={
            **_body({"$ref": "#/components/schemas/BatchRequest"}, {"jobs": [EXAMPLE]}), "x-scopes": ["submit"],
        },
    )
)  # fmt: skip
