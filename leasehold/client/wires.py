"""Carry out steps with httpx: blocking, and on an event loop. The only two places that touch the network."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

import httpx

from leasehold.client.steps import Answer, Emit, Line, NoAnswer, Open, Pause, Reply, Request, Send, Step

_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_OUR_MISTAKE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.TooManyRedirects)


def lost(error: httpx.RequestError) -> NoAnswer:
    """What an error of the connection means."""
    if isinstance(error, _OUR_MISTAKE):
        raise error
    return NoAnswer(error=error, sent=not isinstance(error, _UNSENT))


def build(http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float) -> httpx.Request:
    """The request as httpx has it."""
    # The base is joined as text: httpx would decode and re-encode what is quoted on purpose.
    url = str(http.base_url).rstrip("/") + request.path
    return http.build_request(
        request.method,
        url,
        params=request.query or None,
        content=request.body,
        headers=list(request.headers),
        timeout=timeout,
    )


def head(response: httpx.Response, content: bytes = b"") -> Answer:
    """The answer as our steps have it."""
    return Answer(status=response.status_code, headers=response.headers, content=content)


def _read(response: httpx.Response, deadline: float) -> bytes:
    """The body; an answer that comes drop by drop must not take longer than one that does not come."""
    parts = []
    for part in response.iter_bytes():
        parts.append(part)
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the answer came too slowly")
    return b"".join(parts)


class Wire:
    """Carries out steps by blocking. One per operation: it holds the open stream, if there is one."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._open = ExitStack()
        self._lines: Iterator[str] = iter(())

    def perform(self, step: Step) -> Any:
        """Do it and give what came of it."""
        match step:
            case Send(request, timeout):
                return self._send(request, timeout)
            case Open(request, timeout):
                return self._send(request, timeout, keep=True)
            case Line():
                return self._line()
            case Pause(seconds):
                return time.sleep(seconds)
            case Emit():
                raise TypeError("only an iteration can emit")

    def close(self) -> None:
        """Close the open stream."""
        self._open.close()

    def _send(self, request: Request, timeout: float, *, keep: bool = False) -> Reply:
        self._open.close()
        deadline = time.monotonic() + timeout
        try:
            response = self._http.send(build(self._http, request, timeout), stream=True)
            self._open.callback(response.close)
            if keep and response.status_code == 200:
                self._lines = response.iter_lines()
                return head(response)
            return head(response, _read(response, deadline))
        except httpx.RequestError as error:
            return lost(error)

    def _line(self) -> str | None:
        try:
            return next(self._lines, None)
        except httpx.RequestError as error:
            lost(error)
            return None


class AsyncWire:
    """Carries out steps on the running event loop. One per operation."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._open = AsyncExitStack()
        self._lines: AsyncIterator[str] | None = None

    async def perform(self, step: Step) -> Any:
        """Do it and give what came of it."""
        match step:
            case Send(request, timeout):
                return await self._within(request, timeout)
            case Open(request, timeout):
                return await self._send(request, timeout, keep=True)
            case Line():
                return await self._line()
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Emit():
                raise TypeError("only an iteration can emit")

    async def close(self) -> None:
        """Close the open stream."""
        await self._open.aclose()

    async def _within(self, request: Request, seconds: float) -> Reply:
        try:
            async with asyncio.timeout(seconds):
                return await self._send(request, seconds)
        except TimeoutError as error:
            return NoAnswer(error=error, sent=True)

    async def _send(self, request: Request, seconds: float, *, keep: bool = False) -> Reply:
        await self._open.aclose()
        try:
            response = await self._http.send(build(self._http, request, seconds), stream=True)
            self._open.push_async_callback(response.aclose)
            if keep and response.status_code == 200:
                self._lines = response.aiter_lines()
                return head(response)
            return head(response, await response.aread())
        except httpx.RequestError as error:
            return lost(error)

    async def _line(self) -> str | None:
        try:
            return None if self._lines is None else await anext(self._lines, None)
        except httpx.RequestError as error:
            lost(error)
            return None
