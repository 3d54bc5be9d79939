"""Every request: its id, the version in its path, HEAD, its operation; the headers of its response, counts, errors."""

import asyncio
import logging
import re
import secrets
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold import _failpoints as failpoints
from leasehold.http.body import header
from leasehold.http.problems import EXPECTED, Problem, problem_of

VERSION: Final = "1"
"""Of the API. Fields and routes may be added to it; a change that breaks clients gets another version."""

PREFIX: Final = f"/v{VERSION}"

RATE: Final = "leasehold.rate"
"""In a request's scope: the token's requests a second, how many are left, in how many seconds there is one more."""

ROUTE: Final = "leasehold.route"
"""In a request's scope: the template of its path, for the metrics. A path would be one series for each job."""

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Of the histogram of request times, in seconds."""

_HEAD: Final = "leasehold.head"
_SANE: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}").fullmatch
_PROCESS: Final = secrets.token_hex(4).encode()
_NUMBERS: Final = count(secrets.randbits(32))
"""For ids that are made here: the process and a running number."""

_VERSION: Final = (b"api-version", VERSION.encode())

request_id: Final[ContextVar[str | None]] = ContextVar("leasehold_request_id", default=None)
"""The id of the request that is being answered."""


class Meter:
    """Counts requests in plain numbers, without locks. Prometheus reads them, see `process.py`."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self.seconds: dict[str, float] = defaultdict(float)

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self.requests[method, route, status] += 1
        self.times[route][bisect_left(BOUNDS, seconds)] += 1
        self.seconds[route] += seconds


class Front:
    """The outermost ASGI middleware."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self._app = Problems(app)
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, sign its response, count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        known = header(scope, b"x-request-id") or b""
        if not _SANE(known):
            known = b"%s%08x" % (_PROCESS, next(_NUMBERS) & 0xFFFFFFFF)
        request_id.set(known.decode())
        if scope["method"] == "HEAD" or PREFIX in scope["path"]:
            scope, send = _plain(scope, send)
        status = 0

        async def signed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", known), _VERSION]
                if RATE in scope:
                    message["headers"] += _rate(scope)
            await send(message)

        try:
            await self._app(scope, receive, signed)
        finally:
            route = scope.get(ROUTE)
            method = "(any)" if route is None else scope["method"]
            self._meter.note(method, route or "(none)", status or 500, time.perf_counter() - begin)


class Problems:
    """The ASGI middleware that turns errors into problems."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with a problem if need be."""
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            answer: ASGIApp = Response(status_code=499)  # for the metrics: a client that is gone does not see it
            if not isinstance(error, ClientDisconnect):
                answer = problem_of(error, f"{scope['method']} {scope['path']!r}", method=scope["method"])
            await answer(scope, receive, send)
            if not isinstance(error, EXPECTED):
                raise  # a defect, for the server's log


