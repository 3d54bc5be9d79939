"""What the calls of one schema have in common."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar
from uuid import UUID

from psycopg import sql

from leasehold.config import checked_schema
from leasehold.db.call import Row


class Calls:
    """Some functions of the SQL API: one method each, which gives the call and runs nothing."""

    texts: ClassVar[Mapping[str, str]] = {}
    """The statements by method; `{}` is the schema."""

    def __init__(self, schema: str) -> None:
        self.schema = checked_schema(schema)
        prefix = sql.Identifier(schema)
        self._sql = {
            name: sql.SQL(text).format(prefix).as_string(None)
            for part in type(self).__mro__
            for name, text in vars(part).get("texts", {}).items()
        }


def scalar(rows: Sequence[Row]) -> Any:
    """The only value of the only row."""
    return rows[0][0]


def nothing(rows: Sequence[Row]) -> None:  # noqa: ARG001
    """What a function that returns void has to say."""
    return


def uuid(rows: Sequence[Row]) -> UUID:
    """The only value, whatever the driver makes of a uuid."""
    value = rows[0][0]
    return value if type(value) is UUID else UUID(str(value))


def texts(rows: Sequence[Row]) -> set[str]:
    """The first column, in no order."""
    return {row[0] for row in rows}


@lru_cache
def array_of(names: tuple[str, ...]) -> str:
    """Names as the text of an array. Those of a worker are the same in every claim."""
    quoted = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"
