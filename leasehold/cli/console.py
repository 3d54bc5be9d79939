"""What commands print and read: messages on standard error, results on standard output, keys and signals."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from json import dumps
from threading import Event, current_thread, main_thread
from typing import Any, Final, Self

import typer
from pydantic.alias_generators import to_camel
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from leasehold._texts import many_lines
from leasehold.errors import ConfigError

_IDS: Final = frozenset({"id", "last job"})
"""Columns of ids, which are not broken into lines, so that they can be copied."""
_GAP: Final = 2
_API_NAMES: Final = {"id": "job_id", "kind": "job_type"}


def say(message: str, *, style: str | None = None) -> None:
    """Print a message that is not the command's result."""
    # A new Console each time: tests and the embedded server replace sys.stderr. No wrapping and no markup: a line stays
    # one line, and brackets stay. Messages contain names that others chose: control characters are spelled out.
    Console(stderr=True).print(many_lines(message), style=style, markup=False, highlight=False, soft_wrap=True)


def shown(text: str) -> str:
    """Return the text in one line, its control characters spelled out."""
    return many_lines(text).replace("\n", "\\n").replace("\t", "\\t")


def confirm(what: str, *, yes: bool, as_json: bool, otherwise: str) -> None:
    """Ask before something is done, unless --yes was given. `otherwise` is what to say after a no."""
    if yes:
        return
    if as_json or not (sys.stderr.isatty() and sys.stdin.isatty()):
        raise ConfigError(f"this would {what}", hint="add --yes to do it, or --dry-run to count them")
    typer.echo(f"{what}? [y/N]: ", nl=False, err=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        pass  # input() misses a Ctrl-C that comes just before it begins to read
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say(otherwise)
        raise typer.Exit(1)


@contextmanager
def progress_bar(what: str, total: float | None) -> Iterator[Callable[..., None]]:
    """Show a bar, on a terminal only. Yields what updates it: `completed`, `total`, `description`."""
    console = Console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
    if total is not None and total > 1:
        columns.insert(3, MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield partial(progress.update, progress.add_task(shown(what), total=total))


def answer(value: Any, line: object = None, *, as_json: bool) -> None:
    """Print a result: as JSON, or as this line if there is one."""
    if as_json:
        typer.echo(dumps(plain(value), default=_written))
    elif line is not None:
        typer.echo(str(line))


def api_names(row: Any) -> dict[str, Any]:
    """Return the fields of a job, or of a row about jobs, by the names that the HTTP API has for them."""
    return {_API_NAMES.get(name, name): value for name, value in asdict(row).items()}


def plain(value: Any) -> Any:
    """Return the value with names in camel case. A mapping within it is what a job carries, and keeps its names."""
    match value:
        case list() | tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {to_camel(name): _part(part) for name, part in value.items()}
        case _ if is_dataclass(value):
            return {to_camel(field.name): _part(getattr(value, field.name)) for field in fields(value)}
    return value


def _part(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_part(item) for item in value]
    return value if isinstance(value, Mapping) else plain(value)


def _written(value: object) -> str | float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = (), less: Sequence[str] = ()
) -> None:
    """Print a table on a terminal; elsewhere a line for each row, with tabs between its cells and no heading.

    `less`: columns that a terminal without room leaves out, the first one first. `right`: columns of numbers.
    """
    cells = [[shown("-" if value is None or value == "" else str(value)) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            typer.echo("\t".join(row))
        return
    console = Console()
    cells = [row + ["-"] * (len(columns) - len(row)) for row in cells]
    absent = _without_room(columns, cells, less, console.width)
    kept = [(place, name) for place, name in enumerate(columns) if name not in absent]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for _, name in kept:
        side: Any = "right" if name in right else "left"
        table.add_column(name, justify=side, no_wrap=name in _IDS, overflow="fold", min_width=len(name))
    for row in cells:
        table.add_row(*(Text(row[place]) for place, _ in kept))
    console.print(table)
    if absent and cells:
        say(f"no room for {', '.join(absent)}: widen the terminal, or --json")


def _without_room(columns: Sequence[str], rows: list[list[str]], less: Sequence[str], width: int) -> Sequence[str]:
    """Return the first of `less`, as many as have to go for the other columns to fit, if these can fit at all."""
    widths = {}
    for place, name in enumerate(columns):
        widest = max((cell_len(row[place]) for row in rows), default=0)
        # A column may be narrowed to 12: longer cells are broken into lines.
        widths[name] = max(len(name), widest if name in _IDS else min(widest, 12)) + _GAP
    gone = 0
    while gone < len(less) and sum(widths.values()) - _GAP > width:
        widths.pop(less[gone])
        gone += 1
    return less[:gone]


def when(moment: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units: `12s`, `3m 5s`, `2h 10m`, `4d 3h`."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts[:2] if number) or "0s"


def count(number: int, capped: bool = False) -> str:
    """Return a number; `capped`: counting stopped there."""
    return f"{number:,}{'+' if capped else ''}"


def many(number: int, thing: str, *, capped: bool = False) -> str:
    """Return a number of things."""
    return f"{count(number, capped)} {thing}{'' if number == 1 and not capped else 's'}"


@contextmanager
def interruptible(what: str) -> Iterator[Event]:
    """Yield an event, which the first SIGINT or SIGTERM in the block sets; the second interrupts."""
    interrupt = Event()

    def handle(_number: int, _frame: object) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()
        words = f"stopping after {what}; once more to stop at once"
        try:
            say(words)
        except RuntimeError:  # the signal interrupted another say()
            os.write(2, f"{words}\n".encode())

    numbers = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Keys:
    """While it is entered, single keys can be read as they are pressed, without echo; without a terminal, none."""

    def __init__(self) -> None:
        self.descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
        """The file descriptor to wait for; None: there is no keyboard."""

    def __enter__(self) -> Self:
        if self.descriptor is not None:
            self._before = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor)  # Ctrl-C still interrupts
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return what is pressed within that time, or nothing."""
        watched = [] if self.descriptor is None else [self.descriptor]
        return self.read() if select.select(watched, [], [], seconds)[0] else ""

    def read(self) -> str:
        """Return what was pressed; `q` when the terminal is gone."""
        if self.descriptor is None:
            return ""
        try:
            return os.read(self.descriptor, 64).decode(errors="replace") or "q"
        except OSError:
            return "q"
