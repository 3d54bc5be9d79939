"""Numbers, lengths of time and states, in words."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

NONE: Final = "\u2013"
"""What is shown in place of a value that is not known."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float | None) -> str:
    """Return a length of time, to two units: 340 ms, 4.2 s, 35 min, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return NONE
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for (size, unit), (smaller, name) in pairwise(_UNITS):
        if seconds >= size:
            whole, rest = int(seconds // size), int(seconds % size // smaller)
            return f"{whole} {unit} {rest} {name}" if rest and whole < 10 else f"{whole} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def number(value: float | None, capped: bool = False) -> str:
    """Return 12,345, or 10,000+ where counting stopped."""
    if value is None:
        return NONE
    shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"
    return f"{shown}+" if capped else shown


def size(value: float | None) -> str:
    """Return 1.5 MB."""
    if value is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def iso(moment: datetime) -> str:
    """Return a moment to the millisecond, for scripts."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_state(job: Any) -> str:
    """Return the state as people see it: parked is distinguished from queued, cancelled from dead."""
    if job.state == "queued" and job.parked:
        return "parked"
    return "cancelled" if job.state == "dead" and job.reason == "cancelled" else str(job.state)
