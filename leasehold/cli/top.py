"""`leasehold top`: what goes on, live."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, plain, print_json
from leasehold.cli.jobs import job_json
from leasehold.cli.keys import Keys
from leasehold.cli.look import Look, look, picture
from leasehold.cli.parsing import length
from leasehold.db.pool import Database
from leasehold.errors import DatabaseUnavailable


def command(
    *,
    every: Annotated[str, typer.Option("--every", help="Time between two looks.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Show one look and end, as when it is not a terminal.")] = False,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show what goes on, live: rates, queues, workers with their leases, errors. q ends.

    Where standard output is not a terminal one look is printed.
    """
    pause = max(0.1, length(every, option="--every").total_seconds())
    with connected(dsn, schema) as database:
        if as_json:
            print_json(_as_json(look(database)))
        elif once or not sys.stdout.isatty():
            width = None if sys.stdout.isatty() else 120
            Console(width=width).print(picture(look(database), height=1000))
        else:
            _live(database, pause)


def _live(database: Database, pause: float) -> None:
    console = Console()
    trouble: RenderableType | None = None
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                seen = look(database)
                trouble = None
            except DatabaseUnavailable as error:  # it may come back: go on looking
                trouble = Text(f"the database does not answer: {error.args[0]}", style="bold red", no_wrap=True)
            if trouble is None:
                title = Text(f"leasehold top  {seen.now:%H:%M:%S} UTC  (q ends)", style="bold", no_wrap=True)
                live.update(picture(seen, height=console.height, header=[title]), refresh=True)
            else:
                live.update(trouble, refresh=True)
            if "q" in keys.wait(pause).lower():
                return


def _as_json(seen: Look) -> dict[str, Any]:
    return {
        "at": seen.now,
        "figures": {name: {"value": value, "capped": capped} for name, (value, capped) in seen.figures.items()},
        "queues": plain(
            [{**asdict(queue), "outlook": queue.verdict.outlook, "words": queue.verdict.words} for queue in seen.queues]
        ),
        "workers": seen.workers,
        "running": plain([job_json(job) for job in seen.running]),
        "errors": seen.errors,
    }
