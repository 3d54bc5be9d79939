"""Laws of what is stored: every supported type comes back exactly, everything else is refused by name."""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import math
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from leasehold.arguments import Arguments, Result
from leasehold.errors import InvalidArguments, InvalidJob


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    loud: bool
    label: str | None


@dataclass
class Item:
    name: str
    price: Decimal
    raw: bytes = b""
    sizes: set[Size] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime


class Letter(BaseModel):
    body: bytes


class Order(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    number: int = Field(alias="no")
    items: list[Item] = []
    weight: float | None = None
    anything: Any = None


# -- round trips -----------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers() | st.integers(-(10**999), 10**999)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
items = st.builds(Item, name=texts, price=decimals, raw=st.binary(max_size=20), sizes=st.sets(st.sampled_from(Size)))
orders = st.builds(Order, no=integers, items=st.lists(items, max_size=3), weight=st.none() | floats)
# jsonb writes a larger one without a point: without an annotation it would be an int, and is refused.
small_floats = floats.filter(lambda number: abs(number) < 1e16)
json_scalars = st.none() | st.booleans() | integers | small_floats | texts
json_values = st.recursive(
    json_scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(texts, v, max_size=4), max_leaves=20
)

TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "str": (str, texts),
    "int": (int, integers),
    "float": (float, floats),
    "bool": (bool, st.booleans()),
    "None": (None, st.none()),
    "Any": (Any, json_values),
    "list": (list[int], st.lists(integers)),
    "dict": (dict[str, float], st.dictionaries(texts, floats)),
    "dict of int": (dict[int, str], st.dictionaries(st.integers(), texts)),
    "tuple": (tuple[int, str], st.tuples(integers, texts)),
    "long tuple": (tuple[bytes, ...], st.lists(st.binary()).map(tuple)),
    "set": (set[int], st.sets(integers)),
    "frozenset": (frozenset[uuid.UUID], st.frozensets(st.uuids())),
    "Optional": (int | None, st.none() | integers),
    "Union": (int | str | None, st.none() | integers | texts),
    "Literal": (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    "Enum": (Colour, st.sampled_from(Colour)),
    "IntEnum": (Size, st.sampled_from(Size)),
    "dataclass": (Item, items),
    "model": (Order, orders),
    "models": (dict[str, list[Order]], st.dictionaries(texts, st.lists(orders, max_size=2), max_size=2)),
    "NamedTuple": (Point, st.builds(Point, integers, floats)),
    "TypedDict": (
        Options,
        st.fixed_dictionaries({}, optional={"loud": st.booleans(), "label": st.none() | texts}),
    ),
    "datetime": (datetime, st.datetimes()),
    "aware datetime": (datetime, st.datetimes(timezones=offsets)),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "aware time": (time, st.times(timezones=offsets)),
    "timedelta": (timedelta, st.timedeltas()),
    "UUID": (uuid.UUID, st.uuids()),
    "Decimal": (Decimal, decimals),
    "bytes": (bytes, st.binary()),
    "Path": (PurePosixPath, texts.map(PurePosixPath)),
}


def task_taking(hint: Any) -> Callable[..., object]:
    def task(value): ...  # type: ignore[no-untyped-def]

    task.__annotations__ = {"value": hint, "return": hint}
    return task


@functools.cache
def codecs(name: str) -> tuple[Arguments, Result]:
    task = task_taking(TYPES[name][0])
    return Arguments(task, kind="K"), Result(task, kind="K")


def alike(one: object, other: object) -> bool:
    """Equal, of one type, and the same to the last digit and the sign of zero."""
    return one == other and type(one) is type(other) and (isinstance(one, (set, frozenset)) or same_repr(one, other))


def same_repr(one: object, other: object) -> bool:
    # The zone comes back as an offset of another class; equality has compared the instant.
    return isinstance(one, (datetime, time)) or repr(one) == repr(other) or isinstance(one, (Item, Order, dict))


@pytest.mark.parametrize("name", TYPES)
@given(st.data())
def test_every_supported_type_comes_back_exactly(name: str, data: st.DataObject) -> None:
    value = data.draw(TYPES[name][1])
    arguments, result = codecs(name)
    text = arguments.encode((), {"value": value})
    assert alike(arguments.decode(text)["value"], value)
    assert alike(arguments.decode(text.encode())["value"], value)
    assert alike(result.decode(result.encode(value)), value)


@given(st.data(), st.sampled_from(sorted(TYPES)))
def test_encoding_leaves_its_inputs_alone(data: st.DataObject, name: str) -> None:
    value = data.draw(TYPES[name][1])
    kwargs = {"value": value}
    before = copy.deepcopy(kwargs)
    codecs(name)[0].encode((), kwargs)
    assert kwargs == before
    assert kwargs["value"] is value


@given(floats)
def test_a_float_survives_jsonb_which_writes_exponents_out(value: float) -> None:
    stored = format(Decimal(repr(value)), "f")
    assert codecs("float")[0].decode(f'{{"value": {stored}}}') == {"value": value}


def test_offsets_come_back_as_the_same_instant() -> None:
    moment = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    arguments = codecs("datetime")[0]
    read = arguments.decode(arguments.encode((moment,), {}))["value"]
    assert read.timestamp() == moment.timestamp()
    assert read.utcoffset() == moment.utcoffset()


@pytest.mark.parametrize(
    ("hint", "wrap"),
    [
        (datetime, lambda at: at),
        (list[datetime], lambda at: [at]),
        (Moment, Moment),
        (Any, Moment),
        (dict[str, tuple[Moment, ...]], lambda at: {"k": (Moment(at),)}),
    ],
)
def test_an_offset_with_seconds_is_refused_rather_than_shifted(hint: Any, wrap: Callable[[datetime], object]) -> None:
    odd = datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=561)))
    arguments = Arguments(task_taking(hint), kind="K")
    if hint is Any:
        # Nothing says that it is to be a Moment again.
        with pytest.raises(InvalidArguments, match="a Moment would be read back as a dict; annotate the parameter"):
            arguments.encode((wrap(odd),), {})
        return
    with pytest.raises(InvalidArguments, match=r"argument 'value': 1900-01-01 .*read back as .*UTC"):
        arguments.encode((wrap(odd),), {})
    arguments.encode((wrap(odd.astimezone(UTC)),), {})


