"""Lengths of time that users give us, checked once and kept as seconds."""

import math
from datetime import timedelta
from typing import Final

# Beyond this it is a wrong unit (milliseconds, a timestamp), not a wish. The SQL functions have the same bound.
MAX_SECONDS: Final = 315_360_000.0


def seconds(value: object, *, what: str) -> float:
    """Return a timedelta or a number as seconds, or raise ValueError that names `what` and the value."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.copysign(math.inf, 1 if value > 0 else -1)
    else:
        # ValueError for a wrong type too: callers have one kind of mistake to handle.
        raise ValueError(f"{what}: {value!r} is not a length of time; give seconds or a timedelta")  # noqa: TRY004
    if math.isnan(number) or number < 0:
        raise ValueError(f"{what}: {_shown(value)} is no length of time; give zero or more seconds")
    if number > MAX_SECONDS:
        raise ValueError(f"{what}: {_shown(value)} is longer than 10 years; give seconds, not milliseconds")
    return number


def _shown(value: object) -> str:
    # Python has no repr for an int of thousands of digits.
    return "an enormous number" if isinstance(value, int) and value.bit_length() > 256 else repr(value)
