"""The parts below the pages: words, hiding, search, the strip of attempts, sharing of answers."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.db.store import AttemptRow, JobDetail, JobRow
from leasehold.http.cache import Cache
from leasehold.web.pages.job import WIDTH, story
from leasehold.web.pages.jobs import moment, searched, wanted_of
from leasehold.web.redact import HIDDEN, hide, pretty, restore
from leasehold.web.words import number, size, span

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "\u2013"), (0.0004, "0 ms"), (0.34, "340 ms"), (4.21, "4.2 s"), (59, "59 s"), (61, "1 min 1 s"),
     (2100, "35 min"), (7500, "2 h 5 min"), (273600, "3 d 4 h"), (3e6, "34 d")],
)  # fmt: skip
def test_a_length_of_time_in_words(seconds: float | None, words: str) -> None:
    assert span(seconds) == words


def test_numbers_in_words() -> None:
    assert (number(10_000, True), number(0.25), number(12), number(None)) == ("10,000+", "0.2", "12", "\u2013")
    assert (size(0), size(1500), size(123_000), size(2.5e9)) == ("0 B", "1.5 kB", "123 kB", "2.5 GB")


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_what_was_hidden_and_left_alone_comes_back(value: Any) -> None:
    hidden = hide(value, {"secret", "a"})
    assert restore(hidden, value) == value


def test_hiding_is_deep_and_does_not_care_about_case() -> None:
    value = {"a": [{"Password": "x", "b": 1}], "PASSWORD": {"c": 2}}
    assert hide(value, {"password"}) == {"a": [{"Password": HIDDEN, "b": 1}], "PASSWORD": HIDDEN}
    assert restore({"a": [{"Password": "new"}], "PASSWORD": HIDDEN}, value) == {
        "a": [{"Password": "new"}],
        "PASSWORD": {"c": 2},
    }


def test_numbers_keep_their_own_text() -> None:
    assert pretty('{"a": 1.10, "b": 12345678901234567890123, "c": 1e400}', frozenset()) == (
        '{\n  "a": 1.10,\n  "b": 12345678901234567890123,\n  "c": 1e400\n}'
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", {}),
        ("019A5F2E-7c11-7abc-8def-0123456789ab", "/jobs/019a5f2e-7c11-7abc-8def-0123456789ab"),
        ("SEND_EMAIL", {"kind": "SEND_EMAIL"}),
        ('queue:mail tag:"two words" state:dead', {"queue": "mail", "tag": "two words", "state": "dead"}),
        ("error:a.B&x=1", {"error": "a.B&x=1"}),
        ("payload:to.city=Rome k", {"payload": "to.city=Rome", "kind": "k"}),
        ("kind:mail:send key:order:17", {"kind": "mail:send", "key": "order:17"}),
        ('"a:b" kind:c', {"kind": ["a:b", "c"]}),
        ("metadata:a=b metadata:c=d metadata:a=b", {"metadata": ["a=b", "c=d"]}),
        ("payloads:to.iban=DE4711 queue:mail", {"payloads": "", "queue": "mail"}),
    ],
)
def test_a_search_leads_to(text: str, place: str | dict[str, Any]) -> None:
    assert searched(text) == place


def test_times_are_read_as_people_write_them() -> None:
    assert moment("2030-01-31") == "2030-01-31T00:00:00Z"
    ago = datetime.fromisoformat(moment("2h"))
    assert timedelta(hours=1, minutes=59) < datetime.now(UTC) - ago < timedelta(hours=2, minutes=1)
    assert moment("yesterday") == "yesterday"


def test_the_way_back_is_kept_and_bounded() -> None:
    from starlette.datastructures import QueryParams  # noqa: PLC0415

    query = "state=dead&kind=A"
    places: list[str] = []
    for page in range(30):
        wanted = wanted_of(QueryParams(query))
        places.append(query)
        query = wanted.query(cursor=f"c{page}", trail=wanted.next)
    wanted = wanted_of(QueryParams(query))
    for place in reversed(places[-19:]):
        assert wanted.back == place or "trail" in place
        wanted = wanted_of(QueryParams(wanted.back or ""))
    assert len(query) < 400


def _detail(
    state: str, *attempts: AttemptRow, claimed: datetime | None = None, finished: datetime | None = None
) -> JobDetail:
    job = JobRow(
        uuid4(), "K", "q", state, "PENDING", 0, len(attempts), 0, 5, None, None, False, True, None, None, None, None,
        None, None, NOW, NOW, NOW, claimed, finished, None,
    )  # fmt: skip
    return JobDetail(job, None, None, "{}", None, list(attempts))


def _attempt(number: int, begin: float, end: float, outcome: str = "failed") -> AttemptRow:
    claimed, ended = NOW + timedelta(seconds=begin), NOW + timedelta(seconds=end)
    return AttemptRow(number, "w", outcome, claimed, ended, "E", None, None)


def test_the_strip_shows_waits_and_attempts_in_order_and_fills_its_width() -> None:
    detail = _detail(
        "success", _attempt(1, 5, 6), _attempt(2, 90, 95, "lease_expired"),
        claimed=NOW + timedelta(hours=1), finished=NOW + timedelta(hours=1, seconds=2),
    )  # fmt: skip
    told = story(detail, NOW + timedelta(hours=2))
    assert [piece.what for piece in told.pieces] == ["wait", "failed", "wait", "lease_expired", "wait", "success"]
    assert told.pieces[1].label == "attempt 1 failed after 1.0 s"
    assert told.pieces[0].x == 0
    assert abs(told.pieces[-1].x + told.pieces[-1].width - WIDTH) < 1
    assert all(after.x > before.x for before, after in zip(told.pieces, told.pieces[1:], strict=False))


def test_a_job_with_many_attempts_shows_the_latest() -> None:
    attempts = [_attempt(number, number * 10, number * 10 + 1) for number in range(1, 101)]
    told = story(_detail("retry", *attempts), NOW + timedelta(hours=2))
    assert told.left_out == 60
    assert told.pieces[-1].what == "wait"
    assert told.words.endswith("waiting for 1 h 43 min")


async def test_who_asks_together_is_answered_by_one_look() -> None:
    cache, looks = Cache(), 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.01)
        return looks

    assert await asyncio.gather(*(cache.get("a", 60, look) for _ in range(50))) == [1] * 50
    assert await cache.get("a", 60, look) == 1
    assert await cache.get("b", 60, look) == 2
    cache.clear()
    assert await cache.get("a", 0, look) == 3
    assert await cache.get("a", 0, look) == 4


async def test_a_failure_is_raised_for_all_that_wait_and_not_kept() -> None:
    cache, looks = Cache(), 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("away")
        return looks

    told = await asyncio.gather(cache.get("a", 60, look), cache.get("a", 60, look), return_exceptions=True)
    assert [type(one) for one in told] == [OSError, OSError]
    assert await cache.get("a", 60, look) == 2


async def test_one_who_hangs_up_does_not_take_the_others_along() -> None:
    cache, go = Cache(), asyncio.Event()

    async def look() -> str:
        await go.wait()
        return "seen"

    first = asyncio.create_task(cache.get("a", 60, look))
    second = asyncio.create_task(cache.get("a", 60, look))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    go.set()
    assert await second == "seen"
