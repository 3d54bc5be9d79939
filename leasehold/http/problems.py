"""Every response that is an error: problem details (RFC 9457) with constant titles and stable types."""

import http
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import DEBUG, ERROR, WARNING
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leasehold import errors
from leasehold._logger import logger_of
from leasehold.operate.refusals import Reason, Refusal

MEDIA_TYPE: Final = "application/problem+json"

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """One type of problem."""

    status: int
    title: str
    meaning: str


KNOWN: Final[dict[str, Known]] = {
    "malformed-http": Known(400, "The request is not HTTP", "Neither the target nor the body was read."),
    "malformed-json": Known(400, "The body is not JSON", "It cannot be parsed, is not UTF-8, or names a field twice."),
    "key-conflict": Known(
        400,
        "Two different idempotency keys",
        "The Idempotency-Key header is there twice, or it and the field idempotencyKey differ. Send one of them.",
    ),
    "unauthorized": Known(
        401,
        "A token is needed",
        "Send `Authorization: Bearer lh_…`. The token is missing, malformed, unknown, revoked or expired.",
    ),
    "forbidden": Known(
        403, "The token does not allow this", "It lacks the scope, or it is not good for that queue or kind."
    ),
    "not-found": Known(404, "Not found", "There is no such thing, or the token may not see it."),
    "method-not-allowed": Known(405, "Method not allowed", "The Allow header names those that are."),
    "slow-body": Known(408, "The body took too long", "It did not arrive within the time given. Send it again."),
    "idempotency-conflict": Known(
        409,
        "The idempotency key is in use",
        "It belongs to a job of another type or payload, or to one that the token may not see. Use another key.",
    ),
    "already-finished": Known(409, "The job has already finished", "What has ended cannot be cancelled."),
    "not-finished": Known(409, "The job has not finished yet", "There is no result yet. Ask again after Retry-After."),
    "job-failed": Known(409, "The job has failed", "There will be no result; `reason` says why."),
    "illegal-transition": Known(409, "The job's state does not allow this", "The state machine has no such edge."),
    "body-too-large": Known(413, "The body is too large", "Store the data elsewhere and send a reference to it."),
    "unsupported-media-type": Known(415, "Unsupported media type", "Send application/json in UTF-8."),
    "invalid-request": Known(422, "The request is not valid", "`errors` names each field and what is wrong with it."),
    "head-too-large": Known(431, "The headers are too large", "The target and the headers together have a limit."),
    "rate-limited": Known(429, "Too many requests", "The token's rate is used up. Try again after Retry-After."),
    "internal": Known(500, "Internal error", "A defect of this server; its log has more."),
    "database-unavailable": Known(
        503, "The database is not available", "Nothing was recorded. Repeat the request after Retry-After."
    ),
    "outcome-unknown": Known(
        503,
        "The outcome is unknown",
        "It may or may not have been done. Repeat a submission with the same idempotency key; else look first.",
    ),
    "overloaded": Known(503, "Too many requests are waiting", "Nothing was recorded. Repeat it after Retry-After."),
    "schema-mismatch": Known(
        503, "The database's schema is not this release's", "An operator has to run `leasehold migrate`."
    ),
}  # fmt: skip

_BY_STATUS: Final = {
    400: ("malformed-json", "Bad Request"),
    404: ("not-found", "nothing is served here"),
    405: ("method-not-allowed", "another method is needed"),
    413: ("body-too-large", "Request Entity Too Large"),
}
"""What a router raises."""

_is_name: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*").fullmatch


