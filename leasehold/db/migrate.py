"""Bring a database to the schema of this release, see what that would do, check that it was done.

A migration is one transaction under an advisory lock: any number of processes may start it at once,
it happens once, and it happens as a whole or not at all. A release that adds or changes a function
which its programs need also adds a migration, be it an empty one: `check` compares migrations.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import monotonic, sleep
from typing import Final, TypeVar

from psycopg import Connection, Error, errors

from leasehold.config import DEFAULT_SCHEMA, checked_schema
from leasehold.db.bookkeeping import read_state
from leasehold.db.call import Call
from leasehold.db.compat import Presence, presence, presence_problem, version_problem, versions
from leasehold.db.connect import connected
from leasehold.db.cut import ThreadCutOff
from leasehold.db.migrate_errors import FITNESS, explain, unfit, waited_in_vain, worth_repeating
from leasehold.db.planning import Plan, make_plan
from leasehold.db.schema_files import Source, packaged
from leasehold.db.script import script
from leasehold.db.steps import Step, impatience, settings, steps, turn
from leasehold.db.way_back import RESTORE, FunctionSet, latest_set
from leasehold.errors import LeaseholdError
from leasehold.version import __version__

__all__ = ["LATEST", "Limits", "Plan", "Report", "Source", "back", "check", "migrate", "plan", "script", "way_back"]

T = TypeVar("T")

LATEST: Final[int] = packaged().latest
"""The highest migration number in this release."""

_APPLICATION_NAME = "leasehold migrate"

_CHECK_SECONDS = 30.0
"""How long a program waits for what the schema says of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a migration did."""

    schema: str
    before: int
    """The highest migration applied before, 0 when there was none."""
    version: int
    """The highest migration applied now."""
    migrations: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    """Function files that this release no longer has; the functions themselves stay."""
    superseded: bool = False
    """A later release was here: its function files stay as they are."""
    repairs: tuple[str, ...] = ()
    """What was wrong with roles and grants, as after a restore, and is right now."""

    @classmethod
    def of(cls, plan: Plan) -> "Report":
        """Return the report of a plan that was carried out."""
        return cls(
            schema=plan.schema,
            before=plan.version,
            version=plan.target,
            migrations=tuple(migration.name for migration in plan.migrations),
            functions=tuple(file.name for file in plan.functions),
            forgotten=plan.forgotten,
            superseded=plan.superseded,
            repairs=plan.repairs,
        )

    @property
    def changed(self) -> bool:
        """Whether anything was applied or forgotten."""
        return bool(self.migrations or self.functions or self.forgotten)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a migration waits, in seconds, and how often it tries."""

    lock_timeout: float = 0.5
    """For one table lock; all others who want the table wait as long."""
    turn_timeout: float = 60.0
    """For other migrations of the same schema to end."""
    attempts: int = 100
    """For a lock: some transaction may be open for a while. What else may be repeated is, at most four times."""
    patience: float = 60.0
    """No attempt begins later than this after the first."""
    first_pause: float = 0.1
    """Between attempts; doubles each time, up to `longest_pause`: the others go on meanwhile."""
    longest_pause: float = 2.0

    def ended(self, attempt: int, error: Error, began: float) -> bool:
        """Whether the attempt that failed was the last."""
        most = self.attempts if isinstance(error, errors.LockNotAvailable) else min(self.attempts, 4)
        return attempt >= most or not worth_repeating(error) or monotonic() - began > self.patience

    def pause(self, attempt: int) -> float:
        """Seconds after an attempt that failed."""
        return float(min(self.first_pause * 2 ** min(attempt - 1, 20), self.longest_pause))


_LIMITS: Final = Limits()


class _StepFailedError(Exception):
    """Carries which step failed, and why."""

    def __init__(self, step: Step, error: Error) -> None:
        super().__init__(step.title)
        self.step = step
        self.error = error


def migrate(
    dsn: str, *, schema: str = DEFAULT_SCHEMA, source: Source | None = None, limits: Limits = _LIMITS
) -> Report:
    """Apply what is missing; do nothing when nothing is, or when a later release was here."""
    schema = checked_schema(schema)
    source = source or packaged()
    with connected(dsn, application_name=_APPLICATION_NAME) as connection, _explained(connection, schema):
        _refuse_unfit(connection)
        return Report.of(_persist(lambda: _migrate_once(connection, schema, source, limits), limits))


def back(dsn: str, *, schema: str = DEFAULT_SCHEMA, limits: Limits = _LIMITS) -> FunctionSet:
    """Restore the functions as they were before the latest migration that changed some; tables stay as they are."""
    schema = checked_schema(schema)
    with connected(dsn, application_name=_APPLICATION_NAME) as connection, _explained(connection, schema):
        _refuse_unfit(connection)
        return _persist(lambda: _back_once(connection, schema, limits), limits)


