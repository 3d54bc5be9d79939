"""Due times reckoned another way, to compare with: every second, or every time on the wall, is looked at.

Knows numbers, `*`, `/`, `-` and `,`; shares no code with Leasehold or with cronsim.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
MINUTE = timedelta(minutes=1)


def due_times(
    start: datetime,
    end: datetime,
    *,
    cron: str | None = None,
    every: timedelta | None = None,
    time_zone: str = "UTC",
) -> list[datetime]:
    """All due times from the start until just before the end."""
    if every is not None:
        due, found = datetime(2001, 1, 1, tzinfo=UTC), []
        due += (start - due) // every * every
        while due < end:
            if due >= start:
                found.append(due)
            due += every
        return found
    assert cron is not None
    zone = ZoneInfo(time_zone)
    fields = cron.split()
    allowed = [_numbers(text, *span) for text, span in zip(fields, RANGES, strict=True)]
    named = not fields[0].startswith("*") and not fields[1].startswith("*")
    both = fields[2].startswith("*") or fields[4].startswith("*")

    def matches(wall: datetime) -> bool:
        day, weekday = wall.day in allowed[2], wall.isoweekday() % 7 in allowed[4]
        return (
            wall.minute in allowed[0]
            and wall.hour in allowed[1]
            and wall.month in allowed[3]
            and ((day and weekday) if both else (day or weekday))
        )

    if named:
        return _named(start, end, zone, matches)
    moments = (start + n * MINUTE for n in range((end - start) // MINUTE))
    return [moment for moment in moments if matches(moment.astimezone(zone))]


def _named(start: datetime, end: datetime, zone: ZoneInfo, matches: Callable[[datetime], bool]) -> list[datetime]:
    """Each time on the wall is once: when it is first shown, or when the clocks have gone past it."""
    wall = start.astimezone(zone).replace(tzinfo=None) - timedelta(hours=26)
    first_shown = _first_shown(start, end, zone)
    found = set()
    while wall < end.astimezone(zone).replace(tzinfo=None) + timedelta(hours=26):
        if matches(wall):
            shown = first_shown.get(wall)
            if shown is None:  # skipped: the first moment at which the clocks show something later
                shown = min(moment for reading, moment in first_shown.items() if reading > wall)
            if start <= shown < end:
                found.add(shown)
        wall += MINUTE
    return sorted(found)


@cache
def _first_shown(start: datetime, end: datetime, zone: ZoneInfo) -> dict[datetime, datetime]:
    shown: dict[datetime, datetime] = {}
    moment = start - timedelta(hours=30)
    while moment < end + timedelta(hours=30):
        shown.setdefault(moment.astimezone(zone).replace(tzinfo=None), moment)
        moment += MINUTE
    return shown


def _numbers(text: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            begin, end = least, most
        else:
            begin = int(first)
            end = int(last) if last else (most if step else begin)
        found.update(range(begin, end + 1, int(step or 1)))
    return {number % 7 for number in found} if (least, most) == (0, 6) else found
