"""`leasehold verify`: does everything hold that must?"""

from datetime import timedelta
from typing import Annotated

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.cli.parsing import length
from leasehold.cli.words import count, many


def command(
    *,
    slack: Annotated[str, typer.Option("--slack", help="What is late by less than this is not late.")] = "1m",
    latest: Annotated[
        int, typer.Option("--latest", min=1, max=100_000, help="How many of the latest attempts to look into.")
    ] = 1000,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Check what must always hold: no job lost, none with two owners, no limit broken, … 1 if something does not."""
    allowed: timedelta = length(slack, option="--slack")
    with connected(dsn, schema) as database:
        laws = database.run(database.store.verify(slack=allowed, latest=latest))
    broken = [law for law in laws if not law.ok]
    if as_json:
        print_json(laws)
    else:
        rows = (
            (
                law.name.replace("_", " "),
                "ok" if law.ok else "BROKEN",
                count(law.violations, law.capped),
                law.detail,
                ", ".join(law.sample),
            )
            for law in laws
        )
        show_table(("law", "verdict", "violations", "a violation is", "such as"), rows, right=("violations",))
    if broken:
        say(
            f"{many(len(broken), 'law')} of {len(laws)} broken: {', '.join(law.name for law in broken)}",
            style="bold red",
        )
        raise typer.Exit(1)
    say(f"all {len(laws)} laws hold")
