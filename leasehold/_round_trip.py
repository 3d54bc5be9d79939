"""What is wrong with a value that cannot be written as JSON, or would not be read back as it is."""

import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from datetime import datetime, time
from decimal import Decimal
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from leasehold._jsonlimits import LONE_SURROGATE, JsonProblem, not_finite

SUPPORTED: Final = (
    "supported: str, int, float, bool, None, list, dict, tuple, set, frozenset, Enum, Literal, dataclass, "
    "NamedTuple, TypedDict, pydantic model, datetime, date, time, timedelta, UUID, Decimal, bytes, Path"
)

# A pydantic model has its own settings, and writes bytes as text unless they say otherwise.
_MODEL_BYTES: Final = (
    "holds bytes that are not text, in a pydantic model; "
    "set ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"
)


class Unfit(Exception):
    """The value does not fit the type, or cannot be stored. Carries every problem found."""

    def __init__(self, *problems: JsonProblem) -> None:
        super().__init__(*problems)
        self.problems = problems

    @classmethod
    def invalid(cls, error: ValidationError) -> "Unfit":
        """Return what pydantic found."""
        return cls(*map(_problem, error.errors(include_url=False)))


def _shown(value: object) -> str:
    """Return a short repr for messages; never fails."""
    try:
        return _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide the error that is reported
        return f"a {type(value).__name__}"


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def _problem(details: ErrorDetails) -> JsonProblem:
    what = _lower(details["msg"])
    code = details["type"]
    if code not in {"missing", "json_invalid"}:
        what = f"{what}, got {_shown(details['input'])}"
    return JsonProblem(details["loc"], what, code)


def unwritable(where: tuple[str, ...], error: ValueError) -> JsonProblem:
    """Return the problem of a value that pydantic cannot write."""
    message = " ".join(str(error).split()).removeprefix("Error serializing to JSON: ")
    if "surrogates not allowed" in message:
        return JsonProblem(where, LONE_SURROGATE, "json")
    if "invalid utf-8" in message:
        return JsonProblem(where, _MODEL_BYTES, "json")
    return JsonProblem(where, f"{_lower(message)}; {SUPPORTED}", "json")


def unreadable(error: ValidationError) -> list[JsonProblem]:
    """Return the problems of a text of ours that cannot be read back."""
    found = map(_problem, error.errors(include_url=False))
    return [JsonProblem(one.where, f"cannot be read back from its JSON: {one.what}", "json") for one in found]


def _differing(where: tuple[str, ...], given: object, read: object) -> JsonProblem:
    if isinstance(given, (datetime, time)) and isinstance(read, (datetime, time)):
        cure = "convert it to UTC, whose offset has no seconds"
        return JsonProblem(where, f"{given!s} would be read back as {read!s}; {cure}", "json")
    names = f"{_a(given)} would be read back as {_a(read)}"
    return JsonProblem(where, f"{names}; annotate the parameter with what it is, or send plain JSON values", "json")


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def not_finite_in(plain: object) -> list[JsonProblem]:
    """Return what is NaN or infinite in plain containers of plain values, by the outermost key."""
    parts = plain.items() if isinstance(plain, dict) else [(None, plain)]
    return [
        JsonProblem(() if key is None else (str(key),), not_finite(bad))
        for key, part in parts
        if (bad := _not_finite(part)) is not None
    ]


def _not_finite(value: object) -> float | None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return item
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)
    return None


def changes(given: object, read: object, where: tuple[str, ...] = (), *, exact: bool) -> Iterator[JsonProblem]:
    """Yield what would be read back otherwise than it is: a time, because JSON drops the seconds of an offset; if
    `exact`, also what would be read as another type, because no annotation says which it has: a tuple that has become
    a list, a str that a union takes for a date, a float that jsonb writes without a point.
    """
    if given is read:
        return
    if isinstance(given, (datetime, time)) and isinstance(read, (datetime, time)):
        # Not ==, which is false for any local time that a change of the clocks makes ambiguous.
        if given.utcoffset() != read.utcoffset():
            yield _differing(where, given, read)
        return
    if exact and not isinstance(given, type(read)) and (given != read or isinstance(given, float)):
        yield _differing(where, given, read)
        return
    if exact and isinstance(given, Mapping) and isinstance(read, Mapping):
        # A key that is no string becomes one; two may become the same.
        yield from (_differing(where, key, str(key)) for key in given if key not in read)
    for key, one, other in _pairs(given, read):
        # The outermost key is enough to name the argument.
        yield from changes(one, other, where or (str(key),), exact=exact)


def as_stored(text: str) -> str:
    """Return the text as jsonb writes it: without exponents, so that 1e16 is an integer; itself without one."""
    if not _EXPONENT.search(text):
        return text
    return _NUMBER.sub(lambda found: found[0] if found[0][0] == '"' else format(Decimal(found[0]), "f"), text)


_EXPONENT: Final = re.compile(r"[0-9][eE]\+?[0-9]")
_NUMBER: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?[0-9]++(?:\.[0-9]++)?[eE]\+?[0-9]++')


def _pairs(given: object, read: object) -> Iterator[tuple[object, object, object]]:
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        yield from ((key, given[key], read[key]) for key in given if key in read)
    elif isinstance(given, (list, tuple)) and isinstance(read, (list, tuple)):
        yield from zip(range(len(given)), given, read, strict=False)
    elif type(given) is type(read):
        declared = getattr(given, "__dataclass_fields__", ())
        fields = type(given).model_fields if isinstance(given, BaseModel) else declared
        yield from ((name, getattr(given, name), getattr(read, name)) for name in fields)