# -- what the database refuses ---------------------------------------------------------------------------


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> object:
    loop: list[object] = []
    loop.append(loop)
    return loop


BAD_VALUES: list[tuple[Any, str]] = [
    (math.nan, "nan is not"),
    ([1, {"k": (math.inf,)}], "inf is not"),
    (Order(no=1, weight=math.nan), "nan is not"),
    (Order(no=1, anything=[-math.inf]), "-inf is not"),
    ([{"k": Order(no=1, anything=Item("x", math.nan))}], "nan is not"),  # type: ignore[arg-type]
    (Item("x", Decimal(1), raw=b"x", sizes={math.nan}), "nan is not"),  # type: ignore[arg-type]
    ("a\0b", "NUL"),
    ({"k\0": 1}, "NUL"),
    ([["\ud800"]], "surrogate"),
    ({"\udfff": 1}, "surrogate"),
    (deep(65), "deeper than 64"),
    (deep(300), "depth"),
    (cyclic(), "ircular"),
    (10**1000, "1,001 digits"),
    ([1] * 100_000, "more than 100,000 values"),
    (1 << 100_000_000, "1,000 digits"),
    (range(10**12), "bytes"),
    (socket.socket, "unknown type: <class 'type'>; supported: str, int"),
    ([object()], "unknown type: <class 'object'>; supported: str, int"),
]


@pytest.mark.parametrize(("value", "word"), BAD_VALUES, ids=[f"{word}-{n}" for n, (_, word) in enumerate(BAD_VALUES)])
def test_what_cannot_be_stored_is_refused_under_any_annotation(value: Any, word: str) -> None:
    def task(fine, value): ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidArguments, match=rf"^K: (argument 'value'|the payload): .*{word}") as caught:
        Arguments(task, kind="K").encode((None, value), {})
    assert caught.value.__context__ is None
    with pytest.raises(InvalidJob, match=rf"^K: the result of type {type(value).__qualname__}.*{word}"):
        Result(task, kind="K").encode(value)


@pytest.mark.parametrize(
    ("hint", "value", "word"),
    [
        (float, math.nan, "finite number"),
        (list[float], [math.inf], "finite number"),
        (Decimal, Decimal("NaN"), "finite number"),
        (Order, Order(no=1, weight=math.inf), "inf is not"),
        (str, "\0", "NUL"),
        (str, "\ud800", "surrogate"),
        (dict[str, int], {"\0": 1}, "NUL"),
        (int, 10**1000, "digits"),
        (Letter, Letter(body=b"\xff"), "ser_json_bytes='base64'"),
        (dict[tuple[int, int], str], {(1, 2): "x"}, "cannot be read back"),
        (Order, Order.model_construct(number="x"), "expected"),
    ],
)
def test_what_cannot_be_stored_is_refused_under_a_type(hint: Any, value: object, word: str) -> None:
    with pytest.raises(InvalidArguments, match=f"^K: argument 'value'.*{word}"):
        Arguments(task_taking(hint), kind="K").encode((value,), {})


