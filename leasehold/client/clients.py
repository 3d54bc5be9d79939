"""The two clients: what they can do is written once, awaited, and run blocking."""

import functools
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack
from urllib.parse import quote
from uuid import UUID

import httpx

from leasehold._aio import run_blocking
from leasehold.client.events import events
from leasehold.client.exchange import HttpSession, Wire
from leasehold.client.problems import Request, name_of
from leasehold.client.views import MAX_JOBS, JobView, NewJob, Options, Page, decode, encode, not_ours, query_of
from leasehold.errors import ApiError, ConfigError, InvalidJob, ResultTimeout
from leasehold.version import __version__

P = ParamSpec("P")
T = TypeVar("T")

_JSON = (("Content-Type", "application/json"),)


def _bearer(token: str) -> Callable[[httpx.Request], httpx.Request]:
    """Return what adds the token to each request, and keeps it out of logs and reprs."""
    if not (token.isascii() and token.isprintable()) or " " in token or not token:
        raise ConfigError("the token has characters that no token has", hint="is it whole, without line ends?")

    def add(request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return add


class _BaseClient:
    """What both clients have: their settings, and a repr that shows no token."""

    _make: type[httpx.Client | httpx.AsyncClient]

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout: float = 30.0, try_timeout: float = 10.0
    ) -> None:
        """`timeout` is for one call with all its repetitions, `try_timeout` for each of them."""
        try:
            url = httpx.URL(base_url)
        except (httpx.InvalidURL, TypeError):
            raise ConfigError("the base URL is not a URL", hint="for example http://127.0.0.1:8484") from None
        if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment:
            raise ConfigError("the base URL is not that of an HTTP API", hint="for example http://127.0.0.1:8484")
        if url.userinfo:
            raise ConfigError("the base URL contains a password", hint="pass a token instead")
        http = self._make(
            base_url=url,
            auth=None if token is None else _bearer(token),
            headers={"User-Agent": f"leasehold/{__version__}", "Accept": "application/json"},
            follow_redirects=False,  # a token is for the server that it was given for
        )
        self._session = HttpSession(wire=Wire(http), timeout=timeout, try_timeout=try_timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._session.wire.http.base_url}>"

    async def _json(self, request: Request, seconds: float | None = None) -> Any:
        return decode((await self._session.call(request, seconds)).content)

    async def _object(self, request: Request) -> dict[str, Any]:
        data = await self._json(request)
        if not isinstance(data, dict):
            raise not_ours("something that is not an object")
        return data

    async def _finished(self, job_id: str | UUID, what: str, timeout: float | None) -> Any:  # noqa: ASYNC109
        """Poll until the job has finished, and return the response; ResultTimeout after `timeout` seconds."""
        clock = self._session.clock
        deadline = clock() + (math.inf if timeout is None else timeout)
        while True:
            left = max(deadline - clock(), 0.0)
            held = float(round(min(20.0, left)))  # one long poll; the server counts whole seconds
            limit = min(self._session.timeout + held, left + 2.0)  # for the response to the last poll to arrive
            try:
                data = await self._json(_of_job("GET", job_id, what, held=held), limit)
                if what == "/result" or JobView.read(data).finished:
                    return data
            except ApiError as error:
                if name_of(error) != "not-finished":
                    raise
            if clock() >= deadline:
                raise ResultTimeout(f"job {job_id} had not finished after {timeout} s", hint="it goes on")


