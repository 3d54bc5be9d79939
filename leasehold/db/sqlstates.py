"""The one place where PostgreSQL's error codes become Leasehold's exceptions."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

from leasehold import errors
from leasehold.errors import DatabaseTrouble, DatabaseUnavailable, InvalidArgument, LeaseholdError

DriverError = psycopg.Error
"""What the driver raises."""

_OURS: dict[str, type[LeaseholdError]] = {
    "LH001": errors.IllegalTransition,
    "LH002": errors.JobUnknown,
    "LH004": errors.IdempotencyConflict,
    "LH005": errors.ScheduleLocked,
    "LH006": errors.ScheduleNotDue,
    "LH007": errors.ScheduleDisabled,
    "LH008": errors.NotPermitted,
    "LH009": errors.TokenTooStrong,
}

_AWAY = ("08", "57P", "53", "58", "25P03", "25P04")
"""Connection exceptions, shutdown or crash of the server, out of resources, I/O errors, a session that the server ended
because of idle_in_transaction_session_timeout or transaction_timeout."""

_NO_WRITES = "25006"
"""A standby, or a primary that no longer is one: while it is replaced, worth another try."""

_LOCKED = "55P03"
"""Another session has the lock, and the function that we called waits for it no longer."""

_UNDONE = ("40", _LOCKED, "57014", "26000", "42P05", _NO_WRITES)
"""Deadlock or serialization failure, lock timeout, statement timeout, a prepared statement that is missing or there
already (behind a pooler), no writes: rolled back, and worth another try."""

_RESTRICTED = (
    "restrict_nonsystem_relation_kind is set: alter role, alter database or alter system ... reset it;"
    " `leasehold doctor` says where"
)

_QUEUE_HINT = (
    "a session that has called LISTEN stays in a transaction, and the queue is not emptied past it: end that session;"
    " `leasehold doctor` says how full the queue is, and names the oldest transaction"
)

_GRANTS = re.compile(r"\('((?:producer|worker|operator|viewer|api)[a-z ]*)',\s+'([a-z_\s]+)'\)")
"""The roles, without their prefix, and the functions: a row of `granted()`."""

_ROLES = (
    "grant the login the role for what it does: leasehold_producer enqueues, leasehold_worker runs jobs,"
    " leasehold_viewer looks (verify, stats, queues), leasehold_operator looks and changes, leasehold_api serves HTTP"
)


def translate(error: BaseException, invalid: type[InvalidArgument] = InvalidArgument) -> LeaseholdError | None:
    """Return what an error means to a user of Leasehold, whichever driver it came through; None if it is not ours."""
    root = _root(error)
    if root is None:  # the server did not speak: an OperationalError, as DB-API names it, is about the way to it
        lost = any(cls.__name__ == "OperationalError" for cls in type(error).__mro__)
        return DatabaseUnavailable(f"PostgreSQL is not available: {' '.join(str(error).split())}") if lost else None
    code = _code(root)
    message, detail, hint, place = _parts(root)
    # LH003: a value is refused, with InvalidJob by a call that records jobs.
    if (known := invalid if code == "LH003" else _OURS.get(code)) is not None:
        meaning = known(detail or message, hint=hint)
        meaning.place = int(place) if place.isdecimal() else None
        return meaning
    if _is_full_queue(root):
        return DatabaseUnavailable(f"PostgreSQL's queue of notifications is full: {message}", hint=_QUEUE_HINT)
    return _usual(code, message, invalid)


def meaning_of(error: psycopg.Error, invalid: type[InvalidArgument] = InvalidArgument) -> LeaseholdError | None:
    """Return what an error on one of our own connections means; there, unlike on a user's, we may simply try again."""
    if error.sqlstate == _LOCKED:
        return errors.LockTimeout(f"PostgreSQL gave up waiting for a lock: {error.diag.message_primary}")
    if certainly_undone(error) and error.sqlstate != _NO_WRITES and not _is_full_queue(error):
        return DatabaseUnavailable(f"PostgreSQL has undone the call: {error.diag.message_primary}")
    return translate(error, invalid)


