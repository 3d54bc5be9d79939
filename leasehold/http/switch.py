"""What is decided before FastAPI's router is asked: which methods a path has.

The router tries route after route, so a path such as /jobs/batch asked for with GET would be taken for a job's id, and
the Allow header of a 405 would name the methods of one route only.
"""

import re
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

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
            allowed = self._allowed(_route_path(scope))
            if allowed and scope["method"] not in allowed:
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
                self._paths.append((_pattern(template), frozenset(method.upper() for method in paths[template])))
        return next((methods for pattern, methods in self._paths if pattern.fullmatch(path)), frozenset())


def _route_path(scope: Scope) -> str:
    """The path below the place where this application is mounted."""
    root, path = scope.get("root_path", ""), scope["path"]
    return path[len(root) :] if root and path.startswith(root) else path  # type: ignore[no-any-return]


def _pattern(template: str) -> re.Pattern[str]:
    parts = ("[^/]+" if part.startswith("{") else re.escape(part) for part in template.split("/"))
    return re.compile("/".join(parts), re.DOTALL)
