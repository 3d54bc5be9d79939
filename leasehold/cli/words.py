"""Times and numbers as people read them."""

from datetime import UTC, datetime, timedelta


def when(moment: datetime | None) -> str:
    """A moment, in UTC, to the second."""
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(length: timedelta | float | None) -> str:
    """How long, in its two largest units: `12s`, `3m 5s`, `2h 10m`, `4d 3h`."""
    if length is None:
        return "-"
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    whole = round(abs(seconds))
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    text = " ".join(f"{number}{unit}" for number, unit in parts[:2] if number) or "0s"
    return f"-{text}" if seconds < 0 and whole else text


def count(number: int, capped: bool = False) -> str:
    """A number that may have been counted no further."""
    return f"{number:,}{'+' if capped else ''}"


def many(number: int, thing: str, *, capped: bool = False) -> str:
    """So many of a thing."""
    return f"{count(number, capped)} {thing}{'' if number == 1 and not capped else 's'}"
