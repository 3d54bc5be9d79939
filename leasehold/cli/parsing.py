"""What people type after options, made into values: lengths of time, moments, ids, `name=value` pairs."""

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from leasehold.durations import MAX_SECONDS
from leasehold.errors import ConfigError
from leasehold.jsonlimits import find_problem

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def length(text: str, *, option: str) -> timedelta:
    """`90s`, `5m`, `2h`, `30d`, `1.5h`, or several such parts in one: `1h30m`."""
    parts = _LENGTH.findall(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or not math.isfinite(seconds):
        raise ConfigError(f"{option} {text!r} is not a length of time", hint="write 90s, 5m, 2h or 30d")
    if seconds > MAX_SECONDS:
        raise ConfigError(f"{option} {text!r} is longer than ten years", hint="write 90s, 5m, 2h or 30d")
    return timedelta(seconds=seconds)


def moment(text: str, *, option: str) -> datetime:
    """A time with its zone, as ISO 8601 writes it."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a time", hint="write it as 2030-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise ConfigError(f"{option} {text!r} has no time zone", hint=f"write {text}Z for UTC")
    return found


def moment_or_ago(text: str, *, option: str, now: datetime | None = None) -> datetime:
    """A time, or how long ago it was."""
    if "-" in text or "T" in text:
        return moment(text, option=option)
    try:
        return (now or datetime.now(UTC)) - length(text, option=option)
    except ConfigError as problem:
        message = f"{problem.args[0]}, and not a time either"
        raise ConfigError(message, hint="write 15m, 2h, 7d, or 2030-01-31T12:00:00Z") from None


def job_id(text: str) -> UUID:
    """The id of a job."""
    try:
        return UUID(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no job id", hint="an id is a UUID; `leasehold jobs list` shows them") from None


def arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """`to=ada` is a text, `n:=3` is JSON."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise ConfigError(f"-p {pair!r} is not name=value", hint="write -p to=ada for a text, -p n:=3 for JSON")
        if name in found:
            raise ConfigError(f"-p {name!r} is given twice", hint="leave one of them out")
        found[name] = json_value(value, option=f"-p {name}") if is_json else value
    return found


def json_value(text: str, *, option: str) -> Any:
    """A value written as JSON, within the bounds of a payload."""
    if (problem := find_problem(text)) is not None:
        raise ConfigError(f"{option}: {problem.what}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text[:200]!r} is not JSON: {error}", hint="a text in JSON has quotes") from None
