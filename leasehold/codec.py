"""Values of one type, written as checked JSON and read back. Never pickle.

Encoding validates, writes, checks the limits of the database, and reads its own text back: a job that
was accepted can be read by the worker. Decoding is one call into pydantic-core.
"""

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from typing import Any, Final, Optional

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from leasehold.jsonlimits import LONE_SURROGATE, MAX_PAYLOAD_BYTES, Problem, find_problem, not_finite, surely_over

SUPPORTED: Final = (
    "supported: str, int, float, bool, None, list, dict, tuple, set, frozenset, Enum, Literal, dataclass, "
    "NamedTuple, TypedDict, pydantic model, datetime, date, time, timedelta, UUID, Decimal, bytes, Path"
)

# A pydantic model has its own settings, and writes bytes as text unless they say otherwise.
_MODEL_BYTES: Final = (
    "holds bytes that are not text, in a pydantic model; "
    "set ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"
)
# `constants` makes a NaN visible in the text; by default pydantic writes null without a word.
_CONFIG: Final = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    populate_by_name=True,
    ser_json_inf_nan="constants",
    ser_json_bytes="base64",
    val_json_bytes="base64",
)


class Unfit(Exception):
    """The value does not fit the type, or cannot be stored. Carries every problem found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems


class Codec:
    """Writes and reads the values of one type. None is always among them."""

    def __init__(
        self, hint: Any, *, max_bytes: int = MAX_PAYLOAD_BYTES, plain: bool = False, exact: bool = False
    ) -> None:
        """`plain`: the type is made of scalars alone, and valid ones are known to be what is read back.

        `exact`: a value that would be read back as another type, because nothing says which it has, is refused.
        """
        # Optional, because pydantic takes our settings only for a type that cannot have its own.
        self._adapter: TypeAdapter[Any] = TypeAdapter(Optional[hint], config=_CONFIG)  # noqa: UP045
        self._max_bytes = max_bytes
        self._plain = plain
        self._exact = exact
        # Bound once: these are called for every job, and the adapter's own methods cost as much again.
        self._read = self._adapter.validator.validate_json
        self._validate = self._adapter.validator.validate_python
        self._to_json = self._adapter.serializer.to_json

    def encode(self, value: object) -> str:
        """The JSON text of the value, or Unfit."""
        problem = surely_over(value, self._max_bytes)
        if problem is not None:
            raise Unfit(problem)
        try:
            valid = self._validate(value)
        except ValidationError as error:
            raise Unfit(*map(_problem, error.errors(include_url=False))) from None
        text = self._write(valid)
        problem = find_problem(text, max_bytes=self._max_bytes)
        if problem is not None:
            raise Unfit(problem)
        if self._plain:
            return text
        # Inside a pydantic model a NaN is null all the same: where there is a null, look again.
        if "null" in text:
            self._refuse_nan(valid)
        self._read_back(valid, text)
        return text

    def decode(self, text: str | bytes) -> Any:
        """The value that the text stands for, or Unfit."""
        try:
            return self._read(text)
        except ValidationError as error:
            problems = map(_problem, error.errors(include_url=False))
        raise Unfit(*problems)

    def _write(self, valid: object) -> str:
        try:
            # Scalars have neither aliases nor anything to be warned of, and to say so costs three times as much.
            return self._to_json(valid).decode() if self._plain else self._dump(valid)
        except ValueError as error:
            # One key at a time, only to name the culprit.
            for key in valid if isinstance(valid, dict) else ():
                try:
                    self._dump(valid, include={key})
                except ValueError as cause:
                    raise Unfit(_unwritable((str(key),), cause)) from None
            raise Unfit(_unwritable((), error)) from None

    def _dump(self, valid: object, include: set[Any] | None = None) -> str:
        # warnings="error": an object changed behind pydantic's back must not be written half right.
        return self._to_json(valid, include=include, by_alias=True, round_trip=True, warnings="error").decode()

    def _refuse_nan(self, valid: object) -> None:
        # As Python, not as JSON: only there is the number still what it was.
        plain = self._adapter.dump_python(valid, round_trip=True, warnings=False)
        parts = plain.items() if isinstance(plain, dict) else [(None, plain)]
        problems = [
            Problem(() if key is None else (str(key),), not_finite(bad))
            for key, part in parts
            if (bad := _not_finite(part)) is not None
        ]
        if problems:
            raise Unfit(*problems)

    def _read_back(self, valid: object, text: str) -> None:
        try:
            read = self._read(text)
        except ValidationError as error:
            problems = [_unreadable(_problem(details)) for details in error.errors(include_url=False)]
        else:
            if read == valid:
                return
            problems = [_differing(*values) for values in _changes(valid, read, (), exact=self._exact)]
        if problems:
            raise Unfit(*problems)


def shown(value: object) -> str:
    """A short repr for messages; never fails."""
    try:
        return _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide the error that is being told
        return f"a {type(value).__name__}"


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def _problem(details: ErrorDetails) -> Problem:
    what = _lower(details["msg"])
    code = details["type"]
    if code not in {"missing", "json_invalid"}:
        what = f"{what}, got {shown(details['input'])}"
    return Problem(details["loc"], what, code)


def _unwritable(where: tuple[str, ...], error: ValueError) -> Problem:
    message = " ".join(str(error).split()).removeprefix("Error serializing to JSON: ")
    if "surrogates not allowed" in message:
        return Problem(where, LONE_SURROGATE, "json")
    if "invalid utf-8" in message:
        return Problem(where, _MODEL_BYTES, "json")
    return Problem(where, f"{_lower(message)}; {SUPPORTED}", "json")


def _unreadable(problem: Problem) -> Problem:
    return Problem(problem.where, f"cannot be read back from its JSON: {problem.what}", "json")


def _differing(where: tuple[str, ...], given: object, read: object) -> Problem:
    if isinstance(given, (datetime, time)) and isinstance(read, (datetime, time)):
        cure = "convert it to UTC, whose offset has no seconds"
        return Problem(where, f"{given!s} would be read back as {read!s}; {cure}", "json")
    names = f"{_a(given)} would be read back as {_a(read)}"
    return Problem(where, f"{names}; annotate the parameter with what it is, or send plain JSON values", "json")


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _not_finite(value: object) -> float | None:
    """The first NaN or infinity among the values, which are plain containers of plain values."""
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


def _changes(
    given: object, read: object, where: tuple[str, ...], *, exact: bool
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    """What differs between two values: a time, because JSON drops the seconds of an offset; and if `exact` what is no
    JSON and has no annotation that says what to make of it, such as a tuple that has become a list.
    """
    if given is read:
        return
    if isinstance(given, (datetime, time)) and isinstance(read, (datetime, time)):
        # Not ==, which is false for any local time that a change of the clocks makes ambiguous.
        if given.utcoffset() != read.utcoffset():
            yield where, given, read
        return
    if exact and type(read) in _PLAIN and not isinstance(given, type(read)) and given != read:
        yield where, given, read
        return
    for key, one, other in _pairs(given, read):
        # The outermost key is enough to name the argument.
        yield from _changes(one, other, where or (str(key),), exact=exact)


_PLAIN: Final = (str, list, dict)
"""What JSON makes of everything that it has no word for."""


def _pairs(given: object, read: object) -> Iterator[tuple[object, object, object]]:
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        yield from ((key, given[key], read[key]) for key in given if key in read)
    elif isinstance(given, (list, tuple)) and isinstance(read, (list, tuple)):
        yield from zip(range(len(given)), given, read, strict=False)
    elif type(given) is type(read):
        yield from ((name, getattr(given, name), getattr(read, name)) for name in _field_names(given))


def _field_names(value: object) -> Iterable[str]:
    if isinstance(value, BaseModel):
        return type(value).model_fields
    return [field.name for field in fields(value)] if is_dataclass(value) else []
