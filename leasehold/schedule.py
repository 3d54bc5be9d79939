"""A schedule: a rule by which jobs of one kind are enqueued again and again."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, get_args

from leasehold.cron import Rule
from leasehold.errors import ConfigError
from leasehold.intent import LARGEST, check_key, check_name, check_number, check_tags

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "exclusive"]

SCHEDULE: Final = "@schedule"
"""The hint that schedules were changed."""

MAX_MISSED: Final = 10_000
MAX_JITTER: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
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

    queue: str | None = None
    """Where its jobs wait. None, here and in the next two: what the task of its kind declares, if a worker that has it
    ever started, else `default`."""

    priority: int | None = None
    """Higher is more urgent. Else 0."""

    max_attempts: int | None = None
    """How many failures end a job. Else `leasehold.retry.USUAL_ATTEMPTS`."""

    exclusive_key: str | None = None
    """At most one job of this key runs at a time."""

    tags: tuple[str, ...] = ()
    """For people to find its jobs by."""

    due_argument: str | None = None
    """The argument of the task that is given the due time of the run."""

    starts_at: datetime | None = None
    """No due time is before it; intervals count from it."""

    ends_at: datetime | None = None
    """No due time is at it or after it."""

    jitter: timedelta = timedelta(0)
    """Begin each run up to so much after its due time, to spread the load."""

    missed: Missed = "skip"
    """What becomes of due times at which nobody was there: none is made up for, one for all of them, each of them."""

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
            _check(self)
            self.rule  # noqa: B018 (made to see that it can be)
        except ConfigError as problem:
            raise ConfigError(f"schedule {self.key!r}: {problem.args[0]}", hint=problem.hint) from None
        except ValueError as problem:
            raise ConfigError(f"schedule {self.key!r}: {problem}") from None

    @property
    def rule(self) -> Rule:
        """Its sequence of due times."""
        return Rule(
            every=self.every,
            cron=self.cron,
            time_zone=self.time_zone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )

    def definition(self) -> str:
        """What the SQL functions take: the text of a JSON object, always the same for the same schedule."""
        fields = {
            "key": self.key, "kind": self.kind, "queue": self.queue, "priority": self.priority,
            "max_attempts": self.max_attempts, "exclusive_key": self.exclusive_key, "tags": list(self.tags) or None,
            "due_argument": self.due_argument, "every": _length(self.every), "cron": self.cron,
            "time_zone": self.time_zone, "starts_at": _moment(self.starts_at), "ends_at": _moment(self.ends_at),
            "jitter": _length(self.jitter), "missed": self.missed, "grace": _length(self.grace),
            "max_missed": self.max_missed, "overlap": self.overlap, "enabled": self.enabled,
        }  # fmt: skip
        # The payload is JSON text already; decoding it only to encode it again could change numbers.
        return f'{json.dumps(fields)[:-1]}, "payload": {self.payload}}}'


def _length(length: timedelta | None) -> str | None:
    # Never days: PostgreSQL's last 23 to 25 hours, as the session's time zone has it.
    return None if length is None else f"{length // timedelta(microseconds=1)} microseconds"


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _check(schedule: Schedule) -> None:
    check_name("key", schedule.key)
    check_name("kind", schedule.kind)
    if schedule.queue is not None:
        check_name("queue", schedule.queue)
    if schedule.priority is not None:
        check_number("priority", schedule.priority, -LARGEST, LARGEST)
    if schedule.max_attempts is not None:
        check_number("max_attempts", schedule.max_attempts, 1, LARGEST)
    check_number("max_missed", schedule.max_missed, 1, MAX_MISSED)
    check_tags(schedule.tags)
    check_key("exclusive_key", schedule.exclusive_key)
    if schedule.due_argument is not None:
        check_name("due_argument", schedule.due_argument)
    _check_choice("missed", schedule.missed, get_args(Missed))
    _check_choice("overlap", schedule.overlap, get_args(Overlap))
    _check_length("jitter", schedule.jitter, MAX_JITTER)
    _check_length("grace", schedule.grace, timedelta(days=3653))


def _check_choice(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{what} {value!r} unknown", hint=f"known: {', '.join(known)}")


def _check_length(what: str, length: object, most: timedelta) -> None:
    if not isinstance(length, timedelta) or not timedelta(0) <= length <= most:
        raise ConfigError(f"{what} {length!r} is not a timedelta between 0 and {most}")
