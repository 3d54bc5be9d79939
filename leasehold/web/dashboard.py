"""The dashboard as an application below the API's: routes, who may use them, and what is said on failure."""

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.errors import LeaseholdError
from leasehold.http.body import header, read_model
from leasehold.http.cache import Cache
from leasehold.http.problems import Problem, problem_of, problem_of_status
from leasehold.http.runtime import Holder
from leasehold.web import actions, live, pages
from leasehold.web.assets import served
from leasehold.web.demo import DemoControls
from leasehold.web.render import SECURITY, page
from leasehold.web.session import admit, check_write, keep_csrf
from leasehold.web.visit import Visit

logger = logging.getLogger(__name__)

PATH: Final = "/dashboard"

View = Callable[[Visit], Awaitable[Response]]


def attach(api: FastAPI, *, demo: DemoControls | None = None) -> None:
    """Serve the dashboard below an API, and lead browsers that ask for the API's root to it."""
    api.router.routes.append(Route("/", _lead, methods=["GET"], include_in_schema=False))
    api.router.routes.append(Route(PATH, _lead, methods=["GET"], include_in_schema=False))
    api.router.routes.append(Mount(PATH, app=Secured(dashboard(api.state.leasehold, demo=demo))))


async def _lead(request: Request) -> Response:
    if "text/html" not in request.headers.get("accept", "") and request.scope["path"].endswith("/"):
        raise HTTPException(404)
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/", status_code=307)


def dashboard(holder: Holder, *, demo: DemoControls | None = None) -> Starlette:
    """The dashboard of an API's database."""
    site = _Site(holder, demo)
    routes = [Route("/static/{edition}/{name}", _static, methods=["GET"])]
    for path, view in pages.VIEWS.items():
        routes.append(Route(path, site.view(f"{PATH}{path}", view), methods=["GET"]))
    routes.append(Route("/live", site.view(f"{PATH}/live", live.stream), methods=["GET"]))
    routes.append(Route("/jobs/search", site.open(pages.jobs.search), methods=["POST"]))
    routes.append(Route("/sign-in", site.open(pages.signing.form), methods=["GET"]))
    routes.append(Route("/sign-in", site.open(pages.signing.sign_in), methods=["POST"]))
    routes.append(Route("/sign-out", site.open(pages.signing.sign_out), methods=["POST"]))
    for path, (model, act) in actions.ACTIONS.items():
        routes.append(Route(path, site.action(f"{PATH}{path}", model, act), methods=["POST"]))
    handlers: dict[Any, Any] = {
        Problem: _tell,
        LeaseholdError: _tell,
        HTTPException: _tell,
        ClientDisconnect: _nobody,
        Exception: _defect,
    }
    made = Starlette(routes=routes, exception_handlers=handlers)
    made.router.redirect_slashes = False
    made.state.leasehold = holder
    return made


class _Site:
    """Makes routes of views and actions."""

    def __init__(self, holder: Holder, demo: DemoControls | None) -> None:
        self._holder = holder
        self._demo = demo
        self._cache = Cache()

    def view(self, template: str, view: View) -> Callable[[Request], Awaitable[Response]]:
        """A page for whoever may look."""

        async def show(request: Request) -> Response:
            _name(request, template)
            visit = await self._visit(request)
            response = await view(visit)
            keep_csrf(request, response, visit.visitor)
            return response

        return show

    def action(
        self, template: str, model: type[BaseModel], act: Callable[[Visit, Any], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Something that changes something."""

        async def do(request: Request) -> Response:
            _name(request, template)
            visit = await self._visit(request)
            check_write(request, visit.visitor)
            wanted = await read_model(request, model, self._holder.settings)
            return await act(visit, wanted)

        return do

    def open(self, view: Callable[[Request, Any], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Something for anybody."""

        async def show(request: Request) -> Response:
            _name(request, f"{PATH}/sign-in")
            return await view(request, await self._holder.runtime())

        return show

    async def _visit(self, request: Request) -> Visit:
        parts = await self._holder.runtime()
        visitor = await admit(request, parts)
        return Visit(request=request, parts=parts, visitor=visitor, cache=self._cache, demo=self._demo)


class Secured:
    """An ASGI application all of whose answers carry the security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in SECURITY.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        await self._app(scope, receive, secured)


def _name(request: Request, template: str) -> None:
    # For the metrics: the template of the path, never the path.
    request.scope["route"] = SimpleNamespace(path=template)


async def _static(request: Request) -> Response:
    _name(request, f"{PATH}/static")
    found = served(request.path_params["edition"], request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return found


async def _tell(request: Request, error: Any) -> Response:
    """What is wrong: as a page to people, as JSON to scripts."""
    if isinstance(error, HTTPException):
        problem = problem_of_status(error.status_code, error.headers)
    else:
        problem = error if isinstance(error, Problem) else problem_of(error)
    status = problem.known.status
    if request.method != "GET" or header(request.scope, b"sec-fetch-dest") == b"empty":
        document = {"title": problem.known.title, "message": problem.detail, **problem.members}
        return JSONResponse(document, status_code=status, headers={**problem.headers, "cache-control": "no-store"})
    base = request.scope.get("root_path", "")
    if status == 401:
        return RedirectResponse(f"{base}/sign-in", status_code=303)
    context = {"visitor": None, "demo": False, "title": problem.known.title, "problem": problem, "status": status}
    response = page(request, "problem.html", context, status=status)
    response.headers.update({name: value for name, value in problem.headers.items() if name == "retry-after"})
    return response


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # the client is gone: nobody sees this


async def _defect(request: Request, error: Exception) -> Response:
    logger.error("a defect while answering %s %r", request.method, request.scope["path"], exc_info=error)
    return await _tell(request, Problem("internal", "the server's log has more"))
