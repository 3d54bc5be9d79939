"""The one place where PostgreSQL's error codes become Leasehold's exceptions."""

from leasehold.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidJob,
    JobUnknown,
    LeaseholdError,
    NotPermitted,
    SchemaMismatch,
)

_OURS: dict[str, type[LeaseholdError]] = {
    "LH001": IllegalTransition,
    "LH002": JobUnknown,
    "LH003": InvalidJob,
    "LH004": IdempotencyConflict,
}

_AWAY = ("08", "57P", "53", "58")
"""Connection exceptions, shutdown or crash of the server, out of resources, I/O errors."""

_MISSING = {"3F000", "42883", "42P01"}
"""No such schema, function, table: the migration has not run."""


def translate(error: BaseException) -> LeaseholdError | None:
    """What this driver's error means to a user of Leasehold; None if it is none of ours."""
    root = _with_sqlstate(error)
    if root is None:
        return None
    code = str(getattr(root, "sqlstate", None) or getattr(root, "pgcode", None) or "")
    message, detail, hint = _parts(root)
    if code in _OURS:
        return _OURS[code](detail or message, hint=hint)
    if code.startswith(_AWAY) or not code:
        return DatabaseUnavailable(f"PostgreSQL is not available: {message}")
    if code == "42501":
        return NotPermitted(message, hint="the login needs one of the roles leasehold_producer, _worker, _operator")
    if code in _MISSING:
        return SchemaMismatch(f"this database has no such Leasehold schema: {message}", hint="run `leasehold migrate`")
    return None


def _with_sqlstate(error: BaseException | None) -> BaseException | None:
    """The driver's own exception, below what SQLAlchemy or Django wrap around it."""
    while error is not None:
        if hasattr(error, "sqlstate") or hasattr(error, "pgcode"):
            return error
        error = getattr(error, "orig", None) or error.__cause__
    return None


def _parts(error: BaseException) -> tuple[str, str | None, str | None]:
    diag = getattr(error, "diag", error)  # psycopg keeps them in .diag, asyncpg on the exception itself
    message = getattr(diag, "message_primary", None) or getattr(diag, "message", None) or str(error)
    detail = getattr(diag, "message_detail", None) or getattr(diag, "detail", None)
    hint = getattr(diag, "message_hint", None) or getattr(diag, "hint", None)
    return str(message).strip(), detail, hint or None
