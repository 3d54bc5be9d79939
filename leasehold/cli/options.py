"""Options that many commands share, the database that they name, and how the values of options are read."""

import difflib
import functools
import getpass
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, ParamSpec, TypeVar
from uuid import UUID

import typer
from typer import Option

from leasehold._aio import run_blocking
from leasehold._jsonlimits import find_problem
from leasehold._locate import located
from leasehold.cli.console import answer, say, show_table, shown
from leasehold.config import Settings
from leasehold.db.database import Database
from leasehold.db.migrations.migrate import check
from leasehold.durations import MAX_SECONDS
from leasehold.errors import ConfigError, LeaseholdError, NotPermitted
from leasehold.operate.caller import Caller
from leasehold.operate.operator import Operation, Operator

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Command = Callable[..., None]

Dsn = Annotated[str | None, Option("--dsn", help="The database; LEASEHOLD_DSN when left out.", show_default=False)]
Schema = Annotated[str | None, Option("--schema", help="Its schema; LEASEHOLD_SCHEMA when left out.")]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON.")]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")

_MOST = 20
"""Known names in the message about an unknown one."""


class UnknownName(LeaseholdError, LookupError):
    """Nothing goes by that name here."""


@dataclass
class Session:
    """The database that --dsn and --schema name, connected to when it is first needed; and how results are printed."""

    _stack: ExitStack
    dsn: str | None = None
    schema: str | None = None
    as_json: bool = False

    @functools.cached_property
    def database(self) -> Database:
        """Return the database, which has a schema that this release knows."""
        settings = Settings.from_env(dsn=self.dsn, schema=self.schema)
        where = self._stack.enter_context(located(settings, say=say))
        check_schema(where, settings.schema)
        database = Database(where, schema=settings.schema, prepare=settings.prepare)
        self._stack.callback(database.close)
        return database

    def run(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Carry out an operation as the user of this machine, who may do everything that the login may."""
        return run_blocking(operation(Operator(self.database, Caller(_user()), blocking=True), *args, **kwargs))

    def answer(self, value: Any, line: object = None) -> None:
        """Print the result: with --json the value, else this line if there is one."""
        answer(value, line, as_json=self.as_json)

    def table(
        self,
        rows: Sequence[T],
        columns: Sequence[str],
        cells: Callable[[T], Sequence[object]],
        *,
        empty: str = "",
        as_value: Callable[[T], Any] = lambda row: row,
        **layout: Sequence[str],
    ) -> None:
        """Print the rows as a table with these cells, or with --json as values. `empty`: what to say without rows."""
        if self.as_json:
            self.answer([as_value(row) for row in rows])
            return
        show_table(columns, map(cells, rows), **layout)
        if not rows and empty:
            say(empty)

    def check_names(self, *, queue: str | None = None, kind: str | None = None, more: str = "") -> None:
        """Refuse a queue or a kind that the database does not know. A login that may not list them is not checked."""
        try:
            names = self.database.run(self.database.store.names())
        except NotPermitted:
            return
        if queue is not None and queue not in names.queues:
            raise unknown("queue", queue, names.queues, more=more)
        if kind is not None and not names.kinds:
            message = f"kind {kind!r} unknown: no worker has started on this database yet"
            raise UnknownName(message, hint=f"start one{more}")
        if kind is not None and kind not in names.kinds:
            raise unknown("kind", kind, names.kinds, more=more)


def check_schema(dsn: str, schema: str) -> None:
    """Refuse a schema that this release does not know. Say if the server is a standby."""
    if check(dsn, schema=schema).standby:
        say("this server is a standby: it shows what it has received so far, and takes no changes")


def unknown(what: str, name: str, known: Sequence[str], *, more: str = "") -> UnknownName:
    """Return the error about an unknown name: its hint lists those that exist, the most similar one first."""
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    rest = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    names = ", ".join(map(shown, known[:_MOST])) or "none"
    return UnknownName(f"{what} {name!r} unknown", hint=f"{guess}known: {names}{rest}{more}")


class Commands(typer.Typer):
    """Commands. One with an argument `op` gets a Session for it, and the options --json, --dsn and --schema."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[F], F]:
        """Register a command, as Typer does."""

        def decorate(command: F) -> F:
            register(_on_database(command) if "op" in signature(command).parameters else command)
            return command

        register = super().command(*args, **kwargs)
        return decorate


def with_options(
    argument: str, options: Mapping[str, Any], make: Callable[[ExitStack, dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Give a command these options instead of its argument, which is made of those that are given when it runs."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in options}
            with ExitStack() as stack:
                made = make(stack, {name: value for name, value in values.items() if value is not None})
                command(**{argument: made}, **given)

        kept = [one for one in signature(command).parameters.values() if one.name != argument]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=False if kind is AsJson else None, annotation=kind)
            for name, kind in options.items()
        ]
        run.__signature__ = Signature([*kept, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*kept, *added)}
        return run

    return decorate


_SESSION = {"as_json": AsJson, "dsn": Dsn, "schema": Schema}
_on_database = with_options("op", _SESSION, lambda stack, given: Session(stack, **given))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""


def length(text: str, *, option: str) -> timedelta:
    """Return the length of `90s`, `5m`, `2h`, `30d`, `1.5h`, or of several such parts in one: `1h30m`."""
    parts = _LENGTH.findall(text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or not math.isfinite(seconds):
        raise ConfigError(f"{option} {text!r} is not a length of time", hint="write 90s, 5m, 2h or 30d")
    if seconds > MAX_SECONDS:
        raise ConfigError(f"{option} {text!r} is longer than ten years", hint="write 90s, 5m, 2h or 30d")
    return timedelta(seconds=seconds)


def moment(text: str, *, option: str) -> datetime:
    """Return a time with its zone, as ISO 8601 writes it."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a time", hint="write it as 2030-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise ConfigError(f"{option} {text!r} has no time zone", hint=f"write {text}Z for UTC")
    return found


def moment_or_ago(text: str, *, option: str) -> datetime:
    """Return a time, or how long ago it was."""
    if "-" in text or "T" in text:
        return moment(text, option=option)
    try:
        return datetime.now(UTC) - length(text, option=option)
    except ConfigError as problem:
        message = f"{problem.args[0]}, and not a time either"
        raise ConfigError(message, hint="write 15m, 2h, 7d, or 2030-01-31T12:00:00Z") from None


def job_id(text: str) -> UUID:
    """Return the id of a job."""
    try:
        return UUID(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no job id", hint="an id is a UUID; `leasehold jobs list` shows them") from None


def arguments(pairs: Sequence[str], option: str = "-p") -> dict[str, Any]:
    """Return the arguments: `to=ada` is a text, `n:=3` is JSON."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            hint = f"write {option} to=ada for a text, {option} n:=3 for JSON"
            raise ConfigError(f"{option} {pair!r} is not name=value", hint=hint)
        if name in found:
            raise ConfigError(f"{option} {name!r} is given twice", hint="leave one of them out")
        found[name] = json_value(value, option=f"{option} {name}") if is_json else value
    return found


def json_value(text: str, *, option: str) -> Any:
    """Return a value written as JSON, within the bounds of a payload."""
    if (problem := find_problem(text)) is not None:
        raise ConfigError(f"{option}: {problem.what}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text[:200]!r} is not JSON: {error}", hint="a text in JSON has quotes") from None
