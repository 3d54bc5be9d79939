"""Requests and their responses over httpx, blocking or on an event loop, repeated where that is safe.

Everything above is written once, as coroutines: with a blocking client they never suspend, see `run_blocking`.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

import httpx

from leasehold._aio import sleep
from leasehold.client.problems import NoAnswer, Reply, Request, Response, exception, unavailable

T = TypeVar("T")

_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_OUR_MISTAKE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.TooManyRedirects)


class Wire:
    """Sends requests and sleeps: the only place that touches the network."""

    def __init__(self, http: httpx.Client | httpx.AsyncClient) -> None:
        self.http = http
        self._blocking = isinstance(http, httpx.Client)

    async def send(self, request: Request, seconds: float) -> Reply:
        """Send the request and read the whole response."""
        deadline = time.monotonic() + seconds
        try:
            timeout = nullcontext() if self._blocking else asyncio.timeout(seconds)
            async with timeout, self._opened(request, seconds) as response:
                return await self._read(response, deadline)
        except TimeoutError as error:
            return NoAnswer(error=error, sent=True)
        except httpx.RequestError as error:
            return _lost(error)

    async def lines(self, request: Request, seconds: float) -> AsyncGenerator[Reply | str, None]:
        """Send the request; yield the reply and, if it is 200, each line of its body. `seconds`: between two lines."""
        try:
            async with self._opened(request, seconds) as response:
                if response.status_code != 200:
                    yield await self._read(response, math.inf)
                    return
                yield Response(status=200, headers=response.headers)
                async for line in _each(response.iter_lines() if self._blocking else response.aiter_lines()):
                    yield line
        except httpx.RequestError as error:
            yield _lost(error)

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        await sleep(seconds, blocking=self._blocking)

    @asynccontextmanager
    async def _opened(self, request: Request, seconds: float) -> AsyncIterator[httpx.Response]:
        built = self.http.build_request(
            request.method,
            # Joined as text: httpx would decode and re-encode what is quoted on purpose.
            str(self.http.base_url).rstrip("/") + request.path,
            params=request.query or None,
            content=request.body,
            headers=list(request.headers),
            timeout=seconds,
        )
        if isinstance(self.http, httpx.Client):
            response = self.http.send(built, stream=True)
        else:
            response = await self.http.send(built, stream=True)
        try:
            yield response
        finally:
            if self._blocking:
                response.close()
            else:
                await response.aclose()

    async def _read(self, response: httpx.Response, deadline: float) -> Response:
        """Return the whole response. One that arrives byte by byte may take no longer than one that does not arrive."""
        parts = []
        async for part in _each(response.iter_bytes() if self._blocking else response.aiter_bytes()):
            parts.append(part)
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer came too slowly")
        return Response(status=response.status_code, headers=response.headers, content=b"".join(parts))


async def _each(items: Iterator[T] | AsyncIterator[T]) -> AsyncIterator[T]:
    if isinstance(items, Iterator):
        for item in items:
            yield item
    else:
        async for item in items:
            yield item


def _lost(error: httpx.RequestError) -> NoAnswer:
    if isinstance(error, _OUR_MISTAKE):
        raise error
    return NoAnswer(error=error, sent=not isinstance(error, _UNSENT))


@dataclass(kw_only=True)
class HttpSession:
    """A wire, and how long a call on it may take."""

    wire: Wire = field(repr=False)
    timeout: float = 30.0  # seconds for one call with all its repetitions; each of them has `try_timeout`
    try_timeout: float = 10.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    chance: Callable[[], float] = field(default=random.random, repr=False)

    async def call(self, request: Request, seconds: float | None = None) -> Response:
        """Send the request until it is answered, or the time is over: `seconds`, if given, else the timeout."""
        began = self.clock()
        deadline = began + (self.timeout if seconds is None else seconds)
        tries = 0
        while True:
            left = max(deadline - self.clock(), 0.05)
            reply = await self.wire.send(request, min(self.try_timeout + request.held, left))
            if isinstance(reply, Response) and reply.status < 400:
                return reply
            tries += 1
            await self.pause(request, reply, tries, began, deadline)

    async def pause(self, request: Request, reply: Reply, tries: int, began: float, deadline: float) -> None:
        """Wait before the request is sent again; or raise what its reply means, if it must not be or time is over."""
        seconds = _before_next(request, reply, tries, self.chance())
        if seconds is None or self.clock() + seconds >= deadline:
            if isinstance(reply, Response):
                raise exception(request, reply)
            raise unavailable(request, reply, self.clock() - began)
        await self.wire.sleep(seconds)


def _before_next(request: Request, reply: Reply, tries: int, chance: float) -> float | None:
    """Return seconds to wait before the request is sent again, or None if it must not be."""
    if isinstance(reply, NoAnswer):
        return backoff(tries, chance) if request.repeatable or not reply.sent else None
    # 429: refused before anything was done, whatever the request.
    if reply.status == 429 or (reply.status in {502, 503, 504} and request.repeatable):
        return _asked_for(reply) + backoff(tries, chance)
    return None


def backoff(tries: int, chance: float) -> float:
    """Return a random time up to a bound that doubles, so that many clients do not come back together."""
    return min(5.0, 0.1 * 2.0 ** min(tries - 1, 16)) * chance


def _asked_for(answer: Response) -> float:
    """Return Retry-After in seconds: a number or a date."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 10 else math.inf
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
