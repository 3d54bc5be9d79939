"""Numbers, lengths of time and states, in words."""

from datetime import UTC, datetime
from typing import Any, Final

NONE: Final = "\u2013"
"""What is shown where there is nothing."""

STATES: Final = ("queued", "running", "retry", "dead", "success", "created")
"""In the order of the tabs."""

MEANINGS: Final = {
    "created": "waits for its time",
    "queued": "can run now",
    "parked": "waits for its exclusive key or its limit",
    "running": "runs under a lease",
    "retry": "failed, will be tried again",
    "success": "done",
    "dead": "gave up",
    "cancelled": "stopped by somebody",
}

REASONS: Final = {
    "not_accepted": "Not accepted yet",
    "paused": "Its queue is paused",
    "run_at": "Not due yet",
    "backoff": "Waiting to be tried again",
    "exclusive_key": "Another job has its exclusive key",
    "limit": "A limit is reached",
    "no_worker_for_kind": "No live worker knows its kind",
    "no_worker_for_queue": "No live worker serves its queue",
    "running": "It is running",
    "success": "It has succeeded",
    "dead": "It has ended",
}

_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def span(seconds: float | None) -> str:
    """A length of time, to two units: 340 ms, 4.2 s, 35 min, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return NONE
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for index, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            whole = int(seconds // size)
            rest_size, rest_unit = _UNITS[index + 1] if index + 1 < len(_UNITS) else (1.0, "s")
            rest = int(seconds % size // rest_size)
            return f"{whole} {unit} {rest} {rest_unit}" if rest and whole < 10 else f"{whole} {unit}"
    return f"{seconds:.0f} s"


def number(value: float | None, capped: bool = False) -> str:
    """12,345, or 10,000+ where counting stopped."""
    if value is None:
        return NONE
    shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"
    return f"{shown}+" if capped else shown


def size(value: float | None) -> str:
    """1.5 MB."""
    if value is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def age(moment: datetime | None, now: datetime) -> float | None:
    """Seconds since a moment."""
    return None if moment is None else max(0.0, (now - moment).total_seconds())


def iso(moment: datetime) -> str:
    """To the millisecond, for scripts."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_state(job: Any) -> str:
    """The state as people see it: parked and cancelled are told apart from queued and dead."""
    if job.state == "queued" and job.parked:
        return "parked"
    if job.state == "dead" and job.reason == "cancelled":
        return "cancelled"
    return str(job.state)
