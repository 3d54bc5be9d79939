"""What all requests have in common: an id, the version in the path, HEAD, and the headers that every answer carries."""

import logging
import re
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import Any, Final

from starlette.types import Message, Scope, Send

from leasehold.http.body import header

VERSION: Final = "1"
"""Of the API. Fields and routes may be added to it; what would break a client gets another one."""

PREFIX: Final = f"/v{VERSION}"

RATE: Final = "leasehold.rate"
"""In a request's scope: the token's requests a second, how many are left, in how many seconds there is one more."""

_SANE: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}").fullmatch
_PROCESS: Final = secrets.token_hex(4).encode()
_NUMBERS: Final = count(secrets.randbits(32))
"""Ids that are made here: of this process, and one after the other."""

_VERSION: Final = (b"api-version", VERSION.encode())

request_id: Final[ContextVar[str | None]] = ContextVar("leasehold_request_id", default=None)
"""The id of the request that is being answered."""


def fronted(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """The request as the routes see it, and the way for its answer."""
    given = header(scope, b"x-request-id")
    known = given if given is not None and _SANE(given) else b"%s%08x" % (_PROCESS, next(_NUMBERS) & 0xFFFFFFFF)
    request_id.set(known.decode())
    root: str = scope.get("root_path", "")
    if scope["path"].startswith(f"{root}{PREFIX}/"):
        scope = {**scope, "root_path": root + PREFIX}
    if scope["method"] == "HEAD":
        scope = {**scope, "method": "GET", "leasehold.head": True}
        send = _headless(send)

    async def signed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", known), _VERSION]
            if RATE in scope:
                message["headers"] += _rate(scope)
        await send(message)

    return scope, signed


def is_head(scope: Scope) -> bool:
    """Whether only the head of the answer was asked for."""
    return "leasehold.head" in scope


def _headless(send: Send) -> Send:
    """The answer without its body."""
    over = False

    async def sending(message: Message) -> None:
        nonlocal over
        if message["type"] == "http.response.body":
            if over:
                return
            over = True
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return sending


def _rate(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The fields of draft-ietf-httpapi-ratelimit-headers."""
    rate, left, seconds = scope[RATE]
    return [
        (b"ratelimit-policy", b'"token";q=%d;w=%d' % (max(1, round(rate)), max(1, round(1 / rate)))),
        (b"ratelimit", b'"token";r=%d;t=%d' % (left, seconds)),
    ]


def naming_requests(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """A factory of log records that know the request which they are about."""

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if (known := request_id.get()) is not None:
            record.request_id = known
        return record

    return made
