"""Notifications: few in a stream of jobs, soon after each job, and none is forgotten."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from faults.waiting import until
from leasehold import App, Intent
from leasehold.db.notify import GATHER, LONGEST_PAUSE, PAUSE, Limiter, Sender
from tests.timing import bound

PLAIN = Intent(kind="K", payload="{}", queue="default")
SENDER = "leasehold-notifications"

Heard = list[tuple[str, float]]


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    with App(dsn) as app:
        yield app


@pytest.fixture
def listen(dsn: str) -> Iterator[Callable[[float], Heard]]:
    """What a listener hears within so many seconds, and when."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("listen leasehold")
        yield lambda seconds: [(one.payload, time.monotonic()) for one in connection.notifies(timeout=seconds)]


@pytest.fixture
def heard(listen: Callable[[float], Heard]) -> Callable[[float], list[str]]:
    return lambda seconds: [name for name, _ in listen(seconds)]


def test_a_first_job_notifies_in_its_own_transaction(app: App, heard: Callable[[float], list[str]]) -> None:
    app.record(PLAIN)
    assert heard(0.5) == ["default"]
    assert SENDER not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("intent", [PLAIN, Intent(kind="K", payload="{}")], ids=["queue named", "queue declared"])
def test_a_stream_of_jobs_sends_few_and_one_after_the_last_job(
    app: App, heard: Callable[[float], list[str]], intent: Intent
) -> None:
    began = time.monotonic()
    for _ in range(200):
        app.record(intent)
    took = time.monotonic() - began
    names = heard(0.5)
    assert 1 <= len(names) <= 2 + took / PAUSE + took / GATHER
    assert set(names) == {"default"}


