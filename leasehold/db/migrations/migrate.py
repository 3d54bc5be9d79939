"""Bring a database to the schema of this release, see what that would do, check that it was done.

A migration is one transaction under an advisory lock: any number of processes may start it at once, it happens once,
and as a whole or not at all. A release whose programs need a new or a changed function adds a migration, if need be
an empty one: `check` compares migrations.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Final, TypeVar

from psycopg import Connection, Error, errors

from leasehold._aio import run_blocking
from leasehold.config import DEFAULT_SCHEMA, checked_schema
from leasehold.db.connections.dial import connected
from leasehold.db.connections.io import CallDeadline
from leasehold.db.migrations.compatibility import Presence, ask_blocking, read_applied, schema_problem
from leasehold.db.migrations.errors import FITNESS, explain, turn_never_came, unfit, worth_repeating
from leasehold.db.migrations.files import Source, packaged
from leasehold.db.migrations.function_sets import RESTORE, FunctionSet, latest_set
from leasehold.db.migrations.plan import Plan, Step, first_steps, make_plan, script
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.version import __version__

__all__ = ["LATEST", "Limits", "Plan", "Source", "back", "check", "migrate", "plan", "script", "way_back"]

T = TypeVar("T")

LATEST: Final[int] = packaged().latest
"""The highest migration number in this release."""

_ANSWER = 30.0
"""Seconds in which the server answers what only reads, or does so little that it never takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a migration waits, in seconds, and how often it tries."""

    lock_timeout: float = 0.5
    """For one table lock; other sessions that need the table wait as long."""
    turn_timeout: float = 60.0
    """For other migrations of the same schema to end."""
    attempts: int = 100
    """For a lock: some transaction may be open for a while. What else may be repeated is, at most four times."""
    patience: float = 60.0
    """No attempt begins later than this after the first."""
    first_pause: float = 0.1
    """Between attempts; doubles each time, up to `longest_pause`. Other sessions continue meanwhile."""
    longest_pause: float = 2.0
    step_timeout: float = 3600.0
    """For one step: a server that is silent for longer is given up. A large table takes its time to get an index."""


_LIMITS: Final = Limits()


class _StepFailedError(Exception):
    """Carries which step failed, and why."""

    def __init__(self, step: Step, error: Error) -> None:
        super().__init__(step.title)
        self.step = step
        self.error = error


def migrate(dsn: str, *, schema: str = DEFAULT_SCHEMA, source: Source | None = None, limits: Limits = _LIMITS) -> Plan:
    """Apply what is missing; do nothing when nothing is, or when a later release was here."""

    def once(connection: Connection) -> Plan:
        with _within(connection, _ANSWER):
            todo = _plan(connection, schema, source or packaged())
        for step in todo.steps:
            _run(connection, step, limits.step_timeout)
        return todo

    return _write(dsn, schema, limits, once)


def plan(dsn: str, *, schema: str = DEFAULT_SCHEMA, source: Source | None = None) -> Plan:
    """Return what `migrate` would apply; changes nothing and needs no right to."""
    with _connected(dsn, schema) as connection, _within(connection, _ANSWER), connection.transaction():
        return _plan(connection, schema, source or packaged())


def back(dsn: str, *, schema: str = DEFAULT_SCHEMA, limits: Limits = _LIMITS) -> FunctionSet:
    """Restore the functions as they were before the latest migration that changed some; tables stay as they are."""

    def once(connection: Connection) -> FunctionSet:
        with _within(connection, _ANSWER):
            kept = _kept(connection, schema)
        _run(connection, Step(title="functions of the release before", text=RESTORE), limits.step_timeout)
        return kept

    return _write(dsn, schema, limits, once)


def way_back(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> FunctionSet:
    """Return what `back` would restore; changes nothing."""
    with _connected(dsn, schema) as connection, _within(connection, _ANSWER), connection.transaction():
        return _kept(connection, schema)


def check(target: str | Connection, *, schema: str = DEFAULT_SCHEMA, source: Source | None = None) -> Presence:
    """Raise `SchemaMismatch` unless programs of this release can work with the schema; return what was found."""
    schema = checked_schema(schema)
    if isinstance(target, str):
        with _connected(target, schema) as connection, _within(connection, _ANSWER):
            return check(connection, schema=schema, source=source)
    with _explained(target, schema), target.transaction():  # one that the caller has begun stays as it is
        latest = (source or packaged()).latest
        found, problem = run_blocking(schema_problem(partial(ask_blocking, target), latest=latest, schema=schema))
    if problem:
        raise problem
    return found


@contextmanager
def _connected(dsn: str, schema: str) -> Iterator[Connection]:
    """Open a connection that changes nothing: a standby refuses any other transaction."""
    schema = checked_schema(schema)
    with connected(dsn, application_name="leasehold migrate") as connection, _explained(connection, schema):
        connection.read_only = True
        yield connection


@contextmanager
def _explained(connection: Connection, schema: str) -> Iterator[None]:
    """Turn errors of the driver into ours; the failed transaction has ended by then."""
    try:
        yield
    except (_StepFailedError, Error) as failed:
        step = failed.step if isinstance(failed, _StepFailedError) else Step(title="transaction", text="")
        error = failed.error if isinstance(failed, _StepFailedError) else failed
        with _within(connection, _ANSWER):
            raise explain(connection, step, error, schema=schema) from error


@contextmanager
def _within(connection: Connection, seconds: float) -> Iterator[None]:
    """Give the connection up if the server has not answered by then."""
    deadline = CallDeadline(connection, monotonic() + seconds)
    try:
        with deadline:
            yield
    except Exception as error:
        if not deadline.passed:
            raise
        raise DatabaseUnavailable(
            f"no answer from PostgreSQL within {seconds:g} s; the connection was given up",
            hint="do it again when the server answers: a migration happens as a whole or not at all",
        ) from error


def _write(dsn: str, schema: str, limits: Limits, once: Callable[[Connection], T]) -> T:
    """Change the schema in one transaction, repeated until it succeeds or until another attempt makes no sense."""
    with _connected(dsn, schema) as connection:
        with _within(connection, _ANSWER), connection.transaction():
            row = connection.execute(FITNESS.encode()).fetchone()
        if row and (problem := unfit(*row)):
            raise problem
        connection.read_only = False
        began = monotonic()
        for attempt in count(1):
            try:
                with _committed(connection):
                    _begin(connection, schema, limits)
                    return once(connection)
            except _StepFailedError as failed:
                most = limits.attempts if isinstance(failed.error, errors.LockNotAvailable) else min(limits.attempts, 4)
                late = monotonic() - began > limits.patience
                if attempt >= most or late or not worth_repeating(failed.error):
                    raise
            sleep(min(limits.first_pause * 2 ** min(attempt - 1, 20), limits.longest_pause))
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def _committed(connection: Connection) -> Iterator[None]:
    """Run a transaction whose commit or rollback, too, has a deadline."""
    with ExitStack() as answer, ExitStack() as opened:
        with _within(connection, _ANSWER):
            opened.enter_context(connection.transaction())
        try:
            yield
        finally:
            answer.enter_context(_within(connection, _ANSWER))


def _begin(connection: Connection, schema: str, limits: Limits) -> None:
    settings, turn, impatience = first_steps(schema, turn_timeout=limits.turn_timeout, lock_timeout=limits.lock_timeout)
    _run(connection, settings, _ANSWER)
    try:
        with _within(connection, limits.turn_timeout + _ANSWER), connection.transaction():
            connection.execute(turn.text.encode())
    except errors.LockNotAvailable as error:
        with _within(connection, _ANSWER):
            raise turn_never_came(connection, schema=schema, seconds=limits.turn_timeout) from error
    _run(connection, impatience, _ANSWER)


def _plan(connection: Connection, schema: str, source: Source) -> Plan:
    try:
        applied = read_applied(connection, schema)
    except Error as error:
        raise _StepFailedError(Step(title="bookkeeping", text=""), error) from error
    return make_plan(source, applied, schema=schema, release=__version__)


def _kept(connection: Connection, schema: str) -> FunctionSet:
    found = latest_set(connection, schema)
    if found is None:
        raise LeaseholdError(
            f"schema {schema!r} keeps no functions of an earlier release",
            hint="each migration that changes functions keeps those before it; to go back further, restore a backup",
        )
    return found


def _run(connection: Connection, step: Step, seconds: float) -> None:
    try:
        # Without parameters psycopg sends the text as it is, so that it may hold many statements.
        with _within(connection, seconds):
            connection.execute(step.text.encode())
    except Error as error:
        raise _StepFailedError(step, error) from error
