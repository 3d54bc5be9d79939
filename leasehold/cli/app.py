"""The `leasehold` command: registers the subcommands and turns errors into messages and exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from leasehold.cli import (
    bench,
    demo,
    dev,
    doctor,
    enqueue,
    figures,
    init,
    jobs,
    jobs_change,
    jobs_tail,
    limits,
    migrate,
    openapi,
    prune,
    queues,
    schedules,
    serve,
    tokens,
    top,
    verify,
    worker,
    workers,
)
from leasehold.cli.console import say, say_error
from leasehold.db.sqlstates import DriverError, trouble_of
from leasehold.errors import LeaseholdError
from leasehold.version import __version__

app = typer.Typer(
    name="leasehold",
    help="A distributed asynchronous job platform on PostgreSQL.",
    no_args_is_help=True,
    # Its tracebacks show local variables, the DSN with its password among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(demo.commands)
app.command("dev")(dev.command)
app.command("init")(init.command)
app.command("migrate")(migrate.command)
app.command("worker")(worker.command)
app.command("serve")(serve.command)
app.command("enqueue")(enqueue.command)
app.add_typer(jobs.commands)
jobs.commands.command("tail")(jobs_tail.command)
jobs.commands.command("retry")(jobs_change.retry)
jobs.commands.command("cancel")(jobs_change.cancel)
app.add_typer(queues.commands)
app.add_typer(workers.commands)
app.add_typer(schedules.commands)
app.add_typer(limits.commands)
app.command("errors")(figures.errors)
app.command("stats")(figures.stats)
app.command("top")(top.command)
app.command("doctor")(doctor.command)
app.command("verify")(verify.command)
app.command("prune")(prune.command)
app.command("bench")(bench.command)
app.add_typer(tokens.commands)
app.command("openapi")(openapi.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leasehold {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the one place that knows what an error looks like there."""
    try:
        app(args=None if argv is None else list(argv), prog_name="leasehold")
    except LeaseholdError as error:
        say_error(error)
        sys.exit(error.exit_code)
    except DriverError as error:  # what no command expects: still a sentence, not a traceback
        trouble = trouble_of(error)
        say_error(trouble)
        sys.exit(trouble.exit_code)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
