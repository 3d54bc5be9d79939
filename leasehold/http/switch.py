"""What is decided before FastAPI's router is asked: which methods a path has.

The router tries route after route, so a path such as /jobs/batch asked for with GET would be taken for a job's id, and
the Allow header of a 405 would name the methods of one route only.
"""

import re
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold.http.front import is_head
from leasehold.http.paths import route_path
from leasehold.http.problems import Problem


class Switch:
    """An ASGI middleware around the router."""

    def __init__(self, app: ASGIApp, document: Callable[[], dict[str, Any]]) -> None:
        self._app = app
        self._document = document
        self._paths: list[tuple[re.Pattern[str], frozenset[str]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the method, or pass the request on."""
        if scope["type"] == "http":
            path = route_path(scope)
            allowed = self._allowed(path)
            # A stream has no end, so there is no head of it alone.
            if allowed and (scope["method"] not in allowed or (is_head(scope) and path.endswith("/events"))):
                headers = {"allow": ", ".join(sorted(allowed))}
                problem = Problem("method-not-allowed", "another method is needed", headers=headers)
                await problem(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _allowed(self, path: str) -> frozenset[str]:
        """The methods that the document has for a path; none for one that is not in it."""
        if not self._paths:
            paths = self._document()["paths"]
            # Fixed paths first: /jobs/batch is no job's id.
            for template in sorted(paths, key=lambda one: ("{" in one, one)):
                methods = {method.upper() for method in paths[template]}
                self._paths.append((_pattern(template), frozenset(methods | ({"HEAD"} if "GET" in methods else set()))))
        return next((methods for pattern, methods in self._paths if pattern.fullmatch(path)), frozenset())


def _pattern(template: str) -> re.Pattern[str]:
    parts = ("[^/]+" if part.startswith("{") else re.escape(part) for part in template.split("/"))
    return re.compile("/".join(parts), re.DOTALL)
