"""The dashboard as an application below the API's: routes, who may use them, and what a failure shows."""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.http.body import header, read_model
from leasehold.http.cache import Cache
from leasehold.http.front import ROUTE
from leasehold.http.problems import EXPECTED, problem_of
from leasehold.http.runtime import Holder, Runtime
from leasehold.web import assets, live, session
from leasehold.web.actions import ACTIONS, Action
from leasehold.web.pages import job, jobs, lists, overview
from leasehold.web.render import SECURITY, page
from leasehold.web.session import CSRF_COOKIE, admit, set_cookie
from leasehold.web.visit import DemoControls, Visit

PATH: Final = "/dashboard"

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Visit], Awaitable[Response]]
OpenView = Callable[[Request, Runtime], Awaitable[Response]]

VIEWS: Final[dict[str, View]] = {
    "/": overview.show,
    "/queues": lists.show_queues,
    "/jobs": jobs.show,
    "/jobs/{job_id}": job.show,
    "/errors": lists.show_errors,
    "/workers": lists.show_workers,
    "/schedules": lists.show_schedules,
    "/system": lists.show_system,
    "/data/statistics": overview.statistics,
    "/data/scoreboard": overview.scoreboard,
    "/live": live.stream,
}
"""By path below the dashboard's own."""

OPEN: Final[dict[tuple[str, str], OpenView]] = {
    ("POST", "/jobs/search"): jobs.search,
    ("GET", "/sign-in"): session.sign_in_form,
    ("POST", "/sign-in"): session.sign_in,
    ("POST", "/sign-out"): session.sign_out,
}
"""What needs no session, by method and path."""


def attach(api: Starlette, *, demo: DemoControls | None = None) -> None:
    """Serve the dashboard below an API, and redirect browsers that ask for the API's root to it."""
    api.router.routes.append(Route("/", _lead, methods=["GET"], include_in_schema=False))
    api.router.routes.append(Route(PATH, _lead, methods=["GET"], include_in_schema=False))
    api.router.routes.append(Mount(PATH, app=_secured(dashboard(api.state.leasehold, demo=demo))))


async def _lead(request: Request) -> Response:
    if "text/html" not in request.headers.get("accept", "") and request.scope["path"].endswith("/"):
        raise HTTPException(404)
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/", status_code=307)


def dashboard(holder: Holder, *, demo: DemoControls | None = None) -> Starlette:
    """Return the dashboard of an API's database."""
    site = _Site(holder, demo)
    made = Starlette(
        routes=[
            _route("GET", "/static/{edition}/{name}", assets.serve, "/static"),
            *(_route("GET", path, partial(site.view, show)) for path, show in VIEWS.items()),
            *(_route(method, path, partial(site.open, show)) for (method, path), show in OPEN.items()),
            *(_route("POST", path, partial(site.action, *action)) for path, action in ACTIONS.items()),
        ],
        exception_handlers=dict.fromkeys((*EXPECTED, Exception), _answer_error),
    )
    made.router.redirect_slashes = False
    made.state.leasehold = holder
    return made


def _route(method: str, path: str, endpoint: Endpoint, name: str | None = None) -> Route:
    async def named(request: Request) -> Response:
        # For the metrics: the template of the path, never the path.
        request.scope[ROUTE] = f"{PATH}{name or path}"
        return await endpoint(request)

    return Route(path, named, methods=[method])


class _Site:
    """Serves views and actions."""

    def __init__(self, holder: Holder, demo: DemoControls | None) -> None:
        self._holder = holder
        self._demo = demo
        self._cache = Cache()

    async def view(self, show: View, request: Request) -> Response:
        """Serve a page to visitors who may read."""
        visit = await self._visit(request)
        response = await show(visit)
        if request.cookies.get(CSRF_COOKIE) != visit.csrf:
            set_cookie(request, response, CSRF_COOKIE, visit.csrf)
        return response

    async def action(self, model: type[BaseModel], act: Action, request: Request) -> Response:
        """Serve an action to visitors who may write."""
        visit = await self._visit(request)
        visit.check_write()
        return await act(visit, await read_model(request, model))

    async def open(self, show: OpenView, request: Request) -> Response:
        """Serve a page that needs no session."""
        return await show(request, await self._holder.runtime())

    async def _visit(self, request: Request) -> Visit:
        parts = await self._holder.runtime()
        caller = await admit(request, parts)
        csrf = request.cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(24)
        return Visit(request=request, parts=parts, caller=caller, cache=self._cache, demo=self._demo, csrf=csrf)


def _secured(app: ASGIApp) -> ASGIApp:
    """Return the application with the security headers on every answer."""
    headers = [(name.encode(), value.encode()) for name, value in SECURITY.items()]

    async def secured(scope: Scope, receive: Receive, send: Send) -> None:
        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await app(scope, receive, signed)

    return secured


async def _answer_error(request: Request, error: Any) -> Response:
    """Return what is wrong: as a page to people, as JSON to scripts."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # for the metrics: the client does not see it
    problem = problem_of(error, f"{request.method} {request.scope['path']!r}", method=request.method)
    status = problem.known.status
    if request.method != "GET" or header(request.scope, b"sec-fetch-dest") == b"empty":
        document = {"title": problem.known.title, "message": problem.detail, **problem.members}
        return JSONResponse(document, status_code=status, headers={**problem.headers, "cache-control": "no-store"})
    if status == 401:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", status_code=303)
    response = page(request, "problem.html", {"visit": None, "problem": problem}, status=status)
    response.headers.update({name: value for name, value in problem.headers.items() if name == "retry-after"})
    return response
