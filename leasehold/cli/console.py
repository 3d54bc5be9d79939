"""Where the command line talks: people read standard error, programs read standard output."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from leasehold.errors import LeaseholdError


def say(message: str, *, style: str | None = None) -> None:
    """Tell the person at the terminal something that is not the command's result."""
    # Made anew each time: tests and the embedded server replace sys.stderr. Not wrapped, no markup:
    # a line stays one line when it is searched for, and a value with brackets stays as it is.
    Console(stderr=True).print(message, style=style, markup=False, highlight=False, soft_wrap=True)


def say_error(error: LeaseholdError) -> None:
    """Say what went wrong and, where known, what to do: never a traceback."""
    say(f"error: {error.args[0]}", style="bold red")
    if error.hint:
        say(f"hint: {error.hint}")


def shown(text: str) -> str:
    """A text that others wrote, with nothing in it that a terminal would obey or that would break a line."""
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A table on a terminal; elsewhere the same cells, a line a row, with tabs between them and no heading."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(shown(_cell(value)) for value in row))
        return
    Console().print(make_table(columns, rows, right=right))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table to look at. `right`: columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        # Ids are there to be copied: they stay whole.
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name == "id",
            overflow="fold",
            min_width=len(name),
        )
    for row in rows:
        table.add_row(*(Text(shown(_cell(value))) for value in row))
    return table


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def is_terminal() -> bool:
    """Whether somebody sits there who sees bars move and can answer a question."""
    return sys.stderr.isatty() and sys.stdin.isatty()


@contextmanager
def progress_bar(what: str, total: float | None) -> Iterator["Bar"]:
    """A bar on a terminal, nothing elsewhere. Without a total it only turns."""
    console = Console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
    if total is not None and total > 1:
        columns.insert(3, MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bar(progress, what, total)


class Bar:
    """How far something long has come."""

    def __init__(self, progress: Progress, what: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(shown(what), total=total)

    def show(self, done: float, what: str | None = None) -> None:
        """So far; and what it is at."""
        self._progress.update(self._task, completed=done)
        if what is not None:
            self._progress.update(self._task, description=shown(what))

    def expect(self, total: float) -> None:
        """How much there is, now that it is known."""
        self._progress.update(self._task, total=total)
