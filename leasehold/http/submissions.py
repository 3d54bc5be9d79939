"""POST /jobs and POST /jobs/batch: intents are recorded, nothing is run."""

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from leasehold._facts import MAX_KEY_BYTES
from leasehold.db.store import Refused
from leasehold.errors import IdempotencyConflict, InvalidJob, NotPermitted
from leasehold.http.body import Member, header_key, read_aside, read_body, read_object, read_objects, validated
from leasehold.http.front import Answer, operation
from leasehold.http.problems import Problem, invalid
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import KEY_HEADER, BatchRequest, BatchView, JobRequest, StatusView, quoted, view_of
from leasehold.http.submitter import Submission, conflict, refusal
from leasehold.operate.caller import ANONYMOUS, Caller
from leasehold.tokens import SEPARATOR, stored_key

EXAMPLE: dict[str, Any] = {
    "jobType": "SEND_EMAIL",
    "payload": {"to": "user@example.com", "subject": "Welcome"},
    "idempotencyKey": "req_550e8400-e29b-41d4-a716-446655440000",
}
_MAY_GO_WRONG = (
    "malformed-json", "key-conflict", "slow-body", "idempotency-conflict", "body-too-large", "unsupported-media-type",
    "invalid-request", "outcome-unknown", "overloaded",
)  # fmt: skip
_RECORDED = "Recorded, now or before."
_ACCEPTED = {
    "Idempotency-Differs": {
        "description": "Only with a used key: which fields its job had otherwise when it was recorded.",
        "schema": {"type": "string", "examples": ["payload, queue"]},
    },
    "Location": {"description": "Where the job's status is.", "schema": {"type": "string", "format": "uri-reference"}},
}


@operation(
    "POST /jobs", "submitJob", "Submit a job", ("submit",), parameters=[KEY_HEADER], body=JobRequest, example=EXAMPLE,
    result=StatusView, answers={202: {"description": _RECORDED, "headers": _ACCEPTED}}, problems=_MAY_GO_WRONG,
)  # fmt: skip
async def submit_job(request: Request, parts: Runtime, caller: Caller) -> Answer:
    """Record the intent to run a job, and answer at once; a worker runs it later.

    With a key that was used before nothing new is recorded: the answer is the job that has the key, exactly as if it
    had just been made. After no answer, or 503, repeat the request with the same key: there will be one job.
    """
    settings = parts.settings
    body = await read_body(request, most=settings.body_bytes, seconds=settings.body_seconds)
    submission = await read_aside(body, _one, body, header_key(request), caller, settings.body_bytes)
    job = await parts.submitter.submit(submission)
    headers = [(b"location", f"{request.scope.get('root_path', '')}/jobs/{job.id}".encode())]
    if job.differs is not None:
        headers.append((b"idempotency-differs", job.differs.encode()))
    return Answer(202, view_of(job), *headers)


@operation(
    "POST /jobs/batch", "submitJobs", "Submit many jobs", ("submit",), body=BatchRequest, example={"jobs": [EXAMPLE]},
    result=BatchView, answers={202: {"description": _RECORDED}}, problems=_MAY_GO_WRONG,
)  # fmt: skip
async def submit_batch(request: Request, parts: Runtime, caller: Caller) -> Answer:
    """Record many jobs in one transaction: all or none.

    Each has its own idempotencyKey. What is wrong with one is named by its place, `jobs.3.payload`.
    """
    settings = parts.settings
    body = await read_body(request, most=settings.batch_bytes, seconds=settings.body_seconds)
    submissions = await read_aside(body, _many, body, caller, settings.batch_bytes, settings.batch_jobs)
    try:
        jobs = await parts.submitter.submit_all(submissions)
    except IdempotencyConflict as error:
        detail = f"jobs.{error.place}: {conflict(error.args[0])}; nothing was recorded"
        raise Problem("idempotency-conflict", detail) from error
    except InvalidJob as error:
        raise invalid(("jobs", error.args[0])) from error
    except NotPermitted as error:
        if error.place is not None:  # a job of the batch, not this server's own login
            raise refusal(Refused("LH008", "")) from error
        raise
    return Answer(202, b'{"jobs":[' + b",".join(map(view_of, jobs)) + b"]}")


