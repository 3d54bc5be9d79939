"""Arguments and results through PostgreSQL's jsonb and back: every supported type, exactly."""

import json
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from leasehold import App, InvalidArguments
from leasehold.task import Task


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 2


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Item:
    name: str
    price: Decimal
    raw: bytes = b""


class Order(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    number: int
    items: list[Item]
    at: datetime
    notes: dict[str, str | None] = {}


ITEM = Item("żółć 𝄞", Decimal("1.10"), b"\x00\xff")
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30)))

VALUES: dict[str, tuple[Any, Any]] = {
    "str": (str, "żółć 𝄞 日本 \\ \" ' \n \x7f %s $1"),
    "empty str": (str, ""),
    "int": (int, -(10**300) - 7),
    "bool": (bool, True),
    "None": (None, None),
    "float": (float, 0.1 + 0.2),
    "largest float": (float, 1.7976931348623157e308),
    "smallest float": (float, 5e-324),
    "Decimal": (Decimal, Decimal("-123456789012345678901234567890.1230000")),
    "datetime": (datetime, MOMENT),
    "naive datetime": (datetime, datetime(1, 1, 1)),  # noqa: DTZ001 (arguments are the user's)
    "date": (date, date(9999, 12, 31)),
    "time": (time, time(1, 2, 3, 4)),
    "timedelta": (timedelta, timedelta(days=-1, microseconds=1)),
    "UUID": (uuid.UUID, uuid.UUID(int=2**128 - 1)),
    "bytes": (bytes, bytes(range(256))),
    "Enum": (Colour, Colour.RED),
    "IntEnum": (Size, Size.BIG),
    "Literal": (Literal["a", 1], 1),
    "list": (list[int], [3, 1, 2]),
    "tuple": (tuple[int, str], (1, "a")),
    "set": (set[str], {"a", "b"}),
    "frozenset": (frozenset[uuid.UUID], frozenset({uuid.UUID(int=1)})),
    "dict": (dict[str, list[float]], {"b": [1.5], "a": [], "": [0.0]}),
    "dict of int": (dict[int, Decimal], {10: Decimal("0.10"), 2: Decimal(2)}),
    "NamedTuple": (Point, Point(1, 2.5)),
    "dataclass": (Item, ITEM),
    "nested": (dict[str, list[Item | None]], {"x": [ITEM, None]}),
    "model": (Order, Order(number=1, items=[ITEM], at=MOMENT, notes={"a": None, "b": "c"})),
    "Path": (PurePosixPath, PurePosixPath("/a/ü b")),
}


class Seen(NamedTuple):
    argument: Any
    """As the task gets it."""
    result: Any
    """As a program that waits for the job gets it."""
    text: str
    """The payload as the database has it."""


class Box:
    """Enqueues, then reads the payload back as a worker gets it."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn)
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._tasks: dict[str, Task[Any, Any]] = {}

    def task(self, hint: Any) -> Task[Any, Any]:
        kind = repr(hint)[:200]
        if kind not in self._tasks:

            def takes(value): ...  # type: ignore[no-untyped-def]

            takes.__annotations__ = {"value": hint, "return": hint}
            self._tasks[kind] = self.app.task(kind=kind, queue=uuid.uuid4().hex)(takes)
        return self._tasks[kind]

    def through(self, hint: Any, value: Any) -> Seen:
        """Enqueue, claim, complete: the value as an argument and as a result."""
        task, database = self.task(hint), self.app.database
        job = task.enqueue(value)
        [claimed] = database.run(database.store.claim("box", [task.options.queue], [task.kind], 1, uuid.uuid4()))
        assert claimed.id == str(job.id)
        result = task.result.encode(value)
        database.run(database.store.complete("box", [claimed], [result]))
        return Seen(task.arguments.decode(claimed.payload)["value"], job.result(0), claimed.payload)


def alike(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


@pytest.fixture(scope="module")
def box(admin, migrated) -> Iterator[Box]:
    with admin.database(template=migrated) as name:
        box = Box(admin.server.dsn(name))
        yield box
        box.app.close()
        box.connection.close()


@pytest.mark.parametrize("name", VALUES)
def test_every_supported_type_comes_back_from_the_database(box: Box, name: str) -> None:
    hint, value = VALUES[name]
    seen = box.through(hint, value)
    for read in (seen.argument, seen.result):
        assert alike(read, value)
        if isinstance(value, (Decimal, float, datetime)):
            assert str(read) == str(value)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
STRATEGIES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "str": (str, texts),
    "int": (int, st.integers() | st.integers(-(10**999), 10**999)),
    "float": (float, st.floats(allow_nan=False, allow_infinity=False)),
    "Decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "datetime": (datetime, st.datetimes() | st.datetimes(timezones=offsets)),
}


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_comes_back_from_the_database(box: Box, name: str, data: st.DataObject) -> None:
    hint, strategy = STRATEGIES[name]
    values = data.draw(st.lists(strategy, min_size=1, max_size=20))
    seen = box.through(list[hint], values)
    for read in (seen.argument, seen.result):
        assert read == values
        assert [shown(value) for value in read] == [shown(value) for value in values]


def shown(value: Any) -> str:
    """To the last digit; but a float loses the sign of its zero, see below."""
    return str(abs(value) if isinstance(value, float) and value == 0 else value)


# -- what jsonb changes, and so what no program may rely on


def test_keys_come_back_in_the_order_of_jsonb(box: Box) -> None:
    seen = box.through(dict[str, int], {"bb": 1, "a": 2, "c": 3})
    assert seen.argument == seen.result == {"bb": 1, "a": 2, "c": 3}
    assert list(seen.argument) == list(seen.result) == ["a", "c", "bb"]  # shorter keys first
    assert seen.text == '{"value": {"a": 2, "c": 3, "bb": 1}}'


def test_the_sign_of_a_zero_is_lost_in_a_float_and_kept_in_a_decimal(box: Box) -> None:
    seen = box.through(float, -0.0)
    assert seen.text == '{"value": 0.0}'
    assert math.copysign(1, seen.argument) == math.copysign(1, seen.result) == 1.0
    assert str(box.through(Decimal, Decimal("-0")).argument) == "-0"


def test_under_any_a_large_float_is_refused_because_it_would_come_back_as_an_integer(box: Box) -> None:
    """jsonb writes exponents out: 1e300 is a one with three hundred zeros, and nothing says it was a float."""
    with pytest.raises(InvalidArguments, match="a float would be read back as an int"):
        box.task(list[Any]).arguments.encode(([1e300],), {})
    assert alike(box.through(float, 1e300).argument, 1e300)


def test_under_any_what_would_come_back_changed_is_refused(box: Box) -> None:
    task = box.task(Any)
    for value in ({"t": (1, 2)}, {"at": MOMENT}):
        with pytest.raises(InvalidArguments, match="annotate the parameter"):
            task.arguments.encode((value,), {})


def test_trailing_zeros_of_a_number_stay(box: Box) -> None:
    """numeric keeps its scale, so even a number written by hand does."""
    found = box.connection.execute("""select '{"n": 1.100}'::jsonb::text""").fetchone()
    assert found
    assert json.loads(found[0], parse_float=Decimal)["n"].as_tuple().exponent == -3


def test_of_a_key_given_twice_the_last_stays(box: Box) -> None:
    found = box.connection.execute("""select '{"n": 1, "n": 2}'::jsonb::text""").fetchone()
    assert found == ('{"n": 2}',)


def test_the_largest_payload_fits(box: Box) -> None:
    big = "ü" * (1024 * 1024 // 2 - 10)
    assert box.through(str, big).argument == big
