"""When a schedule is due: intervals and cron expressions, in a time zone. Pure: reads no clock.

An interval counts absolute time, in steps from its start, or from a Monday midnight in UTC where it has none.

A cron expression is about what the clocks on the wall show. cronsim finds the times on the wall; what they are in
absolute time is decided here, so that the answer never depends on where the search began:

- An expression that names its minutes and hours ("30 2 * * *") means one run for each time that it names. If the
  clocks skip that time, it runs at the moment they do; if they show it twice, it runs the first time.
- An expression with `*` in front of its minutes or hours ("*/15 * * * *"), or with seconds, means whenever the clocks
  show such a time: not at all in the hour that is skipped, twice in the hour that comes twice.
"""

import errno
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from leasehold.errors import ConfigError

MONDAY: Final = datetime(2001, 1, 1, tzinfo=UTC)
"""Where intervals without a start count from."""

MIN_EVERY, MAX_EVERY = timedelta(seconds=1), timedelta(days=3653)

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_FARTHEST_SHIFT = timedelta(hours=26)
"""Clocks have been moved by a whole day, where the date line was."""

_MOST_COUNTED = 20_000
"""Due times that are counted one by one: about a second's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The due times of some span of time."""

    latest: tuple[datetime, ...]
    """The last of them, in their order."""
    count: int
    """How many there are, those not listed among them. Very many are counted only in part."""
    next: datetime | None
    """The first one after the span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A sequence of due times."""

    every: timedelta | None = None
    """An absolute length of time, a second at least."""
    cron: str | None = None
    """Minute, hour, day, month, weekday; or six fields, with the seconds in front."""
    time_zone: str = "UTC"
    """Whose clocks a cron expression is about."""
    starts_at: datetime | None = None
    """No due time is before it."""
    ends_at: datetime | None = None
    """No due time is at it or after it."""

    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    @classmethod
    def of(cls, schedule: Any) -> "Rule":
        """Return the rule of anything that has these attributes."""
        return cls(**{one.name: getattr(schedule, one.name) for one in fields(cls) if one.init})

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "_zone", zone(self.time_zone))

    def after(self, moment: datetime) -> datetime | None:
        """Return the first due time after the moment; None: there is none any more."""
        if self.starts_at is not None and moment < self.starts_at:
            moment = self.starts_at - timedelta(microseconds=1)
        try:
            due = self._every_after(self.every, moment) if self.every is not None else self._cron_after(moment)
        except OverflowError:  # the calendar ends
            return None
        if due is None or (self.ends_at is not None and due >= self.ends_at):
            return None
        return due

    def upcoming(self, moment: datetime, count: int) -> list[datetime]:
        """Return the next due times after the moment."""
        found: list[datetime] = []
        due = self.after(moment)
        while due is not None and len(found) < count:
            found.append(due)
            due = self.after(due)
        return found

    def runs(self, first: datetime, until: datetime, keep: int) -> Runs:
        """Return the due times from one of them until a moment, that moment included."""
        if self.every is not None:
            return self._every_runs(self.every, first, until, keep)
        latest = deque([first], maxlen=keep)
        count, due = 1, self.after(first)
        while due is not None and due <= until:
            latest.append(due)
            count += 1
            if count == _MOST_COUNTED:  # far behind: go on near the end, where about twice as many are left as are kept
                due = max(due, until - (due - first) / count * keep * 2)
            elif count == 2 * _MOST_COUNTED:
                due = until
            due = self.after(due)
        return Runs(latest=tuple(latest), count=count, next=due)

    # -- intervals

    def _every_after(self, every: timedelta, moment: datetime) -> datetime:
        anchor = self.starts_at or MONDAY
        return anchor + ((moment - anchor) // every + 1) * every

    def _every_runs(self, every: timedelta, first: datetime, until: datetime, keep: int) -> Runs:
        if self.ends_at is not None:
            until = min(until, self.ends_at - timedelta(microseconds=1))
        count = (until - first) // every + 1
        last = first + (count - 1) * every
        latest = tuple(last - n * every for n in reversed(range(min(count, keep))))
        return Runs(latest=latest, count=count, next=self.after(last))

    # -- cron

    def _cron_after(self, moment: datetime) -> datetime | None:
        fields = (self.cron or "").split()
        names_its_time = len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")
        return (self._named_after if names_its_time else self._shown_after)(moment.astimezone(UTC))

    def _named_after(self, moment: datetime) -> datetime | None:
        """Return the first run after the moment of an expression that names its times."""
        start = self._wall(moment)
        if self._offset(moment - _FARTHEST_SHIFT) != self._offset(moment):
            start -= _FARTHEST_SHIFT  # a time that was skipped, or that came twice, may be behind us on the wall
        for wall in self._matches(start):
            due = self._first_time(wall)
            if due > moment:
                return due
        return None

    def _shown_after(self, moment: datetime) -> datetime | None:
        """Return the first moment after this one at which the clocks show what the expression says."""
        start = moment.replace(microsecond=0) + _SECOND
        while True:
            offset = self._offset(start)
            wall = next(self._matches((start + offset - _SECOND).replace(tzinfo=None)), None)
            if wall is None:
                return None
            due = wall.replace(tzinfo=UTC) - offset
            change = self._next_change(start, due)
            if change is None:
                return due
            start = change  # from here on the clocks show something else

    def _matches(self, wall: datetime) -> Iterator[datetime]:
        """Return the times on the wall after this one, as if no clock were ever moved."""
        return CronSim(self.cron or "", wall)

    def _first_time(self, wall: datetime) -> datetime:
        """Return the moment at which the clocks first show this, or skip it."""
        early = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        if self._wall(early) == wall:
            return early
        before = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return self._change_within(before, early)

    def _next_change(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first moment after the start, up to the end, at which the clocks are moved."""
        offset = self._offset(start)
        while start < end:
            later = min(start + _DAY, end)
            if self._offset(later) != offset:
                return self._change_within(start, later)
            start = later
        return None

    def _change_within(self, before: datetime, after: datetime) -> datetime:
        offset = self._offset(before)
        while after - before > _SECOND:
            middle = (before + (after - before) // 2).replace(microsecond=0)
            if self._offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)


def zone(name: str) -> ZoneInfo:
    """Return the time zone of that name."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError) as error:
        if getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE}:  # no descriptor for the file of the time zone
            raise
        raise ConfigError(f"time zone {name!r} unknown", hint="write it like Europe/Berlin, or UTC") from None


def _check(rule: Rule) -> None:
    if (rule.every is None) == (rule.cron is None):
        raise ConfigError("a schedule has either a cron expression or every=", hint="give one of them")
    every: object = rule.every
    if every is not None and not (isinstance(every, timedelta) and MIN_EVERY <= every <= MAX_EVERY):
        raise ConfigError(f"every {every!r} is not a timedelta between 1 second and {MAX_EVERY.days} days")
    if rule.cron is not None:
        _check_cron(rule.cron)
    for what in ("starts_at", "ends_at"):
        moment: object = getattr(rule, what)
        if moment is not None and (not isinstance(moment, datetime) or moment.utcoffset() is None):
            raise ConfigError(f"{what} {moment!r} is no datetime with a time zone", hint="datetime(…, tzinfo=UTC)")
    if rule.starts_at is not None and rule.ends_at is not None and rule.starts_at >= rule.ends_at:
        raise ConfigError(f"it ends ({rule.ends_at}) before it starts ({rule.starts_at})")


def _check_cron(expression: object) -> None:
    form = "five fields, minute hour day month weekday, like '*/5 * * * *'"
    if not isinstance(expression, str):
        raise ConfigError(f"cron {expression!r} is not a text", hint=form)
    try:
        never = next(CronSim(expression, datetime(2001, 1, 1)), None) is None  # noqa: DTZ001 (a time on the wall)
    except (CronSimError, AssertionError, TypeError, ValueError) as problem:
        raise ConfigError(f"cron {expression!r}: {str(problem).lower() or 'not understood'}", hint=form) from None
    if never:
        raise ConfigError(f"cron {expression!r} never comes", hint="is there such a day in that month?")