def _plain(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Return the request without the version in its path, and with GET in place of HEAD."""
    root: str = scope.get("root_path", "")
    if scope["path"].startswith(f"{root}{PREFIX}/"):
        scope = {**scope, "root_path": root + PREFIX}
    if scope["method"] != "HEAD":
        return scope, send
    over = False

    async def headless(message: Message) -> None:
        nonlocal over
        if message["type"] == "http.response.body":
            if over:
                return
            over = True
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return {**scope, "method": "GET", _HEAD: True}, headless


def _rate(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the fields of draft-ietf-httpapi-ratelimit-headers."""
    rate, left, seconds = scope[RATE]
    return [
        (b"ratelimit-policy", b'"token";q=%d;w=%d' % (max(1, round(rate)), max(1, round(1 / rate)))),
        (b"ratelimit", b'"token";r=%d;t=%d' % (left, seconds)),
    ]


def naming_requests(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """Return a factory of log records that carry the id of the request being answered."""

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if (known := request_id.get()) is not None:
            record.request_id = known
        return record

    return made


# -- operations

Endpoint = Callable[..., Awaitable[ASGIApp]]
"""Takes the request, and if the operation needs a scope also the runtime and the caller."""


class Answer:
    """A response of JSON bytes."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (an ASGI application)
        """Send it."""
        armed = failpoints.ARMED and self.status == 202
        if armed:
            failpoints.reach("before-answer")
        headers = [*self.headers]
        if self.status != 304:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if armed:
            half = len(self.body) // 2
            await send({"type": "http.response.body", "body": self.body[:half], "more_body": True})
            failpoints.reach("half-answer")
            await send({"type": "http.response.body", "body": self.body[half:]})
            return
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    """A part `{name:name}` may hold slashes and be empty."""
    endpoint: Endpoint
    """Its docstring is the description."""
    name: str
    """The operationId; empty: not in the API's description."""
    summary: str = ""
    tag: str = "jobs"
    scopes: Sequence[str] = ()
    """The caller needs one of these; none: the operation is open to all."""
    parameters: Sequence[Mapping[str, Any]] = ()
    body: type[BaseModel] | None = None
    example: Mapping[str, Any] | None = None
    """Of the body."""
    result: type[BaseModel] | None = None
    answers: Mapping[int, Mapping[str, Any]]
    """The responses that are no problems: as in OpenAPI, without the schema of the result."""
    problems: Sequence[str] = ()
    """Besides those that every operation may answer with."""
    streams: bool = False
    """The response has no end, so HEAD is not allowed."""


def operation(
    target: str, name: str, summary: str, scopes: Sequence[str] = (), **more: Any
) -> Callable[[Endpoint], Operation]:
    """Make an operation of an endpoint. `target`: its method and path."""
    method, path = target.split()
    return lambda endpoint: Operation(
        method=method, path=path, endpoint=endpoint, name=name, summary=summary, scopes=scopes, **more
    )


class Table:
    """Finds the operation by path and method, admits the caller, and answers; 405 names all methods of the path.

    Starlette's router tries route after route: GET /jobs/batch would be the job of the id "batch", and the Allow
    header would name the methods of one route only.
    """

    def __init__(self, operations: Iterable[Operation], other: ASGIApp) -> None:
        self._other = other
        self._fixed: dict[str, dict[str, Operation]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Operation]]] = {}
        for one in operations:
            if "{" in one.path:
                known = re.sub(r"{(\w+):name}", r"(?P<\1>.*)", re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", one.path))
                self._patterns.setdefault(one.path, (re.compile(known, re.DOTALL), {}))[1][one.method] = one
            else:
                self._fixed.setdefault(one.path, {})[one.method] = one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        methods = None
        if scope["type"] == "http":
            root, path = scope.get("root_path", ""), scope["path"]
            path = path[len(root) :] if root and path.startswith(root) else path  # below where this is mounted
            methods = self._fixed.get(path)
            if methods is not None:
                scope[ROUTE] = path
            else:
                methods = self._match(scope, path)
        if methods is None:
            await self._other(scope, receive, send)
            return
        operation = methods.get(scope["method"])
        if operation is None or (operation.streams and _HEAD in scope):
            del scope[ROUTE]
            allowed = {*methods, "HEAD"} if "GET" in methods else methods
            headers = {"allow": ", ".join(sorted(allowed))}
            raise Problem("method-not-allowed", "another method is needed", headers=headers)
        request = Request(scope, receive)
        if operation.scopes:
            holder = scope["app"].state.leasehold
            parts = holder.current
            if parts is None or parts.loop is not asyncio.get_running_loop():
                parts = await holder.runtime()
            answer = await operation.endpoint(request, parts, await parts.gate.admit(scope, *operation.scopes))
        else:
            answer = await operation.endpoint(request)
        await answer(scope, receive, send)

    def _match(self, scope: Scope, path: str) -> dict[str, Operation] | None:
        for template, (pattern, methods) in self._patterns.items():
            if (match := pattern.fullmatch(path)) is not None:
                scope["path_params"] = match.groupdict()
                scope[ROUTE] = described_path(template)
                return methods
        return None


def described_path(template: str) -> str:
    """Return the path as OpenAPI has it."""
    return template.replace(":name}", "}")
