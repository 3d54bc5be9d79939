"""`leasehold errors` and `leasehold stats`: what goes wrong, and how much goes on."""

from typing import Annotated

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.cli.names import check_names
from leasehold.cli.words import count, when


def errors(
    *,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", "-k", help="Only of this kind.")] = None,
    scan: Annotated[
        int, typer.Option("--scan", min=1, max=100_000, help="Look at so many of the latest recorded attempts.")
    ] = 10_000,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show the latest failures, grouped by kind and class of error."""
    with connected(dsn, schema) as database:
        call = database.store.errors(queues=[queue] if queue else None, kinds=[kind] if kind else None, scan=scan)
        groups = database.run(call)
        if not groups:
            check_names(database, queue=queue, kind=kind)
    if as_json:
        print_json(
            [
                {
                    "job_type": group.kind,
                    "error_class": group.error_class,
                    "attempts": group.attempts,
                    "jobs": group.jobs,
                    "first_seen": group.first_seen,
                    "last_seen": group.last_seen,
                    "last_message": group.last_message,
                    "last_job": group.last_job,
                }
                for group in groups
            ]
        )
        return
    columns = ("kind", "error", "attempts", "jobs", "last seen", "last job", "message")
    cells = (
        (g.kind, g.error_class, g.attempts, g.jobs, when(g.last_seen), g.last_job, (g.last_message or "")[:200])
        for g in groups
    )
    show_table(columns, cells, right=("attempts", "jobs"), less=("last seen", "jobs", "message"))
    if not groups:
        say("nothing has failed lately")


def stats(*, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Show a few figures: jobs by state, what ended in the last minute, workers. What is many is counted to 10,000."""
    with connected(dsn, schema) as database:
        figures = database.run(database.store.stats())
    if as_json:
        named = {name: {"value": value, "capped": capped} for name, (value, capped) in figures.items()}
        print_json({"figures": named})
        return
    rows = ((name.replace("_", " "), count(value, capped)) for name, (value, capped) in figures.items())
    show_table(("figure", "value"), rows, right=("value",))