def test_soon_after_every_job_a_notification_arrives(app: App, listen: Callable[[float], Heard]) -> None:
    """Whatever other jobs are recorded meanwhile, alone, by threads, or in batches: a sleeping worker wakes up."""
    recorded: list[tuple[str, float]] = []

    def produce(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(40):
            time.sleep(chance.choice([0, 0, 0.002, 0.01, 0.03]))
            queue = f"q{chance.randrange(3)}"
            some = [Intent(kind="K", payload="{}", queue=queue)] * chance.choice([1, 1, 3])
            app.enqueue_many(some) if len(some) > 1 else app.record(some[0])
            recorded.append((queue, time.monotonic()))

    def unheard() -> list[tuple[str, float]]:
        """The jobs without a notification; it may arrive a moment before the answer to the producer."""
        return [
            job for job in recorded if not any(n == job[0] and -0.1 < at - job[1] < bound(0.5) for n, at in arrived)
        ]

    arrived: Heard = []
    with ThreadPoolExecutor(4) as pool:
        producing = [pool.submit(produce, seed) for seed in range(4)]
        while not all(one.done() for one in producing):
            arrived += listen(0.1)
    assert len(recorded) == 160
    until(lambda: arrived.extend(listen(0.1)) or not unheard(), within=bound(3), detail=lambda: str(unheard()))


def test_a_kind_is_notified_to_the_queue_that_it_declares(app: App, heard: Callable[[float], list[str]]) -> None:
    with psycopg.connect(app.database.dsn, autocommit=True) as connection:
        tasks = '[{"kind": "K", "lease_seconds": 30, "queue": "mail", "priority": 0, "max_attempts": 3}]'
        connection.execute("select leasehold.declare_tasks(%s::jsonb)", [tasks])
    app.record(PLAIN)  # those that follow at once are sent apart
    for kind in ("K", "UNKNOWN", "K"):
        app.record(Intent(kind=kind, payload="{}"))
    assert set(heard(1)) == {"default", "mail"}


def test_many_jobs_notify_all_their_queues(app: App, heard: Callable[[float], list[str]]) -> None:
    app.enqueue_many(Intent(kind="K", payload="{}", queue=f"q{n % 3}") for n in range(9))
    assert sorted(heard(0.5)) == ["q0", "q1", "q2"]
    app.enqueue_many(Intent(kind="K", payload="{}", queue=f"r{n % 2}") for n in range(9))
    assert sorted(heard(0.5)) == ["r0", "r1"]


@pytest.mark.parametrize("many", [False, True])
def test_a_job_that_existed_before_notifies_nothing(app: App, many: bool, heard: Callable[[float], list[str]]) -> None:
    keyed = Intent(kind="K", payload="{}", queue="default", idempotency_key="used")
    app.record(keyed)
    assert heard(0.5) == ["default"]
    for _ in range(5):
        app.enqueue_many([keyed, keyed]) if many else app.record(keyed)
    assert heard(0.5) == []


@pytest.mark.parametrize(
    "silent",
    [
        Intent(kind="K", payload="{}", queue="default", idempotency_key="used"),
        Intent(kind="K", payload="{}", queue="default", run_after=datetime(2999, 1, 1, tzinfo=UTC)),
    ],
)
def test_no_job_that_may_notify_nothing_of_its_queue_drops_what_waits(
    app: App, silent: Intent, listen: Callable[[float], Heard]
) -> None:
    app.record(Intent(kind="K", payload="{}", queue="default", idempotency_key="used"))
    for _ in range(20):
        listen(0.05)
        app.record(PLAIN)
        app.record(PLAIN)
        recorded = time.monotonic()
        time.sleep(PAUSE)
        app.record(silent)
        arrived = listen(0.1)
        assert any(name == "default" and at > recorded - 0.1 for name, at in arrived)


def test_flush_waits_for_a_name_that_came_while_the_one_before_was_noted_as_sent(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting, sent = threading.Event(), list[str]()

    class SlowEvent(threading.Event):
        def set(self) -> None:
            noting.set()
            time.sleep(0.1)
            super().set()

    def send(names: list[str]) -> None:
        time.sleep(0.1)
        sent.extend(names)

    sender = Sender(app.database.dsn, app.store, prepare=False)
    monkeypatch.setattr(sender, "_sent", SlowEvent())
    monkeypatch.setattr(sender, "_send", send)
    try:
        sender.ended(["first"], time.monotonic(), notified=False, comparable=False)
        assert noting.wait(60)
        sender.ended(["second"], time.monotonic(), notified=False, comparable=False)
        sender.flush()
        assert sent == ["first", "second"]
    finally:
        sender.close()


# -- the limiter


@pytest.fixture
def limiter() -> Limiter:
    return Limiter()


def waits(limiter: Limiter) -> set[str]:
    return set(limiter.take(0))


def test_one_transaction_at_a_time_notifies_and_none_just_after_it(limiter: Limiter) -> None:
    assert limiter.begin(1.0)
    assert not limiter.begin(60.0)
    limiter.notified(["a"], 1.0, 1.001, comparable=True)
    assert not limiter.begin(1.001 + 0.9 * PAUSE)
    assert limiter.begin(1.001 + PAUSE)


def test_a_transaction_that_notifies_serves_what_waited_when_it_began(limiter: Limiter) -> None:
    limiter.recorded(["a", "b"], 1.0, 1.1, comparable=True)
    assert limiter.begin(1.2)
    limiter.notified(["a"], 1.2, 1.3, comparable=True)
    assert waits(limiter) == {"b"}


def test_it_does_not_serve_what_was_recorded_meanwhile(limiter: Limiter) -> None:
    limiter.recorded(["a"], 1.0, 1.1, comparable=True)
    assert limiter.begin(1.2)
    limiter.recorded(["a"], 1.0, 1.25, comparable=True)  # perhaps committed after the notification
    limiter.notified(["a"], 1.2, 1.3, comparable=True)
    assert waits(limiter) == {"a"}


@pytest.mark.parametrize("names", [(), ("b",), ("a", "@due")], ids=["nothing", "another", "one of two"])
def test_it_does_not_serve_what_it_may_not_have_sent(limiter: Limiter, names: tuple[str, ...]) -> None:
    limiter.recorded(["a"], 1.0, 1.1, comparable=True)
    assert limiter.begin(1.2)
    limiter.notified(names, 1.2, 1.3, comparable=True)
    assert waits(limiter) == {"a"}


def test_a_transaction_that_fails_serves_nothing(limiter: Limiter) -> None:
    limiter.recorded(["a"], 1.0, 1.1, comparable=True)
    assert limiter.begin(1.2)
    limiter.notified(None, 1.3, 1.3, comparable=True)
    assert waits(limiter) == {"a"}


def test_transactions_that_take_long_notify_rarely_and_a_quick_one_ends_that(limiter: Limiter) -> None:
    def slow() -> None:
        assert limiter.begin(moment)
        limiter.notified(["a"], moment, moment + 0.02, comparable=True)

    moment = 1.0
    for doubled in (2, 4, 8):
        slow()
        assert not limiter.begin(moment + 0.02 + 0.9 * doubled * PAUSE)
        moment += 0.02 + doubled * PAUSE
    assert limiter.begin(moment)
    limiter.notified(["a"], moment, moment, comparable=True)
    assert limiter.begin(moment + PAUSE)
    for _ in range(20):
        limiter.notified(None, moment, moment, comparable=True)
    assert not limiter.begin(moment + 0.9 * LONGEST_PAUSE)
    assert limiter.begin(moment + LONGEST_PAUSE)


def test_what_is_slow_is_learnt_from_transactions_that_do_not_notify(limiter: Limiter) -> None:
    for _ in range(40):
        limiter.recorded((), 1.0, 1.01, comparable=True)
    assert limiter.begin(2.0)
    limiter.notified(["a"], 2.0, 2.02, comparable=True)  # slow for a quick disk, not for this one
    assert limiter.begin(2.02 + PAUSE)
    limiter.notified(["a"], 3.0, 3.03, comparable=True)
    assert not limiter.begin(3.03 + 1.9 * PAUSE)


def test_a_queue_that_never_notifies_by_itself_does_not_wait_for_ever(limiter: Limiter) -> None:
    """Jobs of another queue notify every few milliseconds, and each time what waits could be gathered on."""
    limiter.recorded(["rare"], 1.0, 1.0, comparable=True)
    moment = 1.0
    while (pause := limiter.pause(moment)) is not None and pause > 0:
        assert moment <= 1.0 + 2 * GATHER
        assert limiter.begin(moment)
        limiter.notified(["busy"], moment, moment, comparable=True)
        moment += PAUSE
    assert pause is not None
    assert "rare" in waits(limiter)
