"""A program's connections: an outcome that is unknown is asked for again, a database that is away is waited for."""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from faults.waiting import auntil, until
from leasehold import App, ConfigError, DatabaseUnavailable, IdempotencyConflict, Intent, InvalidJob
from leasehold.db import database as pool
from leasehold.db.call import Call
from leasehold.db.database import Database
from leasehold.db.store import IdMaker
from leasehold.errors import InvalidArgument
from tests.db.proxy import PASSWORD, Proxy
from tests.timing import bound

INTENT = Intent(kind="K", payload="{}")
HOUR_NS = 3600 * 10**9


def scalar(sql: str, *args: object, repeatable: bool = True) -> Call[Any]:
    return Call(sql, args, lambda rows: rows[0][0], repeatable=repeatable)


PID = scalar("select pg_backend_pid()")


@pytest.fixture
def look(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        yield connection


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()


@pytest.fixture
def database(proxy: Proxy) -> Iterator[Database]:
    database = Database(proxy.dsn, schema="leasehold", wait=8)
    yield database
    database.close()


def jobs(look: psycopg.Connection) -> list[UUID]:
    return [row[0] for row in look.execute("select id from jobs order by id")]


def enqueue(database: Database) -> UUID:
    [job_id] = database.new_ids(1)
    return database.run(database.store.enqueue(INTENT, id=job_id))


async def aenqueue(database: Database) -> UUID:
    [job_id] = await database.anew_ids(1)
    return await database.arun(database.store.enqueue(INTENT, id=job_id))


def on_new_loop(database: Database) -> UUID:
    return asyncio.run(aenqueue(database))


WAYS = pytest.mark.parametrize("way", [enqueue, on_new_loop], ids=["thread", "loop"])


# -- unknown outcomes


@WAYS
def test_an_enqueue_whose_answer_was_lost_is_repeated_and_makes_one_job(
    way: Callable[[Database], UUID], database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    database.new_ids(1)
    proxy.lose_answers(3)
    asked = way(database)
    assert proxy.lost == 3
    assert jobs(look) == [asked]


async def test_an_enqueue_whose_answer_was_lost_in_the_middle_of_a_busy_loop_makes_one_job(
    database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    await asyncio.gather(*(aenqueue(database) for _ in range(10)))
    proxy.lose_answers(7)
    made = await asyncio.gather(*(aenqueue(database) for _ in range(100)))
    assert proxy.lost >= 7
    assert len(set(made)) == 100
    assert len(jobs(look)) == 110


def test_a_repetition_without_an_id_of_ours_is_caught_as_the_naive_version(
    database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    naive = replace(database.store.enqueue(INTENT), repeatable=True)
    database.run(PID)
    proxy.lose_answers(1)
    database.run(naive)
    assert len(jobs(look)) == 2


def test_many_whose_answer_was_lost_are_repeated_together(
    database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    ids = database.new_ids(20)
    proxy.lose_answers(1)
    assert database.run(database.store.enqueue_many([INTENT] * 20, ids)) == ids
    assert proxy.lost == 1
    assert [str(job) for job in jobs(look)] == ids


@pytest.mark.parametrize("colour", ["thread", "loop"])
def test_a_call_that_must_not_be_repeated_raises_and_is_not_sent_twice(
    colour: str, database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    once = database.store.enqueue(INTENT)
    assert not once.repeatable

    async def on_loop() -> None:
        await database.arun(PID)
        proxy.lose_answers(1)
        await database.arun(once)

    def in_thread() -> None:
        database.run(PID)
        proxy.lose_answers(1)
        database.run(once)

    with pytest.raises(DatabaseUnavailable):
        in_thread() if colour == "thread" else asyncio.run(on_loop())
    assert len(jobs(look)) == 1


@pytest.mark.parametrize("colour", ["thread", "loop"])
def test_a_connection_that_died_idle_is_noticed_before_it_is_used(
    colour: str, database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    """Even for a call that must not be repeated: nothing was sent."""
    careful = replace(PID, repeatable=False)

    async def on_loop() -> tuple[int, int]:
        first = await database.arun(PID)
        look.execute("select pg_terminate_backend(%s, 5000)", [first])
        await auntil(lambda: proxy.carried == 0)
        return first, await database.arun(careful)

    def in_thread() -> tuple[int, int]:
        first = database.run(PID)
        look.execute("select pg_terminate_backend(%s, 5000)", [first])
        until(lambda: proxy.carried == 0)
        return first, database.run(careful)

    first, second = in_thread() if colour == "thread" else asyncio.run(on_loop())
    assert first != second


@pytest.mark.parametrize("colour", ["thread", "loop"])
def test_what_the_database_has_undone_is_sent_again_even_if_it_is_not_repeatable(
    colour: str, database: Database, look: psycopg.Connection
) -> None:
    look.execute("create sequence public.tries")
    look.execute(
        "create function public.flaky() returns bigint language plpgsql as $$ begin"
        " if nextval('public.tries') < 3 then raise serialization_failure; end if; return 42; end $$"
    )
    call = scalar("select public.flaky()", repeatable=False)
    assert (database.run(call) if colour == "thread" else asyncio.run(database.arun(call))) == 42


# -- a database that is away


@WAYS
def test_a_database_that_is_away_for_two_seconds_is_waited_for(
    way: Callable[[Database], UUID], database: Database, proxy: Proxy, look: psycopg.Connection
) -> None:
    before = way(database)
    proxy.go_away()
    timer = threading.Timer(2, proxy.come_back)
    timer.start()
    began = time.monotonic()
    after = way(database)
    assert 1.5 < time.monotonic() - began < bound(6)
    timer.join()
    assert jobs(look) == [before, after]


@WAYS
def test_a_database_that_stays_away_is_an_error_in_time_without_the_password(
    way: Callable[[Database], UUID], proxy: Proxy, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    database = Database(proxy.dsn, schema="leasehold", wait=1)
    way(database)
    proxy.go_away()
    for prepared in (database, Database(proxy.dsn, schema="leasehold", wait=1)):
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match=r"cannot connect to PostgreSQL at 127\.0\.0\.1, port") as caught:
            way(prepared)
        assert 0.9 < time.monotonic() - began < bound(3)
        said = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(prepared)
        assert PASSWORD not in said
        prepared.close()
    assert caplog.records == [] or all(record.name == "asyncio" for record in caplog.records)
    assert PASSWORD not in caplog.text
    assert capfd.readouterr() == ("", "")
    proxy.come_back()


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{PASSWORD}@[/x",
        f"host=x password='{PASSWORD}",
        f"password={PASSWORD} nonsense",
        f"postgresql://me:{PASSWORD}@ss@host/x",
        f"postgresql://me:{PASSWORD}@host/x?nonsense=1",
    ],
)
def test_a_dsn_that_cannot_be_understood_is_refused_without_a_word_of_it(dsn: str) -> None:
    app = App(dsn)
    with pytest.raises(ConfigError) as caught:
        app.database  # noqa: B018
    told = "".join(traceback.format_exception(caught.value)) + repr(app) + repr(app.settings)
    assert PASSWORD not in told


def test_a_port_that_is_no_number_is_an_error_without_the_password() -> None:
    database = Database(f"postgresql://me:{PASSWORD}@localhost:port/x", schema="leasehold", wait=0.1)
    with pytest.raises(DatabaseUnavailable, match="port") as caught:
        database.run(PID)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_more_threads_than_connections_wait_for_their_turn(database: Database, proxy: Proxy) -> None:
    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(lambda n: database.run(scalar("select %s::int", n)), range(200)))
    assert answers == list(range(200))
    assert proxy.connections <= 10


async def test_more_coroutines_than_connections_wait_for_their_turn(database: Database, proxy: Proxy) -> None:
    answers = await asyncio.gather(*(database.arun(scalar("select %s::int", n)) for n in range(200)))
    assert answers == list(range(200))
    assert proxy.connections <= 10


async def test_a_call_that_gets_no_connection_in_time_raises(dsn: str, look: psycopg.Connection) -> None:
    database = Database(dsn, schema="leasehold", wait=0.5)
    sleepers = [asyncio.create_task(database.arun(scalar("select 1 from pg_sleep(1.5)"))) for _ in range(10)]
    await auntil(lambda: sleeping(look) == 10)
    with pytest.raises(DatabaseUnavailable, match="all 10 connections for coroutines were in use"):
        await database.arun(PID)
    assert await asyncio.to_thread(database.run, PID)  # the threads' connections are others
    await asyncio.gather(*sleepers)
    assert await database.arun(PID)
    database.close()


# -- connections


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.1])
async def test_a_cancelled_call_leaves_no_answer_for_the_next(database: Database, pause: float) -> None:
    for n in range(5):
        slow = asyncio.create_task(database.arun(scalar("select cast('late' as text) from pg_sleep(0.2)")))
        await asyncio.sleep(pause)
        slow.cancel()
        assert await database.arun(scalar("select %s::int", n)) == n
        await asyncio.wait([slow])


def sleeping(look: psycopg.Connection) -> int:
    """How many sessions are in pg_sleep()."""
    query = "select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
    return look.execute(query).rowcount


def open_connections(look: psycopg.Connection) -> int:
    found = look.execute(
        "select count(*) from pg_stat_activity where application_name = 'leasehold' and datname = current_database()"
    ).fetchone()
    assert found
    return int(found[0])


def test_close_leaves_no_connection_of_any_thread_or_loop(dsn: str, look: psycopg.Connection) -> None:
    database = Database(dsn, schema="leasehold")
    live = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(live.run_forever)
        assert asyncio.run_coroutine_threadsafe(database.arun(PID), live).result(60)
        asyncio.run(database.arun(PID))  # a loop that is over
        database.run(PID)
        assert open_connections(look) == 3
        database.close()
        until(lambda: open_connections(look) == 0)
        with pytest.raises(DatabaseUnavailable, match="closed"):
            asyncio.run_coroutine_threadsafe(database.arun(PID), live).result(60)
        live.call_soon_threadsafe(live.stop)
    live.close()
    with pytest.raises(DatabaseUnavailable, match="closed"):
        database.run(PID)


def test_a_call_under_way_ends_well_when_the_connections_are_closed(dsn: str, look: psycopg.Connection) -> None:
    database = Database(dsn, schema="leasehold")
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(database.run, scalar("select 42 from pg_sleep(0.5)"))
        until(lambda: sleeping(look) == 1)
        database.close()
        assert slow.result(60) == 42
    until(lambda: open_connections(look) == 0)


def test_a_loop_that_is_over_leaves_no_connection_once_another_begins(dsn: str, look: psycopg.Connection) -> None:
    database = Database(dsn, schema="leasehold")
    pids = {asyncio.run(database.arun(PID)) for _ in range(5)}
    assert len(pids) == 5
    until(lambda: open_connections(look) == 1)
    database.close()


def test_a_connection_is_used_again_until_it_is_old(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first = database.run(PID)
    assert database.run(PID) == first
    monkeypatch.setattr(pool, "MAX_AGE", 0.0)
    assert database.run(PID) == first
    assert database.run(PID) != first


def test_connections_that_are_not_needed_are_closed(
    database: Database, look: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(lambda _: database.run(scalar("select 1 from pg_sleep(0.2)")), range(5)))
    assert open_connections(look) == 5
    monkeypatch.setattr(pool, "MAX_IDLE", 0.0)
    database.run(PID)
    until(lambda: open_connections(look) == 1)


@pytest.mark.parametrize("setting", ["on", "off"])
def test_prepared_statements_are_used_unless_switched_off(
    dsn: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_PREPARE", setting)
    count = scalar("select count(*) from pg_prepared_statements")
    with App(dsn) as app:
        for _ in range(10):
            app.record(INTENT)
        assert bool(app.database.run(count)) is (setting == "on")

        async def on_loop() -> int:
            for _ in range(10):
                await app.arecord(INTENT)
            return await app.database.arun(count)

        assert bool(asyncio.run(on_loop())) is (setting == "on")


def test_only_a_call_that_records_jobs_raises_invalid_job(database: Database) -> None:
    job = '{"id": "%s", "kind": "k", "payload": {}, "idempotency_key": "%s", "strict": true}'
    first, second, third = database.new_ids(3)
    database.run(database.store.submit_many(f"[{job % (first, 'taken')}]"))
    with pytest.raises(InvalidArgument) as caught:
        database.run(database.store.list_jobs({}, None, -1))
    assert type(caught.value) is InvalidArgument
    with pytest.raises(InvalidJob) as refused:
        database.run(database.store.submit_many(f"[{job % (second, 'a')}, {job % (third, '')}]", all_or_none=True))
    assert refused.value.place == 1
    taken = (job % (third, "taken")).replace('"k"', '"another"')
    with pytest.raises(IdempotencyConflict) as conflict:
        database.run(database.store.submit_many(f"[{job % (second, 'a')}, {taken}]", all_or_none=True))
    assert conflict.value.place == 1


def test_an_error_of_ours_keeps_the_connection(database: Database) -> None:
    first = database.run(PID)
    with pytest.raises(InvalidArgument, match="kind is empty"):
        database.run(scalar("select leasehold.enqueue('')"))
    with pytest.raises(psycopg.errors.UndefinedColumn):
        database.run(scalar("select nosuchcolumn"))
    assert database.run(PID) == first


# -- the clock


@pytest.mark.parametrize("wrong", [-HOUR_NS, HOUR_NS])
@WAYS
def test_ids_follow_the_databases_clock_from_the_first_on(
    way: Callable[[Database], UUID], wrong: int, dsn: str, look: psycopg.Connection
) -> None:
    database = Database(dsn, schema="leasehold", ids=IdMaker(clock=lambda: time.time_ns() + wrong))
    made = [way(database) for _ in range(3)]
    database.close()
    assert made == sorted(made)
    seconds = look.execute("select extract(epoch from created_at) from jobs order by id").fetchall()
    for job_id, [created] in zip(made, seconds, strict=True):
        assert abs((job_id.int >> 80) / 1000 - float(created)) < 2
