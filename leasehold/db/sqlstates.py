"""The one place where PostgreSQL's error codes become Leasehold's exceptions."""

from typing import Any

import psycopg

from leasehold.db.roles import role_hint
from leasehold.errors import (
    DatabaseReadOnly,
    DatabaseTrouble,
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidJob,
    JobUnknown,
    LeaseholdError,
    LockTimeout,
    NotPermitted,
    ScheduleDisabled,
    ScheduleLocked,
    ScheduleNotDue,
    SchemaMismatch,
    TokenTooStrong,
)

DriverError = psycopg.Error
"""What the driver raises."""

_OURS: dict[str, type[LeaseholdError]] = {
    "LH001": IllegalTransition,
    "LH002": JobUnknown,
    "LH003": InvalidJob,
    "LH004": IdempotencyConflict,
    "LH005": ScheduleLocked,
    "LH006": ScheduleNotDue,
    "LH007": ScheduleDisabled,
    "LH008": NotPermitted,
    "LH009": TokenTooStrong,
}

_AWAY = ("08", "57P", "53", "58", "25P03", "25P04")
"""Connection exceptions, shutdown or crash of the server, out of resources, I/O errors, a session that the server ended
because of idle_in_transaction_session_timeout or transaction_timeout."""

_VALUES = ("0A", "21", "22", "23", "54")
"""Not supported, cardinality, data, integrity, program limits: about what was sent more often than about the server."""

_MISSING = {"3F000", "42883", "42P01"}
"""No such schema, function, table: the migration has not run."""

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


def translate(error: BaseException) -> LeaseholdError | None:
    """What an error means to a user of Leasehold, whichever driver it came through; None if it is none of ours."""
    root = _root(error)
    if root is None:
        return _lost(error)
    code = _code(root)
    message, detail, hint = _parts(root)
    if code in _OURS:
        return _OURS[code](detail or message, hint=hint)
    return _usual(code, message)


def meaning_of(error: psycopg.Error) -> LeaseholdError | None:
    """What an error on one of our own connections means; there, unlike on a user's, we may simply try again."""
    if error.sqlstate == _LOCKED:
        return LockTimeout(f"PostgreSQL gave up waiting for a lock: {error.diag.message_primary}")
    if certainly_undone(error) and error.sqlstate != _NO_WRITES:
        return DatabaseUnavailable(f"PostgreSQL has undone the call: {error.diag.message_primary}")
    return translate(error)


def trouble_of(error: Exception) -> LeaseholdError:
    """What whatever went wrong around a call on one of our own connections means. Never None: no loop dies of it."""
    meaning = meaning_of(error) if isinstance(error, psycopg.Error) else None
    if meaning is not None:
        return meaning
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return DatabaseTrouble(
            f"PostgreSQL refused the call: {error.diag.message_primary} (SQLSTATE {error.sqlstate})",
            sqlstate=error.sqlstate,
            hint=_RESTRICTED if "access to non-system view" in str(error) else None,
        )
    if isinstance(error, psycopg.DataError | psycopg.ProgrammingError | UnicodeError):
        return InvalidJob(f"a value of this call cannot be sent to PostgreSQL: {error}")
    return DatabaseTrouble(f"the call or its answer cannot be processed: {type(error).__name__}: {error}")


def blames_values(error: LeaseholdError) -> bool:
    """Whether the call was refused for what it carried: sent again as it is, it would be refused again."""
    if isinstance(error, DatabaseTrouble):
        return error.sqlstate.startswith(_VALUES)
    return isinstance(error, InvalidJob)


def of_one_row(error: LeaseholdError) -> bool:
    """Whether a call for many jobs may have failed because of one of them: then they are tried one by one."""
    if isinstance(error, LockTimeout):
        return True
    return not isinstance(error, DatabaseUnavailable | NotPermitted | SchemaMismatch)


def certainly_undone(error: psycopg.Error) -> bool:
    """Whether the call has certainly had no effect and may succeed if it is sent again."""
    return (error.sqlstate or "").startswith(_UNDONE)


def _usual(code: str, message: str) -> LeaseholdError | None:
    if code == _NO_WRITES:
        return DatabaseReadOnly(
            f"this server takes no writes: {message}",
            hint="a standby? name the primary in the DSN, or several hosts with target_session_attrs=read-write;"
            " or default_transaction_read_only is on",
        )
    if code.startswith(_AWAY):
        return DatabaseUnavailable(f"PostgreSQL is not available: {message}")
    if code.startswith("22"):
        return InvalidJob(f"PostgreSQL cannot take a value of this call: {message}")
    if code == "42501":
        return NotPermitted(message, hint=role_hint(message))
    if code in _MISSING:
        return SchemaMismatch(f"this database has no such Leasehold schema: {message}", hint="run `leasehold migrate`")
    return None


def _root(error: BaseException | None) -> BaseException | None:
    """The driver's own exception, below whatever SQLAlchemy and Django wrap around it."""
    found = None
    while error is not None:
        if _code(error):
            found = error
        error = getattr(error, "orig", None) or error.__cause__
    return found


def _lost(error: BaseException) -> DatabaseUnavailable | None:
    """An error without a code: the server did not speak. An OperationalError (DB-API's name) is about the way to it."""
    if any(cls.__name__ == "OperationalError" for cls in type(error).__mro__):
        return DatabaseUnavailable(f"PostgreSQL is not available: {' '.join(str(error).split())}")
    return None


def _code(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _parts(error: BaseException) -> tuple[str, str | None, str | None]:
    diag: Any = getattr(error, "diag", error)  # psycopg keeps them in .diag, asyncpg on the exception itself
    message = getattr(diag, "message_primary", None) or getattr(diag, "message", None) or str(error)
    detail = getattr(diag, "message_detail", None) or getattr(diag, "detail", None)
    hint = getattr(diag, "message_hint", None) or getattr(diag, "hint", None)
    return str(message).strip(), detail, hint or None
