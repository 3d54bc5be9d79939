"""An intent is checked when it is made, and says the same alone and among many."""

import json
import pickle
from collections import ChainMap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest

from leasehold import Intent, InvalidJob
from leasehold.schedule import Schedule


def intent(**fields: Any) -> Intent:
    return Intent(**{"kind": "K", "payload": "{}", **fields})


GOOD: list[dict[str, Any]] = [
    {"priority": -32767},
    {"priority": 32767},
    {"max_attempts": 1},
    {"max_attempts": 32767},
    {"kind": "k" * 200},
    {"queue": "ü" * 100},
    {"idempotency_key": "k" * 500},
    {"exclusive_key": "ü" * 250},
    {"tags": ("",) * 50},
    {"run_after": timedelta(seconds=-5)},
    {"run_after": datetime(9999, 12, 30, tzinfo=UTC)},
    {"run_after": datetime(1, 1, 2, tzinfo=UTC)},
    {"run_after": timedelta(days=365_000)},
    {"tags": ("ü" * 250,)},
    {"payload": '{"a": [1, "ü"]}'},
]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": ""}, "kind '' does not have 1 to 200 bytes"),
    ({"kind": "k" * 201}, "kind of 201 bytes"),
    ({"kind": None}, "kind None is not a text"),
    ({"queue": ""}, "queue ''"),
    ({"queue": "ü" * 101}, "queue of 202 bytes"),
    ({"queue": "a\0b"}, "NUL"),
    ({"priority": 32768}, "priority 32768 is not a number between -32767 and 32767"),
    ({"priority": -32768}, "priority -32768"),
    ({"priority": 2**70}, "priority"),
    ({"priority": 1.5}, "priority 1.5"),
    ({"priority": True}, "priority True"),
    ({"max_attempts": 0}, "max_attempts 0 is not a number between 1 and 32767"),
    ({"max_attempts": 32768}, "max_attempts 32768"),
    ({"idempotency_key": ""}, "idempotency_key ''"),
    ({"idempotency_key": "k" * 501}, "idempotency_key of 501 bytes"),
    ({"idempotency_key": "\ud800"}, "surrogate"),
    ({"exclusive_key": ""}, "exclusive_key ''"),
    ({"exclusive_key": "\0"}, "NUL"),
    ({"exclusive_key": 5}, "exclusive_key 5 is not a text"),
    ({"payload": {"a": 1}}, "payload {'a': 1} is not the text of a JSON object"),
    ({"payload": b"{}"}, "is not the text of a JSON object"),
    ({"payload": '{"a": 1'}, "is not JSON"),
    ({"payload": '{}, "id": "x"'}, "is not JSON"),
    ({"payload": "[1]"}, "payload .*1.* is not a JSON object"),
    ({"payload": '{"a": NaN}'}, "payload.a: nan is not a number in JSON"),
    ({"strict": "yes"}, "strict 'yes' is neither True nor False"),
    ({"tags": "abc"}, "tags 'abc' are not a tuple of texts"),
    ({"tags": ("a", 1)}, "tag 1 is not a text"),
    ({"tags": ("a\0",)}, "NUL"),
    ({"tags": ("t",) * 51}, "51 tags are more than 50"),
    ({"run_after": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 (that is the point)
    ({"run_after": 5}, "run_after 5 is neither a datetime nor a timedelta"),
    ({"run_after": timedelta.max}, "beyond the calendar"),
    ({"run_after": timedelta.min}, "beyond the calendar"),
    ({"run_after": timedelta(days=365_001)}, "beyond the calendar"),
    ({"run_after": datetime.max.replace(tzinfo=UTC)}, "beyond the calendar"),
    ({"run_after": datetime.min.replace(tzinfo=UTC)}, "beyond the calendar"),
    ({"run_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-23)))}, "beyond the calendar"),
    ({"tags": ("t" * 501,)}, "tag of 501 bytes"),
    ({"idempotency_key": "schedule:x"}, "begins as those of schedules"),
]


@pytest.mark.parametrize(
    "field", ["kind", "queue", "priority", "idempotency_key", "exclusive_key", "tags", "run_after"]
)
@pytest.mark.parametrize("value", [Unprintable(), "\0" * 10**6, -(10**5000)], ids=["repr", "str", "int"])
def test_a_value_that_cannot_be_shown_is_still_refused_in_words(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field.removesuffix("s")) as caught:
        intent(**{field: (value,) if field == "tags" else value})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("fields", GOOD, ids=str)
def test_what_the_database_takes_is_taken(fields: dict[str, Any]) -> None:
    intent(**fields)


@pytest.mark.parametrize(("fields", "words"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_what_the_database_would_refuse_is_refused_here(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words) as caught:
        intent(**fields)
    assert caught.value.hint == "nothing was recorded"


def test_a_moment_goes_with_its_offset_and_a_delay_to_the_microsecond() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=-5)))
    assert intent(run_after=moment).when() == ("2030-01-02T03:04:05.000678-05:00", None)
    assert intent(run_after=timedelta(days=2, microseconds=1)).when() == (None, "172800000001 microseconds")
    assert intent(run_after=timedelta(microseconds=-1)).when() == (None, "-1 microseconds")
    assert intent().when() == (None, None)


def schedule(metadata: Any) -> Schedule:
    return Schedule(key="s", kind="K", cron="* * * * *", metadata=metadata)


def test_metadata_are_those_of_the_moment_when_the_intent_was_made() -> None:
    """However it is sent, and whatever becomes of the dict that the caller gave."""
    given: dict[str, Any] = {"trace": {"id": "a"}}
    one, other = intent(metadata=given), schedule(given)
    given["trace"]["id"] = "b"
    given["more"] = 1
    assert one.metadata == other.metadata == {"trace": {"id": "a"}}
    assert one.arguments(["metadata"]) == ['{"trace": {"id": "a"}}']
    assert [job["metadata"] for job in json.loads(Intent.array([one]))] == [{"trace": {"id": "a"}}]
    assert json.loads(other.definition())["metadata"] == {"trace": {"id": "a"}}


@pytest.mark.parametrize("make", [lambda metadata: intent(metadata=metadata), schedule], ids=["intent", "schedule"])
def test_metadata_may_be_any_mapping_and_a_job_with_them_can_be_hashed(make: Callable[[Any], Any]) -> None:
    plain, proxy, chain = make({"a": [1]}), make(MappingProxyType({"a": [1]})), make(ChainMap({"a": [1]}))
    assert plain == proxy == chain
    assert len({plain, proxy, chain, make({"a": [2]})}) == 2
    assert pickle.loads(pickle.dumps(plain)) == plain  # noqa: S301


def test_many_are_one_array_with_the_names_of_enqueue() -> None:
    full = intent(
        queue="q", priority=1, run_after=timedelta(seconds=1), idempotency_key="i", max_attempts=2,
        exclusive_key="e", tags=("ü",), payload='{"n": 1.10}',
    )  # fmt: skip
    job_id = str(uuid4())
    text = Intent.array([full, intent()], [job_id, job_id])
    assert '"payload": {"n": 1.10}' in text  # not a digit of it is touched
    first, second = json.loads(text)
    assert first == {
        "kind": "K", "queue": "q", "priority": 1, "run_after": "1000000 microseconds", "idempotency_key": "i",
        "max_attempts": 2, "exclusive_key": "e", "tags": ["ü"], "id": job_id, "payload": {"n": 1.1},
    }  # fmt: skip
    assert second == {"kind": "K", "id": job_id, "payload": {}}  # the rest is as the kind's task declares
    assert Intent.array([]) == "[]"


def test_an_intent_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        intent().queue = "other"  # type: ignore[misc]
