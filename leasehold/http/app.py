"""The API as an application: `leasehold.api(app)` to mount, `leasehold serve` to run."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold.app import App
from leasehold.errors import LeaseholdError
from leasehold.http import health, jobs, metrics, ops, submissions
from leasehold.http.body import field_of, words
from leasehold.http.front import fronted, request_id
from leasehold.http.openapi import document
from leasehold.http.problems import Problem, invalid, problem_of, problem_of_status
from leasehold.http.runtime import Holder
from leasehold.http.settings import ApiSettings, Tokens
from leasehold.http.switch import Switch
from leasehold.version import __version__

logger = logging.getLogger(__name__)


def api(app: App, *, tokens: Tokens | None = None, settings: ApiSettings | None = None) -> FastAPI:
    """The HTTP API of the app's database, to be served or mounted: `web.mount("/leasehold", leasehold.api(app))`.

    A mounted application is not told when the server starts and stops: this one starts at its first request, and
    `await api.state.leasehold.aclose()` closes its connections.
    """
    settings = settings or ApiSettings()
    if tokens is not None:
        settings = replace(settings, tokens=tokens)
    holder = Holder(app, settings, metrics.Meter())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await holder.aclose()

    made = Api(
        title="Leasehold",
        version=__version__,
        description="Records the intent to run jobs, and shows what came of them. It never runs one.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # one spelling of each path; a redirected POST would lose its body
        exception_handlers={
            Problem: _as_it_is,
            LeaseholdError: _ours,
            HTTPException: _of_router,
            RequestValidationError: _of_fastapi,
            ClientDisconnect: _nobody,
            Exception: _defect,
        },
    )
    made.state.leasehold = holder
    made.add_middleware(Switch, document=lambda: document(made))
    made.add_middleware(metrics.Metering, meter=holder.meter)
    made.own_middleware = len(made.user_middleware)
    # Straight into the list: the route of POST /jobs is asked first, and nothing of a router lies in between.
    made.router.routes[:0] = submissions.router.routes
    for router in (jobs.router, health.router, metrics.router, ops.router):
        made.include_router(router)
    made.openapi = lambda: document(made)  # type: ignore[method-assign]
    return made


class Api(FastAPI):
    """A FastAPI application whose busiest route goes past the machinery, which takes a quarter of its time."""

    own_middleware = 0
    """How many of its middlewares are not somebody else's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http":
            scope, send = fronted(scope, send)
        # Whoever adds a middleware of their own wants it for every request.
        if (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and scope["path"] == f"{scope.get('root_path', '')}/jobs"
            and len(self.user_middleware) == self.own_middleware
        ):
            await self._submit(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _submit(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        scope["app"] = self
        status = 500
        request = Request(scope, receive, send)
        try:
            answer = await submissions.submit_job(request)
            status = answer.status
            await answer(scope, receive, send)
        except (Problem, LeaseholdError) as error:
            problem = error if isinstance(error, Problem) else problem_of(error)
            status = problem.known.status
            await problem(scope, receive, send)
        except ClientDisconnect:
            status = 499
        except Exception as error:
            await (await _defect(request, error))(scope, receive, send)
            raise
        finally:
            self.state.leasehold.meter.note("POST", "/jobs", status, time.perf_counter() - begin)


async def _as_it_is(_: Request, error: Any) -> Response:
    return _response(error)


async def _ours(_: Request, error: Any) -> Response:
    return _response(problem_of(error))


async def _of_router(_: Request, error: Any) -> Response:
    return _response(problem_of_status(error.status_code, error.headers))


async def _of_fastapi(_: Request, error: Any) -> Response:
    found: dict[str, str] = {}
    for part in error.errors()[:20]:
        if part["type"] != "none_required":  # in a query a field is there or it is not
            found.setdefault(field_of(part["loc"][1:]), words(part["type"], str(part["msg"])))
    return _response(invalid(*found.items()))


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # the client is gone: nobody sees this


async def _defect(request: Request, error: Exception) -> Response:
    what = request.method, request.scope["path"], request_id.get()
    logger.error("a defect while answering %s %r (request %s)", *what, exc_info=error)
    return _response(Problem("internal", "the server's log has more"))


def _response(problem: Any) -> Response:
    return _ProblemResponse(problem)


class _ProblemResponse(Response):
    """A problem, which is an ASGI application already, where a Response is asked for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(status_code=problem.known.status)
        self._problem: ASGIApp = problem

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._problem(scope, receive, send)
