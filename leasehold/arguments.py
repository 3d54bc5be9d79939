"""The arguments and the result of a task, between Python and the JSON in the database.

The payload is one object keyed by parameter name. An argument that the caller omits is not stored, so
the default of the release that runs the job applies.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, NotRequired

from pydantic import PydanticUndefinedAnnotation, PydanticUserError
from typing_extensions import TypedDict

from leasehold.codec import Codec, Unfit
from leasehold.errors import ConfigError, InvalidArguments, InvalidJob
from leasehold.jsonlimits import MAX_PAYLOAD_BYTES, Problem
from leasehold.outcome import Signal


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
        try:
            plain = all(map(_is_scalar, declared.values()))
            self._codec = Codec(_payload_type(function, shape), max_bytes=max_bytes, plain=plain, exact=True)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            _refuse_annotation(kind, declared, error)

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """The payload of a call as JSON text, or InvalidArguments with every problem of the call."""
        values, text = kwargs, ""
        problems: list[str] = []
        if args:
            problems += self._binding_problems(args, kwargs)
            values = dict(zip(self._positional, args, strict=False)) | dict(kwargs)
        try:
            text = self._codec.encode(values)
        except Unfit as unfit:
            problems += self._messages(unfit.problems)
        if problems:
            raise InvalidArguments(f"{self._kind}: {'; '.join(problems)}")
        return text

    def decode(self, payload: str | bytes) -> dict[str, Any]:
        """The keyword arguments to call the function with, or InvalidArguments."""
        try:
            values: dict[str, Any] | None = self._codec.decode(payload)
        except Unfit as unfit:
            problems = self._messages(unfit.problems)
        else:
            if values is not None:
                return values
            problems = ["the payload is null; it must be an object"]
        raise InvalidArguments(f"{self._kind}: {'; '.join(problems)}")

    def _binding_problems(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterable[str]:
        if len(args) > len(self._positional):
            yield f"{len(args)} positional arguments given, at most {len(self._positional)} taken"
        for name in self._positional[: len(args)]:
            if name in kwargs:
                yield f"argument {name!r} given twice, by position and by name"

    def _messages(self, problems: Iterable[Problem]) -> list[str]:
        """One line for each problem; the unknown arguments last, with the known ones after them."""
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

    def __init__(self, function: Callable[..., object], *, kind: str, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._kind = kind
        hint = _without_signals(_hints(function, kind).get("return", Any))
        try:
            self._codec = Codec(hint, max_bytes=max_bytes)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            _refuse_annotation(kind, {"return": hint}, error)

    def encode(self, value: object) -> str | None:
        """The result as JSON text, None for None; InvalidJob when it cannot be stored."""
        if value is None:
            return None
        try:
            return self._codec.encode(value)
        except Unfit as unfit:
            what = self._message(unfit)
        raise InvalidJob(f"{self._kind}: the result of type {type(value).__qualname__}{what}")

    def decode(self, text: str | bytes | None) -> Any:
        """The result as the annotated type; InvalidJob when the stored one is of another type."""
        if text is None:
            return None
        try:
            return self._codec.decode(text)
        except Unfit as unfit:
            what = self._message(unfit)
        raise InvalidJob(f"{self._kind}: the stored result{what}")

    @staticmethod
    def _message(unfit: Unfit) -> str:
        return ";".join(f"{_at(problem.where)}: {problem.what}" for problem in unfit.problems)


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


def _payload_type(function: Callable[..., object], shape: dict[str, Any]) -> Any:
    # The functional form takes any name: as attributes, some would clash with pydantic's own.
    make: Any = TypedDict
    payload = make("Payload", shape)
    # Names inside annotations are looked up where the function was written.
    payload.__module__ = function.__module__
    return payload


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
    """The return annotation without Retry, Snooze and Cancel, which are never stored."""
    members = typing.get_args(hint) if _is_union(hint) else (hint,)
    kept = tuple(m for m in members if not (isinstance(m, type) and issubclass(m, Signal)))
    return typing.Union[kept] if kept else None  # noqa: UP007 - built at run time


def _is_scalar(hint: Any) -> bool:
    """Whether the hint is a scalar type as Python has it, or one of them or None."""
    if _is_union(hint):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return len(members) == 1 and members[0] in _SCALARS
    return hint in _SCALARS


_SCALARS = (str, int, float, bool)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in {typing.Union, types.UnionType}


def _at(path: Iterable[str | int]) -> str:
    """` at items[0].price`, or nothing for the value itself."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f" at {steps.removeprefix('.')}" if steps else ""
