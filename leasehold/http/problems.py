"""Every answer that is not the one hoped for: problem details (RFC 9457) with constant titles and stable types."""

import http
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from leasehold.errors import (
    DatabaseReadOnly,
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidJob,
    JobUnknown,
    LeaseholdError,
    SchemaMismatch,
    TokenTooStrong,
)

MEDIA_TYPE: Final = "application/problem+json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """One type of problem."""

    status: int
    title: str
    meaning: str


KNOWN: Final[dict[str, Known]] = {
    "malformed-http": Known(400, "The request is not HTTP", "Neither the target nor the body was looked at."),
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
        "The job may or may not have been recorded. Repeat the request with the same idempotency key.",
    ),
    "overloaded": Known(503, "Too many requests are waiting", "Nothing was recorded. Repeat it after Retry-After."),
    "schema-mismatch": Known(
        503, "The database's schema is not this release's", "An operator has to run `leasehold migrate`."
    ),
}  # fmt: skip

_BY_STATUS: Final = {400: "malformed-json", 404: "not-found", 405: "method-not-allowed", 413: "body-too-large"}


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
        """The answer's body."""
        document: dict[str, object] = {
            "type": f"{root}/problems/{self.name}",
            "title": self.known.title,
            "status": self.known.status,
            "detail": self.detail,
            **self.members,
        }
        return json.dumps(document).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (an ASGI application)
        """Answer with it."""
        body = self.body(scope.get("root_path", ""))
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()),
        ]
        await send({"type": "http.response.start", "status": self.known.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def invalid(*errors: tuple[str, str]) -> Problem:
    """What is wrong with which field."""
    first = errors[0]
    detail = f"{first[0]}: {first[1]}" if first[0] else first[1]
    return Problem(
        "invalid-request", detail, errors=[{"field": field, "message": message} for field, message in errors]
    )


def problem_of(error: LeaseholdError) -> Problem:  # noqa: PLR0911 (a table)
    """What one of our own errors means to a client."""
    match error:
        case DatabaseReadOnly():
            logger.warning("%s", error)
            return Problem("database-unavailable", "the database of this server takes no writes", retry_after=1)
        case DatabaseUnavailable():
            logger.warning("the database is not available: %s", error)
            return Problem("database-unavailable", "PostgreSQL does not answer; try again", retry_after=1)
        case SchemaMismatch():
            logger.error("%s", error)
            return Problem("schema-mismatch", "run `leasehold migrate`", retry_after=10)
        case TokenTooStrong():
            return Problem("forbidden", error.args[0])
        case JobUnknown():
            return Problem("not-found", "no such job")
        case IdempotencyConflict():
            return Problem("idempotency-conflict", "the key belongs to a job of another type or payload")
        case IllegalTransition():
            return Problem("illegal-transition", error.args[0])
        case InvalidJob():
            return invalid(("", error.args[0]))
        case _:
            logger.error("an error that no client should see: %s", error)
            return Problem("internal", "the server's log has more")


def problem_of_status(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    """What the router has to say: 404, 405, and little else."""
    name = _BY_STATUS.get(status, "internal")
    words = {404: "nothing is served here", 405: "another method is needed"}
    return Problem(name, words.get(status, http.HTTPStatus(status).phrase), headers=headers)


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


def responses(*names: str) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route that may answer with these problems."""
    found: dict[int | str, dict[str, Any]] = {}
    for name in names:
        known = KNOWN[name]
        answer = found.setdefault(known.status, {"description": "", "content": {MEDIA_TYPE: {}}})
        answer["description"] = "; ".join(filter(None, [answer["description"], known.title]))
        content = answer["content"][MEDIA_TYPE]
        content["schema"] = {"$ref": "#/components/schemas/Problem"}
        content.setdefault("examples", {})[name] = {
            "summary": known.meaning,
            "value": {
                "type": f"/problems/{name}",
                "title": known.title,
                "status": known.status,
                "detail": known.meaning,
            },
        }
        if name in {"rate-limited", "database-unavailable", "not-finished"}:
            answer.setdefault("headers", {})["Retry-After"] = {
                "description": "Seconds after which to try again.",
                "schema": {"type": "integer", "minimum": 1},
            }
    return found