class Problem(Exception):
    """Raised anywhere below the API, it becomes the answer."""

    def __init__(
        self,
        name: str,
        detail: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        **members: object,
    ) -> None:
        super().__init__(detail)
        self.name = name
        self.known = KNOWN[name]
        self.detail = detail
        self.members = members
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, round(retry_after)))

    def body(self, root: str = "") -> bytes:
        """Return the answer's body."""
        document: dict[str, object] = {
            "type": f"{root}/problems/{self.name}",
            "title": self.known.title,
            "status": self.known.status,
            "detail": self.detail,
            **self.members,
        }
        return json.dumps(document).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with it."""
        body = self.body(scope.get("root_path", ""))
        await Response(body, self.known.status, self.headers, MEDIA_TYPE)(scope, receive, send)


EXPECTED: Final = (Problem, errors.LeaseholdError, HTTPException, ClientDisconnect)
"""The errors that are no defects."""


def invalid(*errors: tuple[str, str]) -> Problem:
    """Return the problem of wrong fields, each with what is wrong."""
    named = [{"field": field, "message": message} for field, message in errors]
    return Problem("invalid-request", ": ".join(filter(None, errors[0])), errors=named)


def invalid_fields(errors: Iterable[Mapping[str, Any]], prefix: str = "") -> Problem:
    """Return the problem of what pydantic has found to be wrong: each field once, at most ten."""
    found: dict[str, str] = {}
    for error in errors:
        # Without the names of types that pydantic adds.
        place = [str(part) for n, part in enumerate(error["loc"]) if n == 0 or isinstance(part, int) or _is_name(part)]
        name = (prefix + ".".join(place))[:200]  # clients choose names, of any length
        words = "unknown field" if error["type"] == "extra_forbidden" else str(error["msg"])
        found.setdefault(name, words.removeprefix("Value error, "))
    return invalid(*itertools.islice(found.items(), 10))


def problem_of(error: Exception, doing: str = "", *, method: str = "GET") -> Problem:
    """Return the problem that a client sees in place of an error: the only place that decides this."""
    match error:
        case Problem():
            return error
        case HTTPException():
            name, words = _BY_STATUS.get(error.status_code, ("internal", http.HTTPStatus(error.status_code).phrase))
            return Problem(name, words, headers=error.headers)
        case Refusal():
            of_job: dict[str, Any] = {} if error.job is None else {"jobId": str(error.job)}
            return Problem(REFUSALS[error.reason], error.args[0], **of_job)
        case errors.InvalidArgument():
            return invalid(("", error.args[0]))
        case errors.LeaseholdError():
            unknown = isinstance(error, errors.DatabaseUnavailable) and error.sent and method not in {"GET", "HEAD"}
            ours = _UNKNOWN if unknown else next(known for kind, known in _OURS.items() if isinstance(error, kind))
            name, detail, retry_after, level = ours
            logger.log(level, "%s: %s", name, error)
            return Problem(name, detail or error.args[0], retry_after=retry_after)
        case _:
            logger.error("a defect while answering %s", doing, exc_info=error)
            return Problem("internal", "the server's log has more")


REFUSALS: Final[dict[Reason, str]] = {
    "unknown": "not-found", "forbidden": "forbidden",
    "finished": "already-finished", "wrong state": "illegal-transition",
}  # fmt: skip
"""The problems that refusals become."""

_UNKNOWN: Final = ("outcome-unknown", "PostgreSQL does not answer; it may or may not have been done", 1, WARNING)
_OTHER: Final = "the key belongs to a job of another type or payload"
_OURS: Final[dict[type[errors.LeaseholdError], tuple[str, str | None, int | None, int]]] = {
    errors.DatabaseReadOnly: ("database-unavailable", "the database of this server takes no writes", 1, WARNING),
    errors.DatabaseUnavailable: ("database-unavailable", "PostgreSQL does not answer; try again", 1, WARNING),
    errors.SchemaMismatch: ("schema-mismatch", "run `leasehold migrate`", 10, ERROR),
    errors.TokenTooStrong: ("forbidden", None, None, DEBUG),
    errors.JobUnknown: ("not-found", "no such job", None, DEBUG),
    errors.IdempotencyConflict: ("idempotency-conflict", _OTHER, None, DEBUG),
    errors.IllegalTransition: ("illegal-transition", None, None, DEBUG),
    errors.LeaseholdError: ("internal", "the server's log has more", None, ERROR),
}  # fmt: skip
"""The problem, its detail (None: the error's own words), Retry-After, and how it is logged. Subclasses come first."""


# -- in OpenAPI

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "Problem details, RFC 9457.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "description": "Stable; dereferenceable."},
        "title": {"type": "string", "description": "The same for every problem of the type."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened this time."},
        "errors": {
            "type": "array",
            "description": "Of invalid-request: each wrong field.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "jobId": {"type": "string", "format": "uuid", "description": "The job that this is about."},
        "idempotencyKey": {"type": "string", "description": "Of outcome-unknown: repeat the request with it."},
        "reason": {"type": "string", "description": "Of job-failed: why."},
    },
}


_REPEATED: Final = frozenset({"rate-limited", "database-unavailable", "not-finished"})
_RETRY_AFTER: Final = {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}}


def add_problems(found: dict[str, dict[str, Any]], *names: str) -> None:
    """Add these problems to the responses of an operation."""
    for name in names:
        known = KNOWN[name]
        answer = found.setdefault(str(known.status), {})
        schema = {"$ref": "#/components/schemas/Problem"}
        content = answer.setdefault("content", {}).setdefault(MEDIA_TYPE, {"schema": schema})
        examples = content.setdefault("examples", {})
        if name not in examples:
            value = {"type": f"/problems/{name}", "title": known.title, "status": known.status, "detail": known.meaning}
            examples[name] = {"summary": known.meaning, "value": value}
            answer["description"] = "; ".join(filter(None, [answer.get("description"), known.title]))
        if name in _REPEATED:
            answer.setdefault("headers", {}).setdefault("Retry-After", _RETRY_AFTER)