def trouble_of(error: Exception, invalid: type[InvalidArgument] = InvalidArgument) -> LeaseholdError:
    """Return what any error around a call on one of our own connections means. Never None: no loop dies of it."""
    meaning = meaning_of(error, invalid) if isinstance(error, psycopg.Error) else None
    if meaning is not None:
        return meaning
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return DatabaseTrouble(
            f"PostgreSQL refused the call: {error.diag.message_primary} (SQLSTATE {error.sqlstate})",
            sqlstate=error.sqlstate,
            hint=_RESTRICTED if "access to non-system view" in str(error) else None,
        )
    if isinstance(error, psycopg.DataError | psycopg.ProgrammingError | UnicodeError):
        return invalid(f"a value of this call cannot be sent to PostgreSQL: {error}")
    return DatabaseTrouble(f"the call or its answer cannot be processed: {type(error).__name__}: {error}")


def blames_values(error: LeaseholdError) -> bool:
    """Whether the call was refused for what it carried: sent again as it is, it would be refused again."""
    if isinstance(error, DatabaseTrouble):
        # Not supported, cardinality, data, integrity, program limits: about what was sent more often than the server.
        return error.sqlstate.startswith(("0A", "21", "22", "23", "54"))
    return isinstance(error, InvalidArgument)


def of_one_row(error: LeaseholdError) -> bool:
    """Whether a call for many jobs may have failed because of one of them: then they are tried one by one."""
    if isinstance(error, errors.LockTimeout):
        return True
    return not isinstance(error, DatabaseUnavailable | errors.NotPermitted | errors.SchemaMismatch)


def certainly_undone(error: psycopg.Error) -> bool:
    """Whether the call has certainly had no effect and may succeed if it is sent again."""
    return (error.sqlstate or "").startswith(_UNDONE) or _is_full_queue(error)


def _usual(code: str, message: str, invalid: type[InvalidArgument]) -> LeaseholdError | None:
    if code == _NO_WRITES:
        return errors.DatabaseReadOnly(
            f"this server takes no writes: {message}",
            hint="a standby? name the primary in the DSN, or several hosts with target_session_attrs=read-write;"
            " or default_transaction_read_only is on",
        )
    if code.startswith(_AWAY):
        return DatabaseUnavailable(f"PostgreSQL is not available: {message}")
    if code.startswith("22"):
        return invalid(f"PostgreSQL cannot take a value of this call: {message}")
    if code == "42501":
        return errors.NotPermitted(message, hint=_role_hint(message))
    if code in {"3F000", "42883", "42P01"}:  # no such schema, function, table: the migration has not run
        return errors.SchemaMismatch(
            f"this database has no such Leasehold schema: {message}", hint="run `leasehold migrate`"
        )
    return None


def _is_full_queue(error: BaseException) -> bool:
    """Whether a commit was refused because PostgreSQL has no room for its notifications."""
    # Values that are too large have the same code, and the message may be translated.
    diag: Any = getattr(error, "diag", error)
    file = getattr(diag, "source_file", None) or getattr(diag, "server_source_filename", None)
    return _code(error) == "54000" and str(file or "").endswith("async.c")


def _root(error: BaseException | None) -> BaseException | None:
    """The driver's own exception, below whatever SQLAlchemy and Django wrap around it."""
    found = None
    while error is not None:
        if _code(error):
            found = error
        error = getattr(error, "orig", None) or error.__cause__
    return found


def _code(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _parts(error: BaseException) -> tuple[str, str | None, str | None, str]:
    diag: Any = getattr(error, "diag", error)  # psycopg keeps them in .diag, asyncpg on the exception itself
    message = getattr(diag, "message_primary", None) or getattr(diag, "message", None) or str(error)
    detail = getattr(diag, "message_detail", None) or getattr(diag, "detail", None)
    hint = getattr(diag, "message_hint", None) or getattr(diag, "hint", None)
    return str(message).strip(), detail, hint or None, getattr(diag, "column_name", None) or ""


@cache
def _granted() -> dict[str, tuple[str, ...]]:
    """Each public function with the roles that may call it."""
    text = files("leasehold.db").joinpath("sql/functions/zz_grants.sql").read_text()
    return {
        name: tuple(f"leasehold_{role}" for role in roles.split())
        for roles, names in _GRANTS.findall(text)
        for name in names.split()
    }


def _role_hint(message: str) -> str:
    """What to grant. `message` is PostgreSQL's, in any language: the function's name is found in it."""
    granted = _granted()
    for word in re.findall(r"[a-z_]+[a-z0-9]*", message):
        name = re.sub(r"_v[0-9]+$", "", word)
        if name in granted:
            roles = granted[name]
            cure = "grant one of them to the login" if len(roles) > 1 else "grant that role to the login"
            return f"only {' and '.join(', '.join(roles).rsplit(', ', 1))} may call {name}: {cure}"
    return _ROLES
