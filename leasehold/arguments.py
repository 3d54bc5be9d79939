"""The arguments and the result of a task, between Python and the JSON in the database.

The payload is one object keyed by parameter name. An argument that the caller omits is not stored, so
the default of the release that runs the job applies.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, NotRequired, Optional

from pydantic import ConfigDict, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from leasehold._facts import MAX_PAYLOAD_BYTES
from leasehold._jsonlimits import MAX_DEPTH, JsonProblem, find_hazard, find_problem
from leasehold._round_trip import Unfit, as_stored, changes, not_finite_in, unreadable, unwritable
from leasehold.errors import ConfigError, InvalidArguments, InvalidJob, ResultDoesNotFit
from leasehold.outcome import Signal

# `constants` makes a NaN visible in the text; by default pydantic writes null without a word.
_CONFIG: Final = ConfigDict(
    extra="forbid", allow_inf_nan=False, populate_by_name=True, ser_json_inf_nan="constants", ser_json_bytes="base64",
    val_json_bytes="base64",
)  # fmt: skip

_FEW: Final = 16
_SHORT: Final = 1000
_LARGE: Final = 2**63
_NUMBERS: Final = frozenset({float, bool, type(None)})
_ODD_NUMBER: Final = re.compile(r"[0-9.](?:[eE][-+]?[0-9]{3}|[0-9.]{199})")


class Codec:
    """Writes the values of one type as JSON, and reads them. Never pickle. None is always among them.

    Encoding validates, writes, checks the limits of the database, and reads its own text back: a job that was accepted
    can be read by the worker. Decoding is one call into pydantic-core.
    """

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
        """Return the JSON text of the value, or Unfit."""
        if not is_small(value) and (problem := find_hazard(value, self._max_bytes)) is not None:
            raise Unfit(problem)
        try:
            valid = self._validate(value)
        except ValidationError as error:
            raise Unfit.invalid(error) from None
        text = self._write(valid)
        harmless = len(text) <= self._max_bytes and is_harmless(text)
        if not harmless and (problem := find_problem(text, max_bytes=self._max_bytes)) is not None:
            raise Unfit(problem)
        if not self._plain and (problems := self._lost(valid, text)):
            raise Unfit(*problems)
        return text

    def decode(self, text: str | bytes) -> Any:
        """Return the value that the text stands for, or Unfit."""
        try:
            return self._read(text)
        except ValidationError as error:
            raise Unfit.invalid(error) from None

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
                    raise Unfit(unwritable((str(key),), cause)) from None
            raise Unfit(unwritable((), error)) from None

    def _dump(self, valid: object, include: set[Any] | None = None) -> str:
        # warnings="error": an object changed behind pydantic's back must not be written half right.
        return self._to_json(valid, include=include, by_alias=True, round_trip=True, warnings="error").decode()

    def _lost(self, valid: object, text: str) -> list[JsonProblem]:
        """Return what would not be read back from the text as it is."""
        if "null" in text:
            # Inside a pydantic model a NaN is null all the same. As Python, not as JSON, it is still what it was.
            plain = self._adapter.dump_python(valid, round_trip=True, warnings=False)
            if problems := not_finite_in(plain):
                return problems
        stored = as_stored(text) if self._exact else text
        try:
            read = self._read(stored)
        except ValidationError as error:
            return unreadable(error)
        return [] if read == valid and stored is text else list(changes(valid, read, exact=self._exact))


# Nearly all values and texts pass these, at next to no cost. The rules are those of `jsonlimits`: these imply them.


def is_small(value: object) -> bool:
    """Return whether it is a dict of a few short texts and numbers, in which `find_hazard` would find nothing."""
    if type(value) is not dict or len(value) > _FEW:
        return False
    for key, part in value.items():
        kind = type(part)
        if type(key) is not str or len(key) > _SHORT or (kind is str and len(part) > _SHORT):
            return False
        if not (kind is str or (kind is int and -_LARGE < part < _LARGE) or kind in _NUMBERS):
            return False
    return True


def is_harmless(text: str) -> bool:
    """Return whether it is a short ASCII text in which `find_problem` would find nothing but too many bytes."""
    if len(text) > _SHORT or not text.isascii() or _ODD_NUMBER.search(text):
        return False
    if "\\u" in text or "\0" in text or "NaN" in text or "Infinity" in text:
        return False
    return text.count("[") + text.count("{") <= MAX_DEPTH


class Arguments:
    """The arguments of one task, from the signature of its function; built once, at decoration."""

    def __init__(self, function: Callable[..., object], *, kind: str, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        parameters = _parameters(function, kind)
        hints = _hints(function, kind)
        declared = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
        self._kind = kind
        self._names = tuple(declared)
        self._positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        shape = {
            p.name: declared[p.name] if p.default is p.empty else NotRequired[declared[p.name]] for p in parameters
        }
        # The functional form takes any name: as attributes, some would clash with pydantic's own.
        make: Any = TypedDict
        payload = make("Payload", shape)
        payload.__module__ = function.__module__  # where names inside annotations are looked up
        try:
            plain = all(map(_is_scalar, declared.values()))
            self._codec = Codec(payload, max_bytes=max_bytes, plain=plain, exact=True)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            _refuse_annotation(kind, declared, error)

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Return the payload of a call as JSON text, or InvalidArguments with every problem of the call."""
        values, text = kwargs, ""
        problems: list[str] = []
        if args:
            if len(args) > len(self._positional):
                problems.append(f"{len(args)} positional arguments given, at most {len(self._positional)} taken")
            values = dict(zip(self._positional, args, strict=False)) | dict(kwargs)
            if len(values) < len(args) + len(kwargs):
                twice = [name for name in self._positional[: len(args)] if name in kwargs]
                problems += [f"argument {name!r} given twice, by position and by name" for name in twice]
        try:
            text = self._codec.encode(values)
        except Unfit as unfit:
            problems += self._messages(unfit.problems)
        if problems:
            raise InvalidArguments(f"{self._kind}: {'; '.join(problems)}")
        return text

    def decode(self, payload: str | bytes) -> dict[str, Any]:
        """Return the keyword arguments to call the function with, or InvalidArguments."""
        problems = ["the payload is null; it must be an object"]
        try:
            values: dict[str, Any] | None = self._codec.decode(payload)
        except Unfit as unfit:
            problems, values = self._messages(unfit.problems), None
        if values is None:  # raised out here, it has no context: the stored value is not shown twice
            raise InvalidArguments(f"{self._kind}: {'; '.join(problems)}")
        return values

    def _messages(self, problems: Iterable[JsonProblem]) -> list[str]:
        """Return one line for each problem; the unknown arguments last, with the known ones after them."""
        lines, unknown = [], []
        for problem in problems:
            name, *rest = problem.where or ("",)
            if problem.code == "extra_forbidden" and not rest:
                unknown.append(f"unknown argument {name!r}")
            elif problem.code == "missing" and not rest:
                lines.append(f"missing argument {name!r}")
            elif problem.where:
                lines.append(f"argument {name!r}{_at(rest)}: {problem.what}")
            else:
                lines.append(f"the payload: {problem.what}")
        if unknown:
            unknown.append(f"known: {', '.join(self._names)}" if self._names else "the task takes none")
        return lines + unknown


