"""The `leasehold` command: registers the subcommands and turns errors into messages and exit codes."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from leasehold.cli import (
    bench,
    demo,
    dev,
    enqueue,
    init,
    jobs,
    limits,
    migrate,
    prune,
    queues,
    schedules,
    serve,
    system,
    tokens,
    top,
    worker,
    workers,
)
from leasehold.cli.console import say
from leasehold.cli.options import Commands
from leasehold.db.sqlstates import DriverError, trouble_of
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.version import __version__

app = Commands(
    name="leasehold",
    help="A distributed asynchronous job platform on PostgreSQL.",
    no_args_is_help=True,
    # Its tracebacks show local variables, the DSN with its password among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (dev, init, migrate, worker, serve, enqueue, top, prune, bench):
    app.command(_module.__name__.rpartition(".")[2])(_module.command)
for _command in (workers.errors, system.stats, system.doctor, system.verify, system.openapi):
    app.command()(_command)
for _module in (demo, jobs, queues, workers, schedules, limits, tokens):
    app.add_typer(_module.commands)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leasehold {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Only here errors become messages and exit codes."""
    _open_closed_streams()
    try:
        try:
            app(args=None if argv is None else list(argv), prog_name="leasehold")
        finally:
            sys.stdout.flush()  # here, where an error can be reported
    except LeaseholdError as error:
        _fail(error)
    except DriverError as error:  # which no command expects: a message, not a traceback
        _fail(trouble_of(error))
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        with suppress(OSError):  # the interpreter flushes the buffer again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(LeaseholdError(f"standard output cannot be written: {error.strerror}"))
    except UnicodeEncodeError:
        given = sys.argv[1:] if argv is None else argv
        wrong = next((text for text in given if any("\ud800" <= character <= "\udfff" for character in text)), None)
        if wrong is None:
            raise
        _fail(ConfigError(f"argument {os.fsencode(wrong)!r} is not UTF-8", hint="names and texts are stored as UTF-8"))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def _fail(error: LeaseholdError) -> NoReturn:
    say(f"error: {error.args[0]}", style="bold red")
    if error.hint:
        say(f"hint: {error.hint}")
    sys.exit(error.exit_code)


_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}


def _open_closed_streams() -> None:
    """Open what the shell has closed (`>&-`): else the next file or socket would get its number, and our output."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 (for as long as the process lives)