def way_back(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> FunctionSet:
    """Return what `back` would restore; changes nothing."""
    schema = checked_schema(schema)
    with connected(dsn, application_name=_APPLICATION_NAME) as connection, _explained(connection, schema):
        connection.read_only = True
        with connection.transaction():
            return _kept(connection, schema)


def _persist(attempt_once: Callable[[], T], limits: Limits) -> T:
    """Try until it works, or until it makes no sense any more."""
    began = monotonic()
    for attempt in count(1):
        try:
            return attempt_once()
        except _StepFailedError as failed:
            if limits.ended(attempt, failed.error, began):
                raise
        sleep(limits.pause(attempt))
    raise AssertionError("the last attempt returns or raises")


def plan(dsn: str, *, schema: str = DEFAULT_SCHEMA, source: Source | None = None) -> Plan:
    """Return what `migrate` would apply; changes nothing and needs no right to."""
    schema = checked_schema(schema)
    with connected(dsn, application_name=_APPLICATION_NAME) as connection, _explained(connection, schema):
        connection.read_only = True
        with connection.transaction():
            return _plan(connection, schema, source or packaged())


def check(target: str | Connection, *, schema: str = DEFAULT_SCHEMA, source: Source | None = None) -> Presence:
    """Raise `SchemaMismatch` unless programs of this release can work with the schema; return what was found.

    Takes a DSN or a connection, whose transaction, if it is in one, stays as it is.
    """
    schema = checked_schema(schema)
    if isinstance(target, str):
        with connected(target, application_name=_APPLICATION_NAME) as connection:
            connection.read_only = True  # a standby refuses a transaction that may write
            with ThreadCutOff(connection, monotonic() + _CHECK_SECONDS):
                return _check(connection, schema, source or packaged())
    else:
        return _check(target, schema, source or packaged())


@contextmanager
def _explained(connection: Connection, schema: str) -> Iterator[None]:
    """Let no error of the driver out; the transaction that failed has ended by then."""
    try:
        yield
    except _StepFailedError as failed:
        raise explain(connection, failed.step, failed.error, schema=schema) from failed.error
    except Error as error:
        raise explain(connection, Step(title="transaction", text=""), error, schema=schema) from error


def _check(connection: Connection, schema: str, source: Source) -> Presence:
    with _explained(connection, schema), connection.transaction():
        found = _ask(connection, presence(schema))
        problem = presence_problem(found, schema=schema)
        if problem is None:
            problem = version_problem(_ask(connection, versions(schema)), latest=source.latest, schema=schema)
    if problem:
        raise problem
    return found


def _refuse_unfit(connection: Connection) -> None:
    """Raise for a server or database on which no migration can work, before anything is tried."""
    connection.read_only = True  # a standby refuses any other transaction
    with connection.transaction():
        row = connection.execute(FITNESS.encode()).fetchone()
    connection.read_only = False
    if row and (problem := unfit(*row)):
        raise problem


def _ask(connection: Connection, call: Call[T]) -> T:
    return call.read(connection.execute(call.sql.encode(), call.args or None).fetchall())


def _back_once(connection: Connection, schema: str, limits: Limits) -> FunctionSet:
    with connection.transaction():
        _begin(connection, schema, limits)
        kept = _kept(connection, schema)
        _run(connection, Step(title="functions of the release before", text=RESTORE))
        return kept


def _kept(connection: Connection, schema: str) -> FunctionSet:
    found = latest_set(connection, schema)
    if found is None:
        raise LeaseholdError(
            f"schema {schema!r} keeps no functions of an earlier release",
            hint="each migration that changes functions keeps those before it; to go back further, restore a backup",
        )
    return found


def _begin(connection: Connection, schema: str, limits: Limits) -> None:
    """The first steps of a transaction that changes the schema."""
    _run(connection, settings(schema, turn_timeout=limits.turn_timeout))
    _take_turn(connection, schema, limits)
    _run(connection, impatience(limits.lock_timeout))


def _migrate_once(connection: Connection, schema: str, source: Source, limits: Limits) -> Plan:
    with connection.transaction():
        _begin(connection, schema, limits)
        todo = _plan(connection, schema, source)
        for step in steps(todo, source, release=__version__):
            _run(connection, step)
        return todo


def _take_turn(connection: Connection, schema: str, limits: Limits) -> None:
    try:
        with connection.transaction():
            connection.execute(turn(schema).text.encode())
    except errors.LockNotAvailable as error:
        raise waited_in_vain(connection, schema=schema, seconds=limits.turn_timeout) from error


def _plan(connection: Connection, schema: str, source: Source) -> Plan:
    try:
        state = read_state(connection, schema)
    except Error as error:
        raise _StepFailedError(Step(title="bookkeeping", text=""), error) from error
    return make_plan(source, state, schema=schema, release=__version__)


def _run(connection: Connection, step: Step) -> None:
    try:
        # Without parameters psycopg sends the text as it is, so that it may hold many statements.
        connection.execute(step.text.encode())
    except Error as error:
        raise _StepFailedError(step, error) from error
