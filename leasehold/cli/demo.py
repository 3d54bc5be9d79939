"""`leasehold demo`: the show. Traffic, failures, three workers, and somebody who kills them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, print_json
from leasehold.cli.console import say, show_table
from leasehold.cli.processes import free_port
from leasehold.cli.serve import PORT
from leasehold.cli.worker import run_async
from leasehold.config import Settings
from leasehold.db.migrate import migrate
from leasehold.demo.controls import FILE, Controls
from leasehold.errors import ConfigError
from leasehold.locate import located

commands = typer.Typer(name="demo", help="The show: traffic, failures, workers that are killed, and nothing lost.")

SCHEMA = "leasehold_demo"
"""Of the demo on a server that is not the embedded one: what else is there is left alone."""


@commands.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    *,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1000, help="Jobs per second.")] = 20.0,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=20, help="Worker processes.")] = 3,
    slots: Annotated[int, typer.Option("--slots", min=1, max=1000, help="Of each: jobs at the same time.")] = 10,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Of the API and dashboard.")] = None,
    seconds: Annotated[float, typer.Option("--for", min=0, help="Stop by itself after so many seconds; 0: never.")] = 0,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Start a PostgreSQL, three workers, the API with the dashboard, and traffic; then kill workers and watch.

    Press k, use the dashboard's button, or say `leasehold demo kill` in another terminal: the worker's leases expire,
    its jobs move to the others, and the scoreboard still says: jobs lost 0. Ctrl-C ends everything.
    With a DSN that server is used, in a schema of its own.
    """
    if context.invoked_subcommand is not None:
        return
    settings = Settings.from_env(dsn=dsn, schema=schema)
    if settings.production:
        raise ConfigError("LEASEHOLD_ENV is 'production', and a demo makes jobs", hint="run it somewhere else")
    if (other := Controls(_home(settings)).running()) is not None:
        raise ConfigError(f"a demo runs here already, as process {other.pid}, on {other.url}", hint="end it first")
    if settings.dsn and not (schema or os.environ.get("LEASEHOLD_SCHEMA")):
        settings = Settings.from_env(dsn=dsn, schema=SCHEMA)
    plan = Plan(rate=rate, workers=workers, slots=slots, port=port or free_port(PORT), seconds=seconds)
    with located(settings, say=say) as where:
        if settings.dsn:
            migrate(where, schema=settings.schema)
        # The tasks' App takes its settings from here when it is imported, and so do the processes.
        os.environ.update(LEASEHOLD_DSN=where, LEASEHOLD_SCHEMA=settings.schema)
        from leasehold.cli.show import Show  # noqa: PLC0415 (imports the tasks)

        run_async(Show(plan, _home(settings)).run())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large the demo is."""

    rate: float
    workers: int
    slots: int
    port: int
    seconds: float


@commands.command("kill")
def kill(*, as_json: AsJson = False) -> None:
    """Kill one worker of the demo that runs here with SIGKILL, and say which."""
    killed = _controls().kill()
    if as_json:
        print_json(killed)
    else:
        typer.echo(str(killed["pid"]))
    say(f"killed the worker {killed['pid']} with {killed['running']} jobs; their leases expire within seconds")


@commands.command("score")
def score(*, as_json: AsJson = False) -> None:
    """Show the scoreboard of the demo that runs here."""
    standing = _controls().read()
    if as_json:
        print_json({"url": standing.url, "scoreboard": standing.scoreboard})
        return
    show_table(("figure", "value"), standing.scoreboard.items(), right=("value",))


def _controls() -> Controls:
    return Controls(_home(Settings.from_env()))


def _home(settings: Settings) -> Path:
    return settings.home.absolute() / FILE
