"""What the calls of one schema have in common."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, TypeVar

from psycopg import sql

from leasehold.config import checked_schema
from leasehold.db.call import Call, Row

T = TypeVar("T")


def scalar(rows: Sequence[Row]) -> Any:
    """Return the only value of the only row."""
    return rows[0][0]


def nothing(rows: Sequence[Row]) -> None:  # noqa: ARG001
    """Return the result of a function that returns void."""
    return


def column(rows: Sequence[Row]) -> list[Any]:
    """Return the first column."""
    return [row[0] for row in rows]


def from_json(row: Callable[..., T], value: dict[str, Any], *times: str) -> T:
    """Return a row that SQL has made as JSON, in which moments are texts."""
    return row(**value | {name: value[name] and datetime.fromisoformat(value[name]) for name in times})


class Calls:
    """Some functions of the SQL API: one method each, which returns the call and runs nothing."""

    def __init__(self, schema: str) -> None:
        self.schema = checked_schema(schema)
        self._prefix = sql.Identifier(schema).as_string(None)

    def _ask(
        self,
        function: str,
        *args: object,
        columns: str = "",
        read: Callable[[Sequence[Row]], T] = scalar,
        repeatable: bool = True,
    ) -> Call[T]:
        """Call a function for its value, or for some columns of its rows."""
        return Call(_text(self._prefix, function, len(args), columns), args, read, repeatable=repeatable)

    def _list(
        self, row: Callable[..., T], function: str, *args: object, columns: str = "", repeatable: bool = True
    ) -> Call[list[T]]:
        """Call a function for its rows; their columns have the names of the fields of `row`, or those given."""
        read = lambda rows: [row(*values) for values in rows]  # noqa: E731
        return self._ask(function, *args, columns=columns or columns_of(row), read=read, repeatable=repeatable)

    def _row(
        self, row: Callable[..., T], function: str, *args: object, columns: str = "", repeatable: bool = True
    ) -> Call[T]:
        """Call a function for its only row."""
        read = lambda rows: row(*rows[0])  # noqa: E731
        return self._ask(function, *args, columns=columns or columns_of(row), read=read, repeatable=repeatable)


@cache
def _text(prefix: str, function: str, places: int, columns: str) -> str:
    call = f"{prefix}.{function}({', '.join(['%s'] * places)})"
    return f"select {columns} from {call}" if columns else f"select {call}"  # noqa: S608 (names of ours)


@cache
def filled(text: str, prefix: str) -> str:
    """Return a statement that is more than a call of one function; `{}` in it is the schema."""
    return text.replace("{}", prefix)


@cache
def columns_of(row: Callable[..., object], **instead: str) -> str:
    """Return the names of the fields of a dataclass or a NamedTuple, as columns; `instead` has others for some."""
    names = getattr(row, "_fields", None) or getattr(row, "__dataclass_fields__")  # noqa: B009
    return ", ".join(instead.get(name, name) for name in names)


@lru_cache
def array_of(names: tuple[str, ...]) -> str:
    """Return names as the text of an array. Those of a worker are the same in every claim."""
    quoted = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"
