"""Laws of arguments and results: calls are bound by name, and all problems are named at once."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from leasehold.arguments import Arguments, Result
from leasehold.errors import ConfigError, InvalidArguments, InvalidJob
from leasehold.outcome import Cancel, Retry, Snooze


@dataclass
class Item:
    name: str
    price: Decimal


class Order(BaseModel):
    items: list[Item] = []


def send_email(to: str, subject: str, count: int = 1, *, loud: bool = False) -> None: ...


EMAIL = Arguments(send_email, kind="SEND_EMAIL")

# -- binding ---------------------------------------------------------------------------------------------


def test_position_and_name_make_the_same_payload() -> None:
    assert EMAIL.encode(("a", "b", 2), {"loud": True}) == EMAIL.encode(
        (), {"to": "a", "subject": "b", "count": 2, "loud": True}
    )


def test_an_omitted_argument_is_not_stored() -> None:
    assert json.loads(EMAIL.encode(("a", "b"), {})) == {"to": "a", "subject": "b"}
    assert EMAIL.decode('{"to":"a","subject":"b"}') == {"to": "a", "subject": "b"}


def test_a_task_without_parameters_has_an_empty_payload() -> None:
    def tick() -> None: ...

    arguments = Arguments(tick, kind="TICK")
    assert arguments.encode((), {}) == "{}"
    assert arguments.decode("{}") == {}
    with pytest.raises(InvalidArguments, match="unknown argument 'x'; the task takes none"):
        arguments.encode((), {"x": 1})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            (),
            {"to": "a", "subject": "b", "too": 1},
            "unknown argument 'too'; known: to, subject, count, loud",
        ),
        ((), {"to": "a"}, "missing argument 'subject'"),
        (("a", "b", "abc"), {}, "argument 'count': input should be a valid integer, unable to .*, got 'abc'"),
        (("a", "b", 1, True), {}, "4 positional arguments given, at most 3 taken"),
        (("a", "b"), {"to": "c"}, "argument 'to' given twice, by position and by name"),
        ((), {}, "missing argument 'to'; missing argument 'subject'"),
        (
            (1,),
            {"x": 1, "y": 2},
            "argument 'to': .*; missing argument 'subject'; unknown .*'x'; unknown .*'y'; known",
        ),
    ],
)
def test_all_problems_of_a_call_are_in_one_message(
    args: tuple[object, ...], kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArguments, match=f"^SEND_EMAIL: {message}") as caught:
        EMAIL.encode(args, kwargs)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_nested_problem_is_named_by_its_path_and_shown_briefly() -> None:
    def task(value: list[Order]) -> None: ...

    arguments = Arguments(task, kind="K")
    with pytest.raises(InvalidArguments, match=r"argument 'value' at \[0\]\.items\[1\]\.price: .*, got 'x'"):
        arguments.encode(([{"items": [{"name": "", "price": 1}, {"name": "", "price": "x"}]}],), {})
    with pytest.raises(InvalidArguments) as caught:
        EMAIL.encode((list(range(10**6)), "b"), {})
    assert len(str(caught.value)) < 300


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Unprintable(), -(10**5000), "x" * 10**6], ids=["repr", "int", "str"])
def test_a_value_that_cannot_be_shown_is_still_refused_in_words(value: object) -> None:
    with pytest.raises(InvalidArguments, match="argument 'loud': ") as caught:
        EMAIL.encode(("a", "b"), {"loud": value})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("payload", ["null", "[]", "1", "{", "", '{"to":1,"subject":"b"}', '{"to":"a","no":1}'])
def test_a_stored_payload_that_does_not_fit_is_refused(payload: str) -> None:
    with pytest.raises(InvalidArguments, match=r"^SEND_EMAIL: ") as caught:
        EMAIL.decode(payload)
    assert caught.value.__context__ is None


AWKWARD = [
    "self",
    "cls",
    "model_config",
    "model_fields",
    "schema",
    "from_",
    "_x",
    "__y",
    "__z__",
    "copy",
    "json",
]
AWKWARD += [
    "validate",
    "keys",
    "items",
    "kind",
    "args",
    "kwargs",
    "__pydantic_config__",
    "__module__",
    "naïve",
]


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("hint", ["", ": int", ": int = 0"])
def test_any_parameter_name_works(name: str, hint: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def task({name}{hint}): return {name}", scope)  # noqa: S102 - the names are the point
    arguments = Arguments(scope["task"], kind="K")
    text = arguments.encode((), {name: 5})
    assert json.loads(text) == {name: 5}
    assert scope["task"](**arguments.decode(text)) == 5
    assert arguments.encode((5,), {}) == text


def test_decorated_and_async_functions_and_bound_methods_keep_their_signature() -> None:
    class Service:
        async def run(self, count: int) -> None: ...

    @functools.wraps(send_email)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert Arguments(Service().run, kind="K").encode(("7",), {}) == '{"count":7}'
    assert Arguments(wrapper, kind="K").encode(("a", "b"), {}) == '{"to":"a","subject":"b"}'


def test_a_constraint_in_the_annotation_holds() -> None:
    def task(count: Annotated[int, Field(ge=1, description="how many")] = 1) -> None: ...

    arguments = Arguments(task, kind="K")
    assert arguments.encode((), {}) == "{}"
    with pytest.raises(InvalidArguments, match="argument 'count': input should be greater than or equal to 1, got 0"):
        arguments.encode((0,), {})


# -- decoration ------------------------------------------------------------------------------------------


def many(*names: str) -> None: ...
def named(**options: str) -> None: ...
def positional(first: int, /) -> None: ...
def unresolved(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unstorable(fine: int, sock: socket.socket) -> None: ...
def returning() -> socket.socket | None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (many, r"K: parameter '\*names' .*take a list"),
        (named, r"K: parameter '\*\*options' .*take a dict"),
        (positional, r"K: parameter 'first' is positional-only.*remove the '/'"),
        (unresolved, "K: the annotation 'Missing' cannot be resolved.*TYPE_CHECKING"),
        (unstorable, "K: parameter 'sock': socket.socket cannot be written as JSON"),
    ],
)
def test_a_signature_that_cannot_be_stored_is_refused_at_decoration(
    function: Callable[..., object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Arguments(function, kind="K")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_return_annotation_that_cannot_be_stored_is_refused_at_decoration() -> None:
    with pytest.raises(ConfigError, match=r"K: the return annotation .*socket.* cannot be written as JSON"):
        Result(returning, kind="K")


# -- results ---------------------------------------------------------------------------------------------


def test_no_result_is_null_and_an_unannotated_one_is_plain_json() -> None:
    def task(): ...  # type: ignore[no-untyped-def]

    result = Result(task, kind="K")
    assert result.encode(None) is None
    assert result.decode(None) is None
    assert result.decode(result.encode((1, Decimal("2.50")))) == [1, "2.50"]


def test_the_result_of_another_type_is_refused_both_ways() -> None:
    async def task() -> dict[str, int]: ...  # type: ignore[empty-body]

    result = Result(task, kind="K")
    assert result.encode({"a": 1}) == '{"a":1}'
    annotated = r"\(return annotation dict\[str, int\]\)"
    with pytest.raises(InvalidJob, match=rf"^K: the result of type dict {annotated} at a: input should be a valid int"):
        result.encode({"a": "x"})
    with pytest.raises(InvalidJob, match=r"^K: the stored result: input should be an object, got \[1\]") as caught:
        result.decode("[1]")
    assert caught.value.__context__ is None


def test_signals_in_the_return_annotation_are_no_part_of_the_result() -> None:
    def maybe() -> int | Retry | Snooze: ...  # type: ignore[empty-body]
    def never() -> Cancel: ...  # type: ignore[empty-body]

    assert Result(maybe, kind="K").encode(5) == "5"
    assert Result(never, kind="K").encode(None) is None
    with pytest.raises(InvalidJob):
        Result(maybe, kind="K").encode("x")


@pytest.mark.parametrize(
    "value",
    ["", "ü€\U0001f600", 'quote " and \\', "null", "a\nb", 0, -1, 2**70, 1.5, 0.1, 1e15, 1e-9, True, False, None],
)
def test_scalars_are_written_alike_whatever_arguments_are_beside_them(value: Any) -> None:
    """Where all arguments are plain, they are neither asked for warnings nor read back: it must not differ."""

    def plain(
        text: str = "", whole: int = 0, number: float = 0, yes: bool = False, maybe: str | None = None
    ) -> None: ...

    def checked(
        text: str = "", whole: int = 0, number: float = 0, yes: bool = False, maybe: str | None = None,
        anything: Any = None,
    ) -> None: ...  # fmt: skip

    name = {str: "text", int: "whole", float: "number", bool: "yes", type(None): "maybe"}[type(value)]
    written = Arguments(plain, kind="k").encode((), {name: value})
    assert Arguments(checked, kind="k").encode((), {name: value}) == written
    assert Arguments(plain, kind="k").decode(written) == {name: value}


@pytest.mark.parametrize(
    "bad", [{"number": float("nan")}, {"text": "a\0b"}, {"text": "\ud800"}, {"whole": 10**1001}, {"x": 1}]
)
def test_scalars_that_cannot_be_stored_are_refused_all_the_same(bad: dict[str, Any]) -> None:
    def plain(text: str = "", whole: int = 0, number: float = 0) -> None: ...

    with pytest.raises(InvalidArguments):
        Arguments(plain, kind="k").encode((), bad)


@pytest.mark.parametrize(
    ("hint", "wrong"),
    [(Annotated[int, Field(gt=3)], 3), (list[int], ["x"]), (int | str, 1.5), (Decimal, "no number"), (Any, object())],
)
def test_what_only_looks_plain_is_checked(hint: Any, wrong: Any) -> None:
    def function(value): ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"value": hint}
    with pytest.raises(InvalidArguments, match="value"):
        Arguments(function, kind="k").encode((wrong,), {})