OPERATIONS: Final = (submit_job, submit_batch)


def _one(body: bytes, key: str | None, caller: Caller, most: int) -> Submission:
    return _submission(*read_object(body, most=most), key, caller)


def _many(body: bytes, caller: Caller, most: int, most_jobs: int) -> list[Submission]:
    text, members = read_object(body, most=most)
    if unknown := members.keys() - {"jobs"}:
        raise invalid((min(unknown), "unknown field"))
    if "jobs" not in members:
        raise invalid(("jobs", "Field required"))
    items = read_objects(text, members["jobs"][1])
    if not 1 <= len(items) <= most_jobs:
        raise invalid(("jobs", f"{len(items)} jobs; send 1 to {most_jobs:,}"))
    submissions = [_submission(text, item, None, caller, f"jobs.{n}.") for n, item in enumerate(items)]
    # Of two different jobs under one key only the first would ever be recorded.
    seen: dict[str, tuple[int, Submission]] = {}
    for place, submission in enumerate(submissions):
        first, other = seen.setdefault(submission.key, (place, submission))
        if submission.element != other.element:
            detail = f"jobs.{place}: its key is that of jobs.{first}, which is another job; nothing was recorded"
            raise Problem("idempotency-conflict", detail)
    return submissions


def _submission(
    text: str, members: dict[str, Member], header_key: str | None, caller: Caller, prefix: str = ""
) -> Submission:
    request = validated(JobRequest, {name: member[0] for name, member in members.items()}, prefix)
    key = request.idempotency_key
    if header_key is not None:
        if key is not None and key != header_key:
            raise Problem("key-conflict", "the Idempotency-Key header and idempotencyKey differ: send one of them")
        key = header_key
    if key is None:
        needed = "needed for each job" if prefix else "needed, here or as the header Idempotency-Key"
        raise invalid((f"{prefix}idempotencyKey", needed))
    if key[:1] == SEPARATOR:
        raise invalid((f"{prefix}idempotencyKey", "begins with a control character"))
    if caller.restricted and not caller.may(queue=request.queue, kind=request.job_type):
        raise Problem("forbidden", "this token is not good for that queue or jobType")
    exact = {name: text[begin:end] for name, (value, begin, end) in members.items() if type(value) is dict}
    return submission_of(request, key, exact, caller, prefix)


def submission_of(
    request: JobRequest, key: str, exact: Mapping[str, str], caller: Caller = ANONYMOUS, prefix: str = ""
) -> Submission:
    """Return a request of this caller, ready for the database. `exact`: the JSON text of its payload, which is kept.

    The job is of the caller's namespace, and so may its key be. A restricted caller that names no queue may use the
    kind's queue if it is one of its own, which the database checks.
    """
    kept = stored_key(caller.namespace, key) if caller.restricted and caller.namespace is not None else key
    if (beyond := len(kept.encode()) - MAX_KEY_BYTES) > 0:
        most = len(key.encode()) - beyond
        raise invalid((f"{prefix}idempotencyKey", f"longer than {most} bytes, which this token may use"))
    more = f'"idempotency_key":{quoted(kept)}'
    if request.queue is None and caller.queues is not None:
        more += f',"queues":{json.dumps(sorted(caller.queues))}'
    if caller.namespace is not None:
        more += f',"origin":{quoted(caller.namespace)}'
    if "read" not in caller.scopes:
        more += ',"own":true'  # its key must not find the job of another namespace
    if request.idempotency == "strict":
        more += ',"strict":true'
    return Submission(key, f"{request.columns(exact)},{more}}}", caller)
