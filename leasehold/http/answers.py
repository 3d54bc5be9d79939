"""Answers whose bytes are made by hand, and routes that are documented by FastAPI but go without its machinery."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold import failpoints

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


class Answer:
    """Bytes of JSON with a status."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (an ASGI application)
        """Send it."""
        if failpoints.ARMED:
            failpoints.reach("before-answer")
        headers = [*self.headers]
        if self.status != 304:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if failpoints.ARMED:
            half = len(self.body) // 2
            await send({"type": "http.response.body", "body": self.body[:half], "more_body": True})
            failpoints.reach("half-answer")
            await send({"type": "http.response.body", "body": self.body[half:]})
            return
        await send({"type": "http.response.body", "body": self.body})


class SwiftRoute(APIRoute):
    """A route whose endpoint takes the request and gives an ASGI application.

    FastAPI documents it; reading and checking what comes is the endpoint's own work.
    """

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answer = await endpoint(Request(scope, receive, send))
            await answer(scope, receive, send)

        self.app = app
