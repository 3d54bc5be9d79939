"""What the commands that look into a database have in common: where it is, and how they print what they find."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from leasehold.cli.console import say
from leasehold.config import Settings
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
        check(where, schema=settings.schema)
        database = Database(where, schema=settings.schema, prepare=settings.prepare)
        try:
            yield database
        finally:
            database.close()


def print_json(value: Any) -> None:
    """Print a result for programs: names are written as the HTTP API writes them."""
    typer.echo(json.dumps(_renamed(value)))


def _renamed(value: Any) -> Any:
    match value:
        case list():
            return [_renamed(item) for item in value]
        case dict():
            return {_camel(name): part for name, part in value.items()}
        case _:
            return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
