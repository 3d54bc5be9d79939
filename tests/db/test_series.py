"""Many jobs go to the database in pieces while more are still being made; and yet all are recorded, or none."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from leasehold import App, Intent, InvalidJob
from leasehold.db.call import Series
from tests.db.proxy import Proxy

MANY = 3 * Series.SIZE + 7


@pytest.fixture
def look(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        yield connection


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    with App(dsn) as app:
        yield app


def count(look: psycopg.Connection) -> Any:
    return look.execute("select count(*) from jobs").fetchone()[0]  # type: ignore[index]


def intents(how_many: int, **fields: Any) -> Iterator[Intent]:
    return (Intent(kind="K", payload=f'{{"i": {i}}}', **fields) for i in range(how_many))


def bad_one_in(how_many: int) -> Iterator[Intent]:
    yield from intents(how_many)
    raise InvalidJob("the next one is no good")


@pytest.mark.parametrize("how_many", [0, 1, Series.SIZE - 1, Series.SIZE, Series.SIZE + 1, MANY])
async def test_all_are_recorded_in_the_order_in_which_they_were_given(
    app: App, look: psycopg.Connection, how_many: int
) -> None:
    for jobs in (app.enqueue_many(intents(how_many)), await app.aenqueue_many(intents(how_many))):
        rows = look.execute(
            "select id, (payload ->> 'i')::integer from jobs where id = any(%s)", [[j.id for j in jobs]]
        )
        place = dict(rows.fetchall())
        assert [place[job.id] for job in jobs] == list(range(how_many))
    assert count(look) == 2 * how_many


async def test_none_is_recorded_when_making_a_later_one_fails(app: App, look: psycopg.Connection) -> None:
    with pytest.raises(InvalidJob, match="the next one"):
        app.enqueue_many(bad_one_in(MANY))
    with pytest.raises(InvalidJob, match="the next one"):
        await app.aenqueue_many(bad_one_in(MANY))
    assert count(look) == 0
    assert len(app.enqueue_many(intents(MANY))) == len(await app.aenqueue_many(intents(MANY))) == MANY
    assert count(look) == 2 * MANY


async def test_none_is_recorded_when_the_database_refuses_a_later_one(app: App, look: psycopg.Connection) -> None:
    look.execute("alter table jobs add constraint no_five check ((payload ->> 'i')::integer <> 600)")
    with pytest.raises(psycopg.errors.CheckViolation):
        app.enqueue_many(intents(MANY))
    with pytest.raises(psycopg.errors.CheckViolation):
        await app.aenqueue_many(intents(MANY))
    assert count(look) == 0
    assert len(app.enqueue_many(intents(5))) == 5


@pytest.mark.parametrize("lost", ["enqueue_batch", "begin", "commit"])
async def test_whatever_answer_is_lost_there_is_one_row_a_job(dsn: str, look: psycopg.Connection, lost: str) -> None:
    proxy = Proxy(dsn)
    try:
        with App(proxy.dsn) as app:
            app.enqueue_many(intents(1))
            for round_ in (1, 2):
                proxy.lose_answers(to=lost)
                jobs = app.enqueue_many(intents(MANY)) if round_ == 1 else await app.aenqueue_many(intents(MANY))
                assert len({job.id for job in jobs}) == MANY
                assert count(look) == round_ * MANY + 1
            assert proxy.lost == 2
    finally:
        proxy.close()


def test_batches_that_share_keys_in_opposite_orders_never_deadlock(dsn: str, look: psycopg.Connection) -> None:
    def batch(order: int) -> Iterator[Intent]:
        yield from intents(2 * Series.SIZE)
        for i in range(MANY)[::order]:
            yield Intent(kind="K", payload="{}", idempotency_key=f"key {i}")

    barrier = threading.Barrier(4)

    def enqueue(order: int) -> int:
        with App(dsn) as app:
            app.enqueue_many(intents(1))
            barrier.wait()
            return len(app.enqueue_many(batch(order)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(enqueue, [1, -1, 1, -1])) == [2 * Series.SIZE + MANY] * 4
    assert count(look) == 4 * (2 * Series.SIZE + 1) + MANY
    deadlocks = look.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
    assert deadlocks == (0,)


def test_no_transaction_is_open_while_a_slow_generator_waits(app: App, look: psycopg.Connection) -> None:
    seen: set[str] = set()

    def slow() -> Iterator[Intent]:
        for n, intent in enumerate(intents(MANY)):
            if n % Series.SIZE == 5:
                time.sleep(0.15)
                rows = look.execute("select state from pg_stat_activity where datname = current_database()").fetchall()
                seen.update(state for (state,) in rows)
            yield intent

    app.enqueue_many(intents(1))
    assert len(app.enqueue_many(slow())) == MANY
    assert "idle in transaction" not in seen
    assert "idle" in seen
