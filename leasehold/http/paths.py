"""Names in paths, of queues, limits and schedules: they may hold slashes, line ends and whatever names may hold."""

from starlette.convertors import Convertor, register_url_convertor


class _Name(Convertor[str]):
    """Starlette's own `path` stops at a line end, and drops one at the end of the path."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _Name())
