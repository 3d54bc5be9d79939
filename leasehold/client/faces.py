"""The two faces: the same operations, blocking or awaited."""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from uuid import UUID

import httpx

from leasehold.client import operations
from leasehold.client.events import events
from leasehold.client.retries import Patience
from leasehold.client.steps import Emit, Steps
from leasehold.client.views import JobView
from leasehold.client.wires import AsyncWire, Wire
from leasehold.errors import ConfigError
from leasehold.version import __version__

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[Patience, P], Steps[T]]


class _Bearer(httpx.Auth):
    """Adds the token to a request, and shows it to nobody else."""

    def __init__(self, token: str) -> None:
        if not (token.isascii() and token.isprintable()) or " " in token or not token:
            raise ConfigError("the token has characters that no token has", hint="is it whole, without line ends?")
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Any:
        """Called by httpx for each request."""
        request.headers["Authorization"] = self._header
        yield request


def _settings(base_url: str, token: str | None) -> dict[str, Any]:
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError):
        raise ConfigError("the base URL is not a URL", hint="for example http://127.0.0.1:8484") from None
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment:
        raise ConfigError("the base URL is not that of an HTTP API", hint="for example http://127.0.0.1:8484")
    if url.userinfo:
        raise ConfigError("the base URL contains a password", hint="give a token instead")
    return {
        "base_url": url,
        "auth": None if token is None else _Bearer(token),
        "headers": {"User-Agent": f"leasehold/{__version__}", "Accept": "application/json"},
        "follow_redirects": False,  # a token is for the server that it was given for
    }


def _blocking(operation: Operation[P, T]) -> "Callable[Concatenate[Client, P], T]":
    @functools.wraps(operation)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(operation(self._patience, *args, **kwargs))

    return method


def _awaited(operation: Operation[P, T]) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    @functools.wraps(operation)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(operation(self._patience, *args, **kwargs))

    return method


class _Face:
    """What both have: how patient they are, and a look that shows no token."""

    def __init__(self, base_url: str, timeout: float, try_timeout: float) -> None:
        self._patience = Patience(timeout=timeout, try_timeout=try_timeout)
        self._base_url = base_url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._base_url}>"


class Client(_Face):
    """Talks to a Leasehold API, blocking. Use it in a `with` block, or close it. Threads may share it."""

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout: float = 30.0, try_timeout: float = 10.0
    ) -> None:
        """`timeout` is for one call with all its repetitions, `try_timeout` for each of them."""
        super().__init__(base_url, timeout, try_timeout)
        self._http = httpx.Client(**_settings(base_url, token))

    submit = _blocking(operations.submit)
    submit_many = _blocking(operations.submit_many)
    get = _blocking(operations.get)
    wait = _blocking(operations.wait)
    result = _blocking(operations.result)
    cancel = _blocking(operations.cancel)
    list_jobs = _blocking(operations.list_jobs)
    explain = _blocking(operations.explain)
    retry = _blocking(operations.retry)
    pause = _blocking(operations.pause)
    resume = _blocking(operations.resume)

    def events(self, job_id: str | UUID) -> Iterator[JobView]:
        """The job's view on each change until it has finished; reconnects by itself."""
        steps, wire, reply = events(self._patience, job_id), Wire(self._http), None
        try:
            while True:
                step = steps.send(reply)
                reply = None
                if isinstance(step, Emit):
                    yield step.value
                else:
                    reply = wire.perform(step)
        except StopIteration:
            return
        finally:
            wire.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        wire, reply = Wire(self._http), None
        try:
            while True:
                reply = wire.perform(steps.send(reply))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            wire.close()


class AsyncClient(_Face):
    """Talks to a Leasehold API, awaited. Use it in an `async with` block, or close it."""

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout: float = 30.0, try_timeout: float = 10.0
    ) -> None:
        """`timeout` is for one call with all its repetitions, `try_timeout` for each of them."""
        super().__init__(base_url, timeout, try_timeout)
        self._http = httpx.AsyncClient(**_settings(base_url, token))

    submit = _awaited(operations.submit)
    submit_many = _awaited(operations.submit_many)
    get = _awaited(operations.get)
    wait = _awaited(operations.wait)
    result = _awaited(operations.result)
    cancel = _awaited(operations.cancel)
    list_jobs = _awaited(operations.list_jobs)
    explain = _awaited(operations.explain)
    retry = _awaited(operations.retry)
    pause = _awaited(operations.pause)
    resume = _awaited(operations.resume)

    async def events(self, job_id: str | UUID) -> AsyncIterator[JobView]:
        """The job's view on each change until it has finished; reconnects by itself."""
        steps, wire, reply = events(self._patience, job_id), AsyncWire(self._http), None
        try:
            while True:
                step = steps.send(reply)
                reply = None
                if isinstance(step, Emit):
                    yield step.value
                else:
                    reply = await wire.perform(step)
        except StopIteration:
            return
        finally:
            await wire.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        wire, reply = AsyncWire(self._http), None
        try:
            while True:
                reply = await wire.perform(steps.send(reply))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            await wire.close()
