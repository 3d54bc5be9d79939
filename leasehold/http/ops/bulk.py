"""/ops/jobs/retry and /ops/jobs/cancel: many jobs by a filter, with a dry run."""

from typing import Any

from fastapi import APIRouter, Request

from leasehold.db.store import Changed
from leasehold.http.body import body_of, read_model
from leasehold.http.ops.callers import Operator, narrowed
from leasehold.http.ops.schemas import CancelFilter, CancelRequest, Changes, RetryFilter, RetryRequest
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import runtime

router = APIRouter(tags=["ops"])

BODY_PROBLEMS = ("malformed-json", "slow-body", "body-too-large", "unsupported-media-type", "invalid-request")
"""What may be wrong with any body."""


def _body(
    model: type[RetryRequest | CancelRequest], which: type[RetryFilter | CancelFilter], example: dict[str, Any]
) -> dict[str, Any]:
    """The `openapi_extra`, with the filter spelt out in its place."""
    found = body_of(model, example)
    found["requestBody"]["content"]["application/json"]["schema"]["properties"]["filter"] = which.model_json_schema()
    return found


@router.post(
    "/jobs/retry",
    operation_id="retryJobs",
    summary="Give many dead jobs another chance",
    response_model=Changes,
    responses=responses(*BODY_PROBLEMS),
    openapi_extra=_body(
        RetryRequest,
        RetryFilter,
        {"filter": {"kind": "SEND_EMAIL", "errorClass": "TimeoutError"}, "dryRun": True, "limit": 100},
    ),
)
async def retry_jobs(request: Request, caller: Operator) -> Changes:
    """The dead jobs that fit are queued again, the latest first where there are more than `limit`."""
    parts = await runtime(request)
    wanted = await read_model(request, RetryRequest)
    call = parts.database.store.retry_many(
        wanted.filter.fields() | narrowed(caller), wanted.limit, dry_run=wanted.dry_run
    )
    return _changes(await parts.database.arun(call))


@router.post(
    "/jobs/cancel",
    operation_id="cancelJobs",
    summary="Stop many jobs for good",
    response_model=Changes,
    responses=responses(*BODY_PROBLEMS),
    openapi_extra=_body(
        CancelRequest,
        CancelFilter,
        {"filter": {"queue": "mail", "state": "queued"}, "dryRun": True, "reason": "sent twice"},
    ),
)
async def cancel_jobs(request: Request, caller: Operator) -> Changes:
    """The jobs that fit and have not ended are cancelled. Running tasks are told at their next heartbeat."""
    parts = await runtime(request)
    wanted = await read_model(request, CancelRequest)
    call = parts.database.store.cancel_many(
        wanted.filter.fields() | narrowed(caller),
        wanted.limit,
        dry_run=wanted.dry_run,
        why=wanted.reason or f"by {caller.name}",
    )
    return _changes(await parts.database.arun(call))


@router.api_route("/jobs/retry", methods=["GET", "PUT", "PATCH", "DELETE"], include_in_schema=False)
@router.api_route("/jobs/cancel", methods=["GET", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def not_a_job() -> None:
    """Else the routes of one job would look for one of that id."""
    raise Problem("method-not-allowed", "another method is needed", headers={"allow": "POST"})


def _changes(found: Changed) -> Changes:
    return Changes(matched=found.matched, changed=found.changed, capped=found.capped)
