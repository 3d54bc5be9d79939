"""`leasehold limits`: how many jobs may run at the same time."""

from typing import Annotated

import typer

from leasehold.cli import completion
from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.cli.names import check_names, unknown
from leasehold.cli.words import when
from leasehold.errors import ConfigError

commands = typer.Typer(name="limits", help="How many jobs may run at the same time.", no_args_is_help=True)

SCOPES = ("global", "queue", "kind", "key")

Scope = Annotated[
    str,
    typer.Argument(
        help="global, queue, kind, or key (of exclusive keys).",
        show_default=False,
        autocompletion=completion.among("global", "queue", "kind", "key"),
    ),
]
Name = Annotated[
    str | None, typer.Argument(help="The queue, the kind, or how the keys begin; none for global.", show_default=False)
]


@commands.command("list")
def list_(*, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """List the limits, and what runs under each."""
    with connected(dsn, schema) as database:
        limits = database.run(database.store.limits())
    if as_json:
        print_json(limits)
        return
    columns = ("scope", "name", "max", "running", "changed")
    cells = ((row.scope, row.name, row.max_running, row.running, when(row.updated_at)) for row in limits)
    show_table(columns, cells, right=("max", "running"))
    if not limits:
        say("there are no limits; set one: leasehold limits set queue reports --max 5")


@commands.command("set")
def set_(
    scope: Scope,
    name: Name = None,
    *,
    most: Annotated[int, typer.Option("--max", "-m", min=0, help="So many may run; 0: none.", show_default=False)],
    anyway: Annotated[bool, typer.Option("--anyway", help="Also if nothing is known of that queue or kind.")] = False,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Let at most so many jobs run at the same time: of a queue, of a kind, of keys that begin alike, in all."""
    name = _checked(scope, name)
    if most > 2**31 - 1:
        raise ConfigError(f"--max {most} is more than PostgreSQL can count", hint="leave the limit out")
    with connected(dsn, schema) as database:
        if scope in ("queue", "kind") and not anyway:
            more = "; --anyway limits it nevertheless"
            check_names(
                database, queue=name if scope == "queue" else None, kind=name if scope == "kind" else None, more=more
            )
        database.run(database.store.set_limit(scope, name, most))
    if as_json:
        print_json({"scope": scope, "name": name, "max_running": most})
    say(f"at most {most} may run under the limit {_shown(scope, name)}")


@commands.command("clear")
def clear(scope: Scope, name: Name = None, *, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Take a limit away."""
    name = _checked(scope, name)
    with connected(dsn, schema) as database:
        if not database.run(database.store.drop_limit(scope, name)):
            known = [_shown(row.scope, row.name) for row in database.run(database.store.limits())]
            raise unknown("limit", _shown(scope, name), known)
    if as_json:
        print_json({"scope": scope, "name": name, "cleared": True})
    say(f"the limit {_shown(scope, name)} is gone")


def _checked(scope: str, name: str | None) -> str:
    if scope not in SCOPES:
        raise ConfigError(f"scope {scope!r} unknown", hint=f"known: {', '.join(SCOPES)}")
    if scope == "global" and name:
        raise ConfigError(f"the global limit has no name, and {name!r} was given", hint="leave it out")
    if scope != "global" and not name:
        raise ConfigError(f"which {scope}?", hint=f"leasehold limits set {scope} NAME --max 5")
    return name or ""


def _shown(scope: str, name: str) -> str:
    return f"{scope} {name}".strip()
