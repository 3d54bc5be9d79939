"""Requests, replies, and the exceptions that problem responses become."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from leasehold import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request."""

    method: str
    path: str  # below the base URL, quoted
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    repeatable: bool = True  # whether doing it twice is the same as doing it once
    held: float = 0.0  # for how many seconds the server may hold the response back on purpose (a long poll)
    job_id: str | None = None  # the job that it is about; a 404 then means that there is none
    keys: tuple[str, ...] = ()  # the idempotency keys that it carries


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The connection broke, or the response did not come in time."""

    error: Exception
    sent: bool  # whether the server may have seen the request


Reply: TypeAlias = Response | NoAnswer

_KNOWN: Final[dict[str, type[errors.LeaseholdError]]] = {
    "already-finished": errors.IllegalTransition,
    "database-unavailable": errors.DatabaseUnavailable,
    "forbidden": errors.NotPermitted,
    "idempotency-conflict": errors.IdempotencyConflict,
    "illegal-transition": errors.IllegalTransition,
    "outcome-unknown": errors.DatabaseUnavailable,
    "schema-mismatch": errors.SchemaMismatch,
    "unauthorized": errors.NotPermitted,
}
_OF_A_SUBMISSION: Final = frozenset({"invalid-request", "malformed-json", "body-too-large", "key-conflict"})


def _problem(answer: Response) -> errors.ApiError:
    """Return the response's problem details (RFC 9457), or what can be said without them."""
    try:
        data = json.loads(answer.content)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        data = {}
    title = str(data.get("title") or f"HTTP {answer.status}")
    detail = str(data.get("detail") or "")
    message = f"{title}: {detail}" if detail else title
    wrong = data.get("errors")
    if isinstance(wrong, list):
        said = [(str(one.get("field") or ""), str(one.get("message"))) for one in wrong if isinstance(one, dict)]
        texts = [f"{field}: {words}" if field else words for field, words in said]
        fields = [text for text in texts if text != detail]  # which says the first of them
        message += f" [{'; '.join(fields)}]" if fields else ""
    kind = str(data.get("type") or "about:blank")
    return errors.ApiError(message, type=kind, title=title, status=answer.status, detail=detail, more=data)


def name_of(error: errors.ApiError) -> str:
    """Return the stable name at the end of the problem's type."""
    return error.type.rpartition("/problems/")[2]


def exception(request: Request, answer: Response) -> errors.LeaseholdError:
    """Return the exception that a program without HTTP between would get, caused by the ApiError."""
    error = _problem(answer)
    name = name_of(error)
    kind = _KNOWN.get(name)
    better: errors.LeaseholdError
    if name == "job-failed":
        reason = str(error.more.get("reason") or "")
        cls = errors.JobCancelled if reason == "cancelled" else errors.JobFailed
        better = cls(f"job {request.job_id} is dead, {reason}", reason=reason)
    elif name == "not-found" and request.job_id is not None:
        hint = "was it pruned, or may this token not see it?"
        better = errors.JobUnknown(f"no job has the id {request.job_id}", hint=hint)
    elif name in _OF_A_SUBMISSION and request.keys:
        better = errors.InvalidJob(str(error), hint="nothing was recorded")
    elif kind is not None:
        better = kind(str(error))
    else:
        return error
    better.__cause__ = error
    return better


def unavailable(request: Request, reply: NoAnswer, seconds: float) -> errors.ApiUnavailable:
    """Return the exception for when the time is over and no answer has come."""
    if not reply.sent:
        hint = "nothing was sent"
    elif request.keys:
        hint = "it may have been recorded: submit it again with the same idempotency key"
    elif request.repeatable:
        hint = "repeating it is safe"
    else:
        hint = "it may have been done: check before you repeat it"
    what = f"{type(reply.error).__name__}: {reply.error}".rstrip(": ")
    message = f"no answer to {request.method} {request.path} within {seconds:.1f} s ({what})"
    error = errors.ApiUnavailable(message, keys=request.keys, hint=hint)
    error.__cause__ = reply.error
    return error
