"""Every exception that Leasehold raises.

    LeaseholdError
    ├── ConfigError              a setting is missing or makes no sense
    ├── InvalidArgument          a value of a call is refused: a limit, a cursor, a job
    │   └── InvalidJob           a job that cannot be recorded as it is
    │       ├── ResultDoesNotFit  the result of a task cannot be stored
    │       └── InvalidArguments  the arguments do not fit the task's signature
    │           └── ArgumentsDoNotFit  those of a job that is already recorded
    ├── UnknownKind              no task of that kind is registered
    ├── JobUnknown               no job has that id, no schedule that key
    ├── IllegalTransition        the state machine has no such edge
    ├── IdempotencyConflict      the key belongs to a different job (strict mode)
    ├── NotClaimable             a schedule cannot be claimed now: an ordinary answer, no failure
    │   ├── ScheduleLocked       ... another worker has claimed it
    │   ├── ScheduleNotDue       ... its time has not come
    │   └── ScheduleDisabled     ... it is switched off
    ├── LeaseLost                the job is no longer this attempt's to write
    ├── NotPermitted             the database role may not do that
    │   └── TokenTooStrong       ... a token may not make a stronger one
    ├── ResultTimeout            the job did not finish in time (also a TimeoutError)
    ├── JobFailed                the job is dead
    │   └── JobCancelled         ... because it was cancelled
    ├── DatabaseUnavailable      no answer from PostgreSQL; the outcome may be unknown
    │   ├── LockTimeout          ... another session kept a lock for too long, and nothing has happened
    │   └── DatabaseReadOnly     ... it answers, and takes no writes: a standby
    ├── DatabaseTrouble          PostgreSQL refused a call of our own for a reason that we do not know
    ├── WorkerFailed             a loop of a worker has died, and the worker has ended for it
    ├── ApiError                 the HTTP API refused, with problem details
    ├── ApiUnavailable           no answer from the HTTP API; the outcome may be unknown
    ├── SchemaMismatch           the schema in the database is not the one this release knows
    └── EmbeddedError            the development PostgreSQL could not be started

The command line ends with the exception's `exit_code`.
"""


class LeaseholdError(Exception):
    """The base of all. `hint` says what to do about it."""

    exit_code = 1

    place: int | None = None
    """Of a call for many jobs: the place of the one that is refused, the first is 0."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


class ConfigError(LeaseholdError):
    """A setting is missing or makes no sense."""

    exit_code = 2


class InvalidArgument(LeaseholdError, ValueError):
    """A value of a call is refused: a limit, a cursor, a job; nothing was changed."""

    exit_code = 2


class InvalidJob(InvalidArgument):
    """A job that cannot be recorded as it is; nothing was changed."""


class ResultDoesNotFit(InvalidJob):
    """The result of a task cannot be stored: another attempt would only repeat its effects, so it is not retried."""


class InvalidArguments(InvalidJob):
    """The arguments do not fit the task's signature."""


class ArgumentsDoNotFit(InvalidArguments):
    """The stored arguments of a job do not fit the task as it is now: a person has to decide, so it is not retried."""


class UnknownKind(LeaseholdError, LookupError):
    """No task of that kind is registered."""

    exit_code = 2


class JobUnknown(LeaseholdError, LookupError):
    """No job has that id, or no schedule that key."""


class IllegalTransition(LeaseholdError):
    """The state machine has no such edge."""


class IdempotencyConflict(LeaseholdError):
    """The idempotency key belongs to a job of another kind or payload."""


class NotClaimable(LeaseholdError):
    """A schedule cannot be claimed now: an ordinary answer, never logged as a failure."""


class ScheduleLocked(NotClaimable):
    """Another worker has claimed the schedule, or another session is changing it."""


class ScheduleNotDue(NotClaimable):
    """The schedule's time has not come."""


class ScheduleDisabled(NotClaimable):
    """The schedule is switched off."""


class LeaseLost(LeaseholdError):
    """The job is no longer this attempt's to write: stop its side effects."""


class NotPermitted(LeaseholdError):
    """The database role may not do that."""


class TokenTooStrong(NotPermitted):
    """A token may not make one that allows more than itself."""


class ResultTimeout(LeaseholdError, TimeoutError):
    """The job did not finish in the time given; it goes on."""


class JobFailed(LeaseholdError):
    """The job is dead: it has failed for the last time, or (JobCancelled) it was cancelled."""

    def __init__(self, message: str, *, reason: str, error_class: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        """Why, in one word: `exhausted`, `fatal`, `lease_expired`, `cancelled`, …"""
        self.error_class = error_class
        """The class of what its last attempt raised, such as `ValueError`; None if nothing was raised."""


class JobCancelled(JobFailed):
    """The job is dead because it was cancelled: by `job.cancel()`, by an operator, or by its task (`Cancel`).

    It is a JobFailed, so that `except JobFailed` is enough where the difference does not matter; else catch this first.
    """


class DatabaseUnavailable(LeaseholdError):
    """PostgreSQL did not answer. A write may or may not have happened: repeat it identically."""

    exit_code = 3

    sent = True
    """False: nothing has happened, for the call was certainly never sent, or was undone."""

    local = False
    """True: this process has no descriptor for a connection, however well the database is."""

    ids: tuple[str, ...] = ()
    """Of a call that records jobs: their ids. If `sent`, whether they are recorded is unknown: `app.job(id)` looks."""

    keys: tuple[str, ...] = ()
    """Of a call that records jobs: their idempotency keys. The call may be repeated with them."""


class DatabaseReadOnly(DatabaseUnavailable):
    """PostgreSQL answers and takes no writes: a standby, or a primary that no longer is one. Nothing has happened."""


class LockTimeout(DatabaseUnavailable):
    """Another session has kept a lock for too long. The call was undone, and nothing has happened."""


class DatabaseTrouble(LeaseholdError):
    """PostgreSQL refused a call of our own for a reason that we do not know, or its answer cannot be read."""

    def __init__(self, message: str, *, sqlstate: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate
        """PostgreSQL's code of the error; empty: it is not the server's."""


class WorkerFailed(LeaseholdError):
    """A loop of a worker has died. The worker has ended; its leases are renewed no more, and run out."""

    exit_code = 70


class ApiError(LeaseholdError):
    """The HTTP API refused. The attributes are those of its problem details (RFC 9457)."""

    def __init__(
        self,
        message: str,
        *,
        type: str = "about:blank",  # noqa: A002 (the member's name in the RFC)
        title: str = "",
        status: int = 0,
        detail: str = "",
        more: dict[str, object] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.type = type
        """Stable: tell problems apart by this."""
        self.title = title
        """The same for every problem of the type."""
        self.status = status
        """Of the HTTP answer; 0 if it was no answer of the API at all."""
        self.detail = detail
        """What happened this time."""
        self.more = more or {}
        """All members, `errors` among them."""


class ApiUnavailable(LeaseholdError):
    """The HTTP API did not answer. A write may or may not have happened: repeat it with the same key."""

    exit_code = 3

    def __init__(self, message: str, *, keys: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.keys = keys
        """The idempotency keys that were sent."""


class SchemaMismatch(LeaseholdError):
    """The schema in the database is not the one this release knows."""

    exit_code = 4


class EmbeddedError(LeaseholdError):
    """The development PostgreSQL could not be started."""

    exit_code = 3