class Result:
    """The result of one task, from the return annotation of its function."""

    def __init__(self, function: Callable[..., object], *, kind: str) -> None:
        self._kind = kind
        hint = _without_signals(_hints(function, kind).get("return", Any))
        self._wanted = inspect.formatannotation(hint)
        try:
            # A function that returns nothing may give `complete_in` any result.
            self._codec = Codec(Any if hint in (None, type(None)) else hint)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            _refuse_annotation(kind, {"return": hint}, error)

    def encode(self, value: object) -> str | None:
        """Return the result as JSON text, None for None; ResultDoesNotFit when it cannot be stored."""
        if value is None:
            return None
        try:
            return self._codec.encode(value)
        except Unfit as unfit:
            what = f"the result of type {type(value).__qualname__} (return annotation {self._wanted})"
            hint = "the job is set aside: mend the task and retry the job, which runs it again"
            refused = ResultDoesNotFit(self._refusal(what, unfit), hint=hint)
        raise refused

    def decode(self, text: str | bytes | None) -> Any:
        """Return the result as the annotated type; InvalidJob when the stored one is of another type."""
        if text is None:
            return None
        try:
            return self._codec.decode(text)
        except Unfit as unfit:
            refused = InvalidJob(self._refusal("the stored result", unfit))
        raise refused

    def _refusal(self, what: str, unfit: Unfit) -> str:
        problems = ";".join(f"{_at(problem.where)}: {problem.what}" for problem in unfit.problems)
        return f"{self._kind}: {what}{problems}"


def _parameters(function: Callable[..., object], kind: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            stars, cure = ("*", "a list") if parameter.kind is parameter.VAR_POSITIONAL else ("**", "a dict")
            raise ConfigError(
                f"{kind}: parameter '{stars}{parameter.name}' has no fixed name to be stored under",
                hint=f"take {cure} as one parameter instead",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{kind}: parameter '{parameter.name}' is positional-only, but arguments are stored by name",
                hint="remove the '/' from the signature",
            )
    return parameters


def _hints(function: Callable[..., object], kind: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{kind}: the annotation {error.name!r} cannot be resolved",
            hint="define or import it at module level, not under TYPE_CHECKING or inside a function",
        ) from None
    except (TypeError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{kind}: the annotations cannot be read: {error}") from None


def _refuse_annotation(kind: str, declared: Mapping[str, Any], error: Exception) -> NoReturn:
    """Name the parameter whose annotation cannot be JSON; found by trying each alone."""
    for name, hint in declared.items():
        try:
            Codec(hint)
        except (PydanticUserError, PydanticUndefinedAnnotation):
            place = "the return annotation" if name == "return" else f"parameter {name!r}:"
            raise ConfigError(
                f"{kind}: {place} {inspect.formatannotation(hint)} cannot be written as JSON",
                hint="annotate it with plain data: builtin types, dataclasses, pydantic models",
            ) from None
    raise ConfigError(f"{kind}: the annotations cannot be written as JSON: {error}") from None


def _without_signals(hint: Any) -> Any:
    """Return the return annotation without Retry, Snooze and Cancel, which are never stored."""
    kept = tuple(m for m in _members(hint) if not (isinstance(m, type) and issubclass(m, Signal)))
    return typing.Union[kept] if kept else None  # noqa: UP007 - built at run time


def _is_scalar(hint: Any) -> bool:
    """Return whether the hint is a scalar type as Python has it, or one of them or None."""
    members = [member for member in _members(hint) if member is not type(None)]
    return len(members) == 1 and members[0] in (str, int, float, bool)


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union; of anything else, itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in {typing.Union, types.UnionType} else (hint,)


def _at(path: Iterable[str | int]) -> str:
    """Return ` at items[0].price`, or nothing for the value itself."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f" at {steps.removeprefix('.')}" if steps else ""
