"""Answers that say no become exceptions."""

import json
from typing import Any, Final

from leasehold.client.steps import Answer, NoAnswer, Request
from leasehold.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobUnknown,
    LeaseholdError,
    NotPermitted,
    SchemaMismatch,
)

_KNOWN: Final[dict[str, type[LeaseholdError]]] = {
    "already-finished": IllegalTransition,
    "database-unavailable": DatabaseUnavailable,
    "forbidden": NotPermitted,
    "idempotency-conflict": IdempotencyConflict,
    "illegal-transition": IllegalTransition,
    "outcome-unknown": DatabaseUnavailable,
    "schema-mismatch": SchemaMismatch,
    "unauthorized": NotPermitted,
}
_OF_A_SUBMISSION: Final = frozenset({"invalid-request", "malformed-json", "body-too-large", "key-conflict"})


def problem(answer: Answer) -> ApiError:
    """The answer's problem details (RFC 9457), or what can be said without them."""
    try:
        data = json.loads(answer.content)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        data = {}
    title = str(data.get("title") or f"HTTP {answer.status}")
    detail = str(data.get("detail") or "")
    said = ": ".join(part for part in (title, detail) if part) + _fields(data.get("errors"))
    return ApiError(
        said, type=str(data.get("type") or "about:blank"), title=title, status=answer.status, detail=detail, more=data
    )


def name_of(error: ApiError) -> str:
    """The stable name at the end of the problem's type."""
    return error.type.rpartition("/problems/")[2]


def exception(request: Request, answer: Answer) -> LeaseholdError:
    """What to raise: the exception that a program without HTTP between would get, caused by the ApiError."""
    error = problem(answer)
    name = name_of(error)
    kind = _KNOWN.get(name)
    better: LeaseholdError
    if name == "job-failed":
        reason = str(error.more.get("reason") or "")
        cls = JobCancelled if reason == "cancelled" else JobFailed
        better = cls(f"job {request.job_id} is dead, {reason}", reason=reason)
    elif name == "not-found" and request.job_id is not None:
        hint = "was it pruned, or may this token not see it?"
        better = JobUnknown(f"no job has the id {request.job_id}", hint=hint)
    elif name in _OF_A_SUBMISSION and request.keys:
        better = InvalidJob(str(error), hint="nothing was recorded")
    elif kind is not None:
        better = kind(str(error))
    else:
        return error
    better.__cause__ = error
    return better


def unavailable(request: Request, reply: NoAnswer, seconds: float) -> ApiUnavailable:
    """What to raise when the time is over and nothing was heard."""
    if not reply.sent:
        hint = "nothing was sent"
    elif request.keys:
        hint = "it may have been recorded: submit it again with the same idempotency key"
    elif request.repeatable:
        hint = "repeating it is safe"
    else:
        hint = "it may have been done: look before you repeat it"
    what = f"{type(reply.error).__name__}: {reply.error}".rstrip(": ")
    error = ApiUnavailable(
        f"no answer to {request.method} {request.path} within {seconds:.1f} s ({what})", keys=request.keys, hint=hint
    )
    error.__cause__ = reply.error
    return error


def _fields(errors: Any) -> str:
    """The fields that validation complained about."""
    if not isinstance(errors, list):
        return ""
    said = [f"{one.get('field')}: {one.get('message')}" for one in errors if isinstance(one, dict)]
    return f" [{'; '.join(said)}]" if said else ""
