"""What the commands that look into a database have in common: where it is, and how they print what they find."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import typer

from leasehold.cli.console import say
from leasehold.config import Settings
from leasehold.db.compat import Presence
from leasehold.db.migrate import check
from leasehold.db.pool import Database
from leasehold.locate import located

Dsn = Annotated[
    str | None, typer.Option("--dsn", help="The database; LEASEHOLD_DSN when left out.", show_default=False)
]
Schema = Annotated[str | None, typer.Option("--schema", help="Its schema; LEASEHOLD_SCHEMA when left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@contextmanager
def connected(dsn: str | None, schema: str | None) -> Iterator[Database]:
    """The database, if it is there and has a schema that this release knows."""
    settings = Settings.from_env(dsn=dsn, schema=schema)
    with located(settings, say=say) as where:
        say_if_standby(check(where, schema=settings.schema))
        database = Database(where, schema=settings.schema, prepare=settings.prepare)
        try:
            yield database
        finally:
            database.close()


def say_if_standby(found: Presence) -> None:
    """What is shown may be older than what the primary has, and changes are refused: say so once."""
    if found.standby:
        say("this server is a standby: it shows what it has received so far, and takes no changes")


def print_json(value: Any) -> None:
    """Print a result for programs: names are written as the HTTP API writes them."""
    typer.echo(json.dumps(plain(value)))


def plain(value: Any) -> Any:
    """The value as JSON has it. What a job carries, a mapping within a value, keeps the names it has."""
    match value:
        case list() | tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {_camel(name): _part(part) for name, part in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {_camel(field.name): _part(getattr(value, field.name)) for field in fields(value)}
        case _:
            return _part(value)


def _part(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_part(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(value)
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    return value


_WRITERS: dict[type, Callable[[Any], Any]] = {
    datetime: datetime.isoformat,
    timedelta: timedelta.total_seconds,
    UUID: str,
    Decimal: float,
}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
