"""Hints: brought along by a job where that is cheap, sent apart where it is not, and none is forgotten."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from leasehold import App, Intent, InvalidJob
from leasehold.db import hints
from leasehold.db.hints import Hinter
from leasehold.db.store import Store
from tests.timing import bound

PLAIN = Intent(kind="K", payload="{}", queue="default")


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    with App(dsn) as app:
        yield app


@pytest.fixture
def heard(dsn: str) -> Iterator[Callable[[float], list[str]]]:
    """What a listener hears within so many seconds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("listen leasehold")

        def listen(seconds: float) -> list[str]:
            return [told.payload for told in connection.notifies(timeout=seconds)]

        yield listen


def sender(app: App) -> Hinter:
    return app.database.hints


def test_a_first_job_brings_its_hint_along(app: App, heard: Callable[[float], list[str]]) -> None:
    app.record(PLAIN)
    assert heard(0.5) == ["default"]
    assert sender(app)._thread is None, "nothing had to be sent apart"


@pytest.mark.parametrize("intent", [PLAIN, Intent(kind="K", payload="{}")], ids=["queue named", "queue declared"])
def test_in_a_stream_of_jobs_few_bring_one_and_the_last_is_not_forgotten(
    app: App, heard: Callable[[float], list[str]], intent: Intent
) -> None:
    began = time.monotonic()
    for _ in range(200):
        app.record(intent)
    took = time.monotonic() - began
    told = heard(0.5)
    assert 1 <= len(told) <= 2 + took / hints._REST + took / hints._GATHER
    assert not sender(app)._names


def test_a_hint_of_a_kind_goes_to_the_queue_that_the_kind_declares(
    app: App, heard: Callable[[float], list[str]]
) -> None:
    with psycopg.connect(app.database.dsn, autocommit=True) as connection:
        tasks = '[{"kind": "K", "lease_seconds": 30, "queue": "mail", "priority": 0, "max_attempts": 3}]'
        connection.execute("select leasehold.declare_tasks(%s::jsonb)", [tasks])
    sender(app).hint(*Intent(kind="K", payload="{}").hints, *Intent(kind="UNKNOWN", payload="{}").hints)
    assert sorted(heard(2)) == ["default", "mail"]


def test_many_jobs_bring_the_hints_of_all_their_queues(app: App, heard: Callable[[float], list[str]]) -> None:
    app.enqueue_many(Intent(kind="K", payload="{}", queue=f"q{n % 3}") for n in range(9))
    assert sorted(heard(0.5)) == ["q0", "q1", "q2"]
    app.enqueue_many(Intent(kind="K", payload="{}", queue=f"r{n % 2}") for n in range(9))
    assert sorted(heard(0.5)) == ["r0", "r1"], "sent apart, if the first was only a moment ago"


@pytest.fixture
def hinter(dsn: str) -> Iterator[Hinter]:
    hinter = Hinter(dsn, Store("leasehold"), prepare=True)
    yield hinter
    if hinter._thread is threading.current_thread():
        hinter._thread = None
    hinter.close()


def at_rest(hinter: Hinter) -> None:
    """Nothing is sent apart while we look."""
    hinter._thread = threading.current_thread()


def test_one_ride_at_a_time_and_none_just_after_it(hinter: Hinter) -> None:
    with hinter.ride(["a"]) as first, hinter.ride(["b"]) as second:
        ended = time.monotonic()
    assert hinter._no_ride_before >= ended + hints._REST
    hinter._no_ride_before = time.monotonic() + 60
    with hinter.ride(["c"]) as third:
        pass
    hinter._no_ride_before = time.monotonic()
    with hinter.ride(["d"]) as fourth:
        pass
    assert [first, second, third, fourth] == [True, False, False, True]


def test_what_waits_rides_along_but_not_what_comes_to_wait_meanwhile(hinter: Hinter) -> None:
    at_rest(hinter)
    hinter.hint("a", "b")
    with hinter.ride(["a"], certain=True) as rides:
        assert rides
        assert set(hinter._names) == {"b"}
        hinter.hint("a")  # of a job that may have been recorded after the one with the hint
    assert set(hinter._names) == {"a", "b"}


def test_a_ride_that_fails_leaves_its_passengers_waiting(hinter: Hinter) -> None:
    at_rest(hinter)
    hinter.hint("a")
    ride = hinter.ride(["a"], certain=True)
    assert ride.__enter__()
    assert not hinter._names
    ride.__exit__(InvalidJob, InvalidJob("no good"), None)
    assert set(hinter._names) == {"a"}


def test_rides_that_take_long_become_rare_and_a_quick_one_ends_that(hinter: Hinter) -> None:
    rests = []
    for took in (0.02, 0.02, 0.02, 0.0):
        hinter.arrived(set(), took, failed=False)
        rests.append(hinter._rest)
    assert rests == [2 * hints._REST, 4 * hints._REST, 8 * hints._REST, hints._REST]
    for _ in range(20):
        hinter.arrived(set(), None, failed=True)
    assert hinter._rest == hints._LONGEST_REST


def test_what_is_usual_is_learnt_from_jobs_without_a_hint(hinter: Hinter) -> None:
    for _ in range(40):
        hinter.passed((), 0.01)
    hinter.arrived(set(), 0.02, failed=False)  # slow for a quick disk, not for this one
    assert hinter._rest == hints._REST
    hinter.arrived(set(), 0.03, failed=False)
    assert hinter._rest == 2 * hints._REST


def test_a_queue_that_never_rides_does_not_wait_for_ever(app: App, heard: Callable[[float], list[str]]) -> None:
    """Jobs of one queue bring a hint every few milliseconds, and each time what is to be sent apart could wait on."""
    busy = Intent(kind="K", payload="{}", queue="busy")
    app.record(busy)
    rare = sender(app)
    rare.hint("rare")
    ended = time.monotonic() + bound(10)
    while "rare" in rare._names:
        app.record(busy)
        assert time.monotonic() < ended
    assert "rare" in heard(0.5)


@pytest.mark.parametrize(
    "silent",
    [
        Intent(kind="K", payload="{}", queue="default", idempotency_key="used"),
        Intent(kind="K", payload="{}", queue="default", run_after=datetime(2999, 1, 1, tzinfo=UTC)),
    ],
)
def test_who_waits_does_not_ride_with_a_job_that_may_tell_something_else(
    app: App, silent: Intent, heard: Callable[[float], list[str]]
) -> None:
    """A job with a used key is not recorded and so tells nothing; one for a moment that is to come tells of that."""
    app.record(Intent(kind="K", payload="{}", queue="default", idempotency_key="used"))
    heard(0.2)
    waiting = sender(app)
    at_rest(waiting)
    waiting.hint("default")
    app.record(silent)
    assert "default" in waiting._names
    waiting._thread = None
