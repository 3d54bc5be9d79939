"""Where the command line talks: people read standard error, programs read standard output."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import typer
from rich.cells import cell_len
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


_IDS: Final = frozenset({"id", "last job"})
"""Columns of ids, which are there to be copied: they stay whole."""

_GAP: Final = 2
_NARROW: Final = 12
"""To so many characters a column may be narrowed; what is longer goes on below."""


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    less: Sequence[str] = (),
) -> None:
    """A table on a terminal; elsewhere the same cells, a line a row, with tabs between them and no heading.

    `less`: columns that are left out of a terminal that has no room for them, the first one first.
    """
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(shown(_cell(value)) for value in row))
        return
    console, all_rows = Console(), [tuple(row) for row in rows]
    absent = _too_many(columns, all_rows, less, console.width)
    places = [place for place, name in enumerate(columns) if name not in absent]
    console.print(
        make_table([columns[place] for place in places], ([row[place] for place in places] for row in all_rows),
                   right=right)
    )  # fmt: skip
    if absent and all_rows:
        say(f"no room for {', '.join(absent)}: widen the terminal, or --json")


def _too_many(
    columns: Sequence[str], rows: Sequence[Sequence[object]], less: Sequence[str], width: int
) -> Sequence[str]:
    """Those of `less` without which the rest fits into the width, if it does at all."""
    widths = {}
    for place, name in enumerate(columns):
        widest = max((cell_len(shown(_cell(row[place]))) for row in rows), default=0)
        widths[name] = max(len(name), widest if name in _IDS else min(widest, _NARROW)) + _GAP
    gone = 0
    while gone < len(less) and sum(widths.values()) - _GAP > width:
        widths.pop(less[gone])
        gone += 1
    return less[:gone]


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table to look at. `right`: columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name in _IDS,
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
