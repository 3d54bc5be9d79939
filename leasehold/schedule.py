"""A schedule: a rule by which jobs of one kind are enqueued again and again."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, get_args

from leasehold.cron import Rule
from leasehold.errors import ConfigError
from leasehold.intent import CommonOptions, JobFields, check_fields, check_name, check_number, copy_metadata

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "exclusive"]

SCHEDULE: Final = "@schedule"
"""The notification that schedules were changed."""

MAX_MISSED: Final = 10_000
MAX_JITTER: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(JobFields):
    """What to enqueue, and when. What makes no sense is refused here, with ConfigError."""

    key: str
    """Its name, the same in every release."""
    kind: str
    """Which task shall run."""
    cron: str | None = None
    """When, as a cron expression: minute, hour, day, month, weekday. Or give `every`."""
    every: timedelta | None = None
    """How often, in absolute time."""
    time_zone: str = "UTC"
    """Whose clocks the cron expression is about."""
    payload: str = "{}"
    """The arguments of its jobs, as the text of a JSON object."""
    due_argument: str | None = None
    """The argument of the task that is given the due time of the run."""
    starts_at: datetime | None = None
    """No due time is before it; intervals count from it."""
    ends_at: datetime | None = None
    """No due time is at it or after it."""
    jitter: timedelta = timedelta(0)
    """Begin each run up to so much after its due time, to spread the load."""
    missed: Missed = "skip"
    """What becomes of due times at which no scheduler ran: skip them, run once for all of them, run each of them."""
    grace: timedelta = timedelta(minutes=5)
    """With `skip`: how late a run may be and is not missed yet."""
    max_missed: int = 1000
    """With `all`: how many are made up for at most, the latest ones."""
    overlap: Overlap = "allow"
    """While a job of it is unfinished: enqueue another, enqueue none, or let it wait for its turn."""
    enabled: bool | None = None
    """Whether it runs at all. None: as it is; a new one does."""

    def __post_init__(self) -> None:
        try:
            check_fields(self, _CHECKS)
            copy_metadata(self)
            self.rule  # noqa: B018 (made to see that it can be)
        except ConfigError as problem:
            raise ConfigError(f"schedule {self.key!r}: {problem.args[0]}", hint=problem.hint) from None
        except ValueError as problem:
            raise ConfigError(f"schedule {self.key!r}: {problem}") from None

    @property
    def rule(self) -> Rule:
        """The sequence of its due times."""
        return Rule.of(self)

    def definition(self) -> str:
        """Return what the SQL functions take: the text of a JSON object, always the same for the same schedule."""
        values = {one.name: _json(getattr(self, one.name)) for one in fields(self) if one.name != "payload"}
        # The payload is JSON text already; decoding it only to encode it again could change numbers.
        return f'{json.dumps(values)[:-1]}, "payload": {self.payload}}}'


class ScheduleOptions(CommonOptions, total=False):
    """What `app.schedule(...)` takes: see `Schedule`."""

    every: timedelta | None
    key: str | None
    time_zone: str
    due_argument: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    jitter: timedelta
    missed: Missed
    grace: timedelta
    max_missed: int
    overlap: Overlap
    enabled: bool | None


def _json(value: Any) -> Any:
    match value:
        case timedelta():
            # Never days: PostgreSQL's last 23 to 25 hours, as the session's time zone has it.
            return f"{value // timedelta(microseconds=1)} microseconds"
        case datetime():
            return value.astimezone(UTC).isoformat()
        case tuple():
            return list(value) or None
        case _:
            return value


def _check_choice(what: str, value: object, *, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{what} {value!r} unknown", hint=f"known: {', '.join(known)}")


def _check_length(what: str, length: object, *, most: timedelta) -> None:
    if not isinstance(length, timedelta) or not timedelta(0) <= length <= most:
        raise ConfigError(f"{what} {length!r} is not a timedelta between 0 and {most}")


_CHECKS: Final[dict[str, Callable[[str, Any], None]]] = {
    "key": check_name,
    "due_argument": check_name,
    "payload": lambda _what, _text: None,  # as `Arguments` or SQL made it
    "max_missed": partial(check_number, least=1, most=MAX_MISSED),
    "missed": partial(_check_choice, known=get_args(Missed)),
    "overlap": partial(_check_choice, known=get_args(Overlap)),
    "jitter": partial(_check_length, most=MAX_JITTER),
    "grace": partial(_check_length, most=timedelta(days=3653)),
}