class AsyncClient(_BaseClient):
    """Talks to a Leasehold API, awaited. Use it in an `async with` block, or close it."""

    _make = httpx.AsyncClient

    async def submit(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> JobView:
        """Record a job. Without a key one is made, and kept over all repetitions: one call, one job."""
        job = NewJob(kind, payload, **options)
        body = encode(job.fields())
        request = Request(method="POST", path="/jobs", body=body, headers=_JSON, keys=(job.idempotency_key,))
        return JobView.read(await self._json(request))

    async def submit_many(self, jobs: Iterable[NewJob]) -> list[JobView]:
        """Record up to 1,000 jobs in one transaction, all or nothing; the responses are in the order of the jobs."""
        given = list(jobs)
        if not 1 <= len(given) <= MAX_JOBS:
            raise InvalidJob(f"{len(given)} jobs are not 1 to {MAX_JOBS:,}", hint="submit them in parts")
        body = encode({"jobs": [job.fields() for job in given]})
        keys = tuple(job.idempotency_key for job in given)
        request = Request(method="POST", path="/jobs/batch", body=body, headers=_JSON, keys=keys)
        return [JobView.read(one) for one in _member(await self._json(request), "jobs", list)]

    async def get(self, job_id: str | UUID) -> JobView:
        """Return what has become of a job."""
        return JobView.read(await self._json(_of_job("GET", job_id)))

    async def wait(self, job_id: str | UUID, timeout: float | None = None) -> JobView:  # noqa: ASYNC109
        """Wait until the job has finished, whatever its status; ResultTimeout after `timeout` seconds."""
        return JobView.read(await self._finished(job_id, "", timeout))

    async def result(self, job_id: str | UUID, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Wait until the job has finished, and return what its task returned.

        Raises JobFailed or JobCancelled if it is dead, ResultTimeout after `timeout` seconds.
        """
        return _member(await self._finished(job_id, "/result", timeout), "result")

    async def cancel(self, job_id: str | UUID) -> JobView:
        """Cancel the job; IllegalTransition if it has already finished."""
        return JobView.read(await self._json(_of_job("DELETE", job_id)))

    async def list_jobs(self, /, **wanted: str | int | datetime | Mapping[str, object] | Sequence[str] | None) -> Page:
        """Return one page of the jobs that match; needs the scope `read`, with `metadata` also `operate`.

        `wanted`: the filters of GET /ops/jobs, such as kind, error_class or created_after, and `limit` and `cursor`.
        `metadata` is a mapping, all of which the jobs' own must have; `state` may be a list, any of which they are in.
        """
        data = await self._json(Request(method="GET", path="/ops/jobs", query=query_of(wanted)))
        return Page(jobs=tuple(_member(data, "jobs", list)), cursor=_member(data, "cursor"))

    async def explain(self, job_id: str | UUID) -> dict[str, Any]:
        """Why the job is not running."""
        return await self._object(_of_job("GET", job_id, "/explain", below="/ops/jobs/"))

    async def retry(self, job_id: str | UUID) -> dict[str, Any]:
        """Retry a dead job; needs the scope `operate`. Not repeated when its response is lost."""
        return await self._object(_of_job("POST", job_id, "/retry", below="/ops/jobs/", repeatable=False))

    async def pause(self, queue: str, reason: str) -> dict[str, Any]:
        """Let no job of the queue start until `resume`; needs the scope `operate`."""
        path = f"/ops/queues/{quote(queue, safe='')}/pause"
        body = encode({"reason": reason})
        return await self._object(Request(method="POST", path=path, body=body, headers=_JSON))

    async def resume(self, queue: str) -> dict[str, Any]:
        """Let jobs of the queue start again; needs the scope `operate`."""
        return await self._object(Request(method="POST", path=f"/ops/queues/{quote(queue, safe='')}/resume"))

    def events(self, job_id: str | UUID) -> AsyncIterator[JobView]:
        """Yield the job's view on each change until it has finished; reconnects by itself."""
        return events(self._session, job_id)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.wire.http.aclose()  # type: ignore[union-attr]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(method(self, *args, **kwargs))

    return blocking


class Client(_BaseClient):
    """Talks to a Leasehold API, blocking. Use it in a `with` block, or close it. Threads may share it."""

    _make = httpx.Client

    submit = _blocking(AsyncClient.submit)
    submit_many = _blocking(AsyncClient.submit_many)
    get = _blocking(AsyncClient.get)
    wait = _blocking(AsyncClient.wait)
    result = _blocking(AsyncClient.result)
    cancel = _blocking(AsyncClient.cancel)
    list_jobs = _blocking(AsyncClient.list_jobs)
    explain = _blocking(AsyncClient.explain)
    retry = _blocking(AsyncClient.retry)
    pause = _blocking(AsyncClient.pause)
    resume = _blocking(AsyncClient.resume)

    def events(self, job_id: str | UUID) -> Iterator[JobView]:
        """Yield the job's view on each change until it has finished; reconnects by itself."""
        views = events(self._session, job_id)
        try:
            while True:
                yield run_blocking(views.__anext__())
        except StopAsyncIteration:
            return
        finally:
            run_blocking(views.aclose())

    def close(self) -> None:
        """Close the connections."""
        self._session.wire.http.close()  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_job(
    method: str, job_id: str | UUID, what: str = "", *, below: str = "/jobs/", held: float = 0.0, **more: Any
) -> Request:
    path = f"{below}{quote(str(job_id), safe='')}{what}"
    query = (("wait", f"{held:.0f}"),) if held else ()
    return Request(method=method, path=path, query=query, held=held, job_id=str(job_id), **more)


def _member(data: object, name: str, kind: type = object) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get(name), kind):
        raise not_ours(f"an object without a proper {name}")
    return data.get(name)
