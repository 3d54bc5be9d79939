"""Paths: below a mount, and with names in them of queues, limits and schedules, which may hold whatever names may."""

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Scope


class _Name(Convertor[str]):
    """Starlette's own `path` stops at a line end, and drops one at the end of the path."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _Name())


def route_path(scope: Scope) -> str:
    """The path below the place where this application is mounted."""
    root, path = scope.get("root_path", ""), scope["path"]
    return path[len(root) :] if root and path.startswith(root) else path  # type: ignore[no-any-return]
