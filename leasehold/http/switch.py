"""What is decided before FastAPI's router is asked: `POST /jobs`, which is most of the traffic, and wrong methods.

The router tries route after route, so a path such as /jobs/batch asked for with GET would be taken for a job's id, and
the Allow header of a 405 would name the methods of one route only.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold.errors import LeaseholdError
from leasehold.http.answers import Endpoint, SwiftRoute
from leasehold.http.paths import route_path
from leasehold.http.problems import Problem, problem_of

logger = logging.getLogger(__name__)


class Switch:
    """An ASGI middleware around the router."""

    def __init__(self, app: ASGIApp, route: Any, document: Callable[[], dict[str, Any]]) -> None:
        self._app = app
        self._route: SwiftRoute = route
        self._endpoint: Endpoint = route.endpoint
        self._document = document
        self._paths: list[tuple[re.Pattern[str], frozenset[str]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it, refuse its method, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        method: str = scope["method"]
        if method == "POST" and path == self._route.path:
            scope["route"] = self._route
            answer = await _answer(self._endpoint, Request(scope, receive, send))
            if answer is not None:
                await answer(scope, receive, send)
            return
        allowed = self._allowed(path)
        if allowed and method not in allowed:
            problem = Problem(
                "method-not-allowed", "another method is needed", headers={"allow": ", ".join(sorted(allowed))}
            )
            await problem(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, path: str) -> frozenset[str]:
        """The methods that the document has for a path; none for one that is not in it."""
        if not self._paths:
            paths = self._document()["paths"]
            # Fixed paths first: /jobs/batch is no job's id.
            for template in sorted(paths, key=lambda one: ("{" in one, one)):
                self._paths.append((_pattern(template), frozenset(method.upper() for method in paths[template])))
        return next((methods for pattern, methods in self._paths if pattern.fullmatch(path)), frozenset())


async def _answer(endpoint: Endpoint, request: Request) -> ASGIApp | None:
    """What the endpoint answers, whatever happens; None if nobody is there to hear it."""
    try:
        return await endpoint(request)
    except Problem as problem:
        return problem
    except LeaseholdError as error:
        return problem_of(error)
    except ClientDisconnect:
        return None
    except Exception:
        logger.exception("a defect while answering %s %s", request.method, request.url.path)
        return Problem("internal", "the server's log has more")


def _pattern(template: str) -> re.Pattern[str]:
    parts = ("[^/]+" if part.startswith("{") else re.escape(part) for part in template.split("/"))
    return re.compile("/".join(parts), re.DOTALL)
