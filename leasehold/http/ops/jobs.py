"""/ops/jobs: pages of jobs, one job, why it is not running, what it logged; retry, cancel, run now, one or many."""

from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field
from starlette.requests import Request

from leasehold.db.store import Changed, JobDetail, JobPage
from leasehold.http.body import read_model
from leasehold.http.front import Answer
from leasehold.http.ops import schemas
from leasehold.http.ops.serving import READS, served, view
from leasehold.http.problems import REFUSALS
from leasehold.http.schemas import JobFilter, Pairs
from leasehold.operate import jobs
from leasehold.operate.caller import CONTENT
from leasehold.operate.operator import Operator


class JobQuery(JobFilter):
    """Which jobs, and which page of them."""

    state: Annotated[list[schemas.State], Field(max_length=6)] | None = Field(
        None, description="In this state; may be given several times."
    )
    metadata: Pairs | None = Field(
        None, description="Jobs whose metadata have this: key=value; given several times, all of them."
    )
    cursor: Annotated[str, Field(max_length=10_000)] | None = Field(
        None, description="From the page before, with the same filter."
    )
    limit: int = Field(50, ge=1, le=1000, description="At most so many jobs.")


@served("GET /jobs", "Jobs, a page at a time", "not-found", scopes=READS, query=JobQuery, result=schemas.JobList)
async def list_jobs(op: Operator, query: JobQuery) -> JobPage:
    """Return dead and successful jobs with the latest finished first, queued ones in the order of claims, running ones
    by the end of their leases, all others with the latest created first. Each call does a bounded amount of work, so a
    page may be short, even empty, without being the last.
    """
    return await jobs.listed(op, query.fields(), query.cursor, query.limit)


@served("GET /jobs/{jobId}", "Everything about a job", "not-found", scopes=READS, result=schemas.JobDetailView)
async def inspect_job(op: Operator, job_id: UUID) -> Answer:
    """Return everything about the job; content, such as its payload, only with the scope operate."""
    return _detail(op, await jobs.detail(op, job_id))


@served(
    "GET /jobs/{jobId}/explain", "Why is this job not running?", "not-found", scopes=READS, result=schemas.Explanation
)
async def explain_job(op: Operator, job_id: UUID) -> object:
    """Return every reason that holds at this moment, the most important first."""
    return {"job_id": job_id, "reasons": await jobs.explain(op, job_id)}


@served("GET /jobs/{jobId}/logs", "The log lines of a job", "not-found", result=schemas.JobLogs)
async def read_job_logs(op: Operator, job_id: UUID) -> object:
    """Return the lines that each attempt logged, oldest attempt first."""
    found = await jobs.logs(op, job_id)
    attempts = [{"attempt": log.attempt, "lines": [_line(line) for line in log.lines]} for log in found]
    return {"job_id": job_id, "attempts": attempts}


def _changing(path: str, name: str, summary: str, how: jobs.Change, about: str) -> None:
    async def function(op: Operator, job_id: UUID) -> Answer:
        return _detail(op, await jobs.changed(op, how, job_id))

    function.__name__, function.__doc__ = name, about
    problem = REFUSALS[how.reason]
    served(f"POST /jobs/{{jobId}}/{path}", summary, "not-found", problem, result=schemas.JobDetailView)(function)


_changing("retry", "retry_job", "Retry a dead job", jobs.RETRY, "It is queued again with a fresh budget of failures.")
_changing(
    "cancel", "stop_job", "Cancel a job", jobs.CANCEL,
    "It is CANCELLED, now or before. A running task is stopped at once.",
)  # fmt: skip
_changing(
    "run", "run_job_now", "Let a waiting job run now", jobs.RUN_NOW,
    "A job that waits for its runAt, or for the end of its backoff, waits no longer.",
)  # fmt: skip


_WITHHELD: dict[str, Any] = {**dict.fromkeys(CONTENT, True), "attempts": {"__all__": set(CONTENT)}}
"""The fields that an answer to a caller without the scope operate does not have."""


def _detail(op: Operator, found: JobDetail) -> Answer:
    whole = op.caller.sees_content
    more = {name: getattr(found, name) for name in ("attempts", "idempotency_key", "reason_detail")}
    made = view(schemas.JobDetailView, found.job, **more, payload=None, result=None)
    body = made.model_dump_json(by_alias=True, exclude={"payload", "result"} if whole else _WITHHELD)
    if whole:  # as PostgreSQL wrote them: Python would change the digits of numbers
        body = f'{body[:-1]},"payload":{found.payload},"result":{found.result or "null"}}}'
    return Answer(200, body.encode(), (b"cache-control", b"private, no-store"))


def _line(line: list[Any]) -> dict[str, str]:
    return dict(zip(("at", "level", "text"), (*map(str, line[:3]), "", "", ""), strict=False))


_RETRIED: Final = {"filter": {"kind": "SEND_EMAIL", "errorClass": "TimeoutError"}, "dryRun": True, "limit": 100}
_CANCELLED: Final = {"filter": {"queue": "mail", "state": "queued"}, "dryRun": True, "reason": "sent twice"}


@served(
    "POST /jobs/retry",
    "Retry many dead jobs",
    "not-found",
    body=schemas.RetryRequest,
    example=_RETRIED,
    result=schemas.Changes,
)
async def retry_jobs(op: Operator, request: Request) -> Changed:
    """Queue the dead jobs that match again, the latest first where there are more than `limit`."""
    return await _change(op, jobs.RETRY, await read_model(request, schemas.RetryRequest))


@served(
    "POST /jobs/cancel",
    "Cancel many jobs",
    "not-found",
    body=schemas.CancelRequest,
    example=_CANCELLED,
    result=schemas.Changes,
)
async def cancel_jobs(op: Operator, request: Request) -> Changed:
    """Cancel the jobs that match and have not ended. Running tasks are stopped at once."""
    return await _change(op, jobs.CANCEL, await read_model(request, schemas.CancelRequest))


async def _change(op: Operator, how: jobs.Change, wanted: schemas.RetryRequest | schemas.CancelRequest) -> Changed:
    fields, why = wanted.filter.fields(), getattr(wanted, "reason", None)
    dry_run, cursor = wanted.dry_run, wanted.cursor
    return await jobs.change_matching(op, how, fields, wanted.limit, dry_run=dry_run, why=why, cursor=cursor)