def test_null_is_no_nan() -> None:
    order = Order(no=1)
    arguments = codecs("model")[0]
    assert arguments.decode(arguments.encode((order,), {})) == {"value": order}


def test_the_size_is_limited_in_bytes() -> None:
    arguments = Arguments(task_taking(str), kind="K", max_bytes=20)
    assert len(arguments.encode(("x" * 8,), {})) == 20
    for long in ("x" * 9, "é" * 5):
        with pytest.raises(InvalidArguments, match=r"the payload: 2\d bytes of JSON, the limit is 20; .*reference"):
            arguments.encode((long,), {})


@dataclass
class Holder:
    anything: Any


ENDLESS: list[tuple[Any, Callable[[], Any]]] = [
    (Any, itertools.count),
    (Any, lambda: (n for n in itertools.count())),
    (Any, lambda: [{"k": ("x", itertools.repeat(1))}]),
    (Any, lambda: [*range(90_000), itertools.count()]),
    (Any, lambda: {"k": Order(no=1, anything=[itertools.count()])}),
    (Any, lambda: Holder(deque([itertools.cycle("x")]))),
    (list[int], itertools.count),
    (Iterable[int], itertools.count),
    (set[str], lambda: map(str, itertools.count())),
]


@pytest.mark.parametrize(("hint", "make"), ENDLESS)
def test_an_iterator_is_refused_before_it_is_read(hint: Any, make: Callable[[], Any]) -> None:
    def task(fine, value): ...  # type: ignore[no-untyped-def]

    task.__annotations__ = {"value": hint, "return": hint}
    with pytest.raises(InvalidArguments, match=r"^K: argument 'value': .* is an iterator, .* return a list"):
        Arguments(task, kind="K").encode((None, make()), {})
    with pytest.raises(InvalidJob, match=r"^K: the result of type .* is an iterator, .* return a list"):
        Result(task, kind="K").encode(make())


@dataclass
class Loose:
    anything: Any
    number: int | float = 0


class Left(BaseModel):
    name: str


class Right(BaseModel):
    name: str


AMBIGUOUS: list[tuple[Any, Any, str]] = [
    (bytes | str, "abcd", "a str would be read back as a bytes"),
    (datetime | str, "2020-01-01T00:00:00Z", "a str would be read back as a datetime"),
    (uuid.UUID | str, str(uuid.UUID(int=1)), "a str would be read back as a UUID"),
    (Left | Right, Right(name="x"), "a Right would be read back as a Left"),
    (Any, 1e16, "a float would be read back as an int"),
    (Any, [{"k": -1.5e22}], "a float would be read back as an int"),
    (int | float, 1e300, "a float would be read back as an int"),
    (Loose, Loose(1e16), "a float would be read back as an int"),
    (Loose, Loose(1, 1e16), "a float would be read back as an int"),
    (Any, {1: 2}, "an int would be read back as a str"),
    (dict, {"k": {None: 2}}, "a NoneType would be read back as a str"),
    (Any, {1: "a", "1": "b"}, "an int would be read back as a str"),
]


@pytest.mark.parametrize(("hint", "value", "word"), AMBIGUOUS)
def test_an_argument_that_would_be_read_back_as_another_type_is_refused(hint: Any, value: Any, word: str) -> None:
    with pytest.raises(InvalidArguments, match=rf"^K: argument 'value': {word}"):
        arguments_of(hint).encode((None, value), {})


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (float, 1e300), (list[float], [1e16, -1.5e22, 5e-324]), (dict[int, float], {1: 1e22}), (Any, "1e16"),
        (Any, ['"1e16', 10**22, 1e15, 1e-300]), (str | bytes, "abcd"), (str | datetime, "2020-01-01"),
    ],
)  # fmt: skip
def test_an_argument_whose_type_is_clear_comes_back(admin: Any, hint: Any, value: Any) -> None:
    arguments = arguments_of(hint)
    [text] = admin.connection.execute("select %s::jsonb::text", [arguments.encode((None, value), {})]).fetchone()
    read = arguments.decode(text)["value"]
    assert (read, repr(read)) == (value, repr(value))


def arguments_of(hint: Any) -> Arguments:
    def task(fine, value): ...  # type: ignore[no-untyped-def]

    task.__annotations__ = {"value": hint}
    return Arguments(task, kind="K")
