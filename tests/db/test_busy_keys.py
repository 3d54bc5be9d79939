"""An idempotency key that another transaction is using: its calls wait, no other does, and nothing is left behind."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from uuid import UUID

import psycopg
import pytest

from faults.waiting import auntil, until
from leasehold import App, DatabaseUnavailable, Intent, Job
from leasehold.db.connections import dial as network
from leasehold.db.database import Database
from leasehold.errors import LockTimeout
from tests.db.proxy import Proxy

PLAIN = Intent(kind="K", payload="{}")
KEYED = Intent(kind="K", payload="{}", idempotency_key="km")


@pytest.fixture
def look(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        yield connection


@pytest.fixture
def holder(dsn: str) -> Iterator[psycopg.Connection]:
    """A session that uses the key, and sleeps."""
    with psycopg.connect(dsn) as connection:
        connection.execute("select leasehold.enqueue('K', '{}', idempotency_key => 'km')")
        yield connection
        connection.rollback()


def call(database: Database, intent: Intent) -> UUID:
    [job_id] = database.new_ids(1)
    return database.run(database.store.enqueue(intent, id=job_id))


def call_on_loop(database: Database, intent: Intent) -> UUID:
    async def record() -> UUID:
        [job_id] = await database.anew_ids(1)
        return await database.arun(database.store.enqueue(intent, id=job_id))

    return asyncio.run(record())


WAYS = pytest.mark.parametrize("way", [call, call_on_loop], ids=["thread", "loop"])
Way = Callable[[Database, Intent], UUID]


def waiting(look: psycopg.Connection) -> int:
    found = look.execute(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    ).fetchone()
    assert found
    return int(found[0])


def keyed_jobs(look: psycopg.Connection) -> list[UUID]:
    return [row[0] for row in look.execute("select id from jobs where idempotency_key = 'km'")]


def test_many_calls_of_one_busy_key_leave_the_connections_to_others(
    dsn: str, look: psycopg.Connection, holder: psycopg.Connection
) -> None:
    database = Database(dsn, schema="leasehold", wait=10, answer=60)
    with ThreadPoolExecutor(40) as threads:
        same: list[Future[UUID]] = [threads.submit(call, database, KEYED) for _ in range(40)]
        until(lambda: waiting(look) > 0)
        for _ in range(30):
            assert call(database, PLAIN)
        until(lambda: waiting(look) <= 1)  # one at a time asks, the others wait without a connection
        holder.commit()
        made = {future.result(120) for future in same}
    assert made == set(keyed_jobs(look))
    assert len(made) == 1
    database.close()


async def test_many_coroutines_of_one_busy_key_leave_the_connections_to_others(
    dsn: str, look: psycopg.Connection, holder: psycopg.Connection
) -> None:
    database = Database(dsn, schema="leasehold", wait=10, answer=60)
    ids = await database.anew_ids(80)
    store = database.store
    same = [asyncio.create_task(database.arun(store.enqueue(KEYED, id=job_id))) for job_id in ids[:40]]
    await auntil(lambda: waiting(look) > 0)
    for job_id in ids[40:]:
        assert await database.arun(store.enqueue(PLAIN, id=job_id)) == UUID(job_id)
    holder.commit()
    assert set(await asyncio.gather(*same)) == set(keyed_jobs(look))
    database.close()


@WAYS
def test_a_key_that_stays_in_use_ends_in_an_error_that_names_it_and_nothing_is_recorded_later(
    way: Way, dsn: str, look: psycopg.Connection, holder: psycopg.Connection
) -> None:
    database = Database(dsn, schema="leasehold", wait=1, answer=1.5)
    with pytest.raises(
        LockTimeout, match="another transaction is using idempotency key 'km'; nothing was recorded"
    ) as e:
        way(database, KEYED)
    assert not e.value.sent
    assert e.value.keys == ("km",)
    assert len(e.value.ids) == 1
    until(lambda: waiting(look) == 0)
    holder.rollback()
    assert keyed_jobs(look) == []
    assert way(database, KEYED)
    database.close()


@pytest.mark.parametrize("blocking", [True, False], ids=["thread", "loop"])
def test_a_batch_with_a_key_that_stays_in_use_names_its_keys(
    blocking: bool, dsn: str, look: psycopg.Connection, holder: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.db.database._ANSWER_SECONDS", 1.5)
    monkeypatch.setattr("leasehold.app.Database", partial(Database, wait=1, answer=1.5))
    app = App(dsn)
    batch = [PLAIN, KEYED, Intent(kind="K", payload="{}", idempotency_key="other")]

    async def record() -> list[Job[None]]:
        return await app.aenqueue_many(batch)

    with pytest.raises(LockTimeout, match="one of the idempotency keys 'km', 'other'; nothing was recorded") as e:
        app.enqueue_many(batch) if blocking else asyncio.run(record())
    assert len(e.value.ids) == 3
    assert look.execute("select count(*) from jobs").fetchone() == (0,)
    holder.rollback()
    assert len(app.enqueue_many(batch)) == 3
    app.close()


def test_a_lock_of_the_whole_table_is_not_called_a_key(dsn: str, holder: psycopg.Connection) -> None:
    holder.rollback()
    holder.execute("lock table leasehold.jobs in share mode")
    database = Database(dsn, schema="leasehold", wait=1, answer=1.5)
    with pytest.raises(LockTimeout, match="gave up waiting for a lock") as e:
        call(database, KEYED)
    assert "another transaction is using" not in str(e.value)
    assert not e.value.sent
    database.close()


@WAYS
def test_a_call_that_was_given_up_does_not_wait_on_in_the_server(
    way: Way, dsn: str, look: psycopg.Connection, holder: psycopg.Connection
) -> None:
    holder.rollback()
    database = Database(dsn, schema="leasehold", wait=1, answer=1.5)
    assert way(database, PLAIN)
    holder.execute("lock table leasehold.jobs in share mode")
    with pytest.raises(DatabaseUnavailable, match="is recorded is unknown") as e:
        way(database, PLAIN)
    assert e.value.sent
    until(lambda: waiting(look) == 0)
    holder.rollback()
    assert look.execute("select count(*) from jobs").fetchone() == (1,)
    database.close()


def test_a_server_that_cannot_check_its_clients_is_not_asked_to() -> None:
    checking = "-c client_connection_check_interval="
    found = network.Route()
    assert checking in (found.options({}) or "")
    error = psycopg.OperationalError('FATAL:  invalid value for parameter "client_connection_check_interval": 2000')
    assert found.refused(error)
    assert not found.refused(error)
    assert checking not in (found.options({}) or "")
    assert "read\\ committed" in (found.options({}) or "")
    assert not found.pooled


def test_a_callers_transaction_keeps_its_own_lock_timeout(dsn: str, holder: psycopg.Connection) -> None:
    app = App(dsn)
    task = app.task(kind="K")(_nothing)
    with psycopg.connect(dsn, options="-c lock_timeout=700") as mine:
        began = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            task.using(idempotency_key="km", connection=mine).enqueue()
        assert time.monotonic() - began >= 0.7
        mine.rollback()
        task.using(connection=mine).enqueue()
        assert mine.execute("show lock_timeout").fetchone() == ("700ms",)


def _nothing() -> None:
    pass


@WAYS
@pytest.mark.parametrize("key", ["kx", None])
def test_an_enqueue_whose_outcome_stays_unknown_raises_an_error_with_the_id_and_the_key(
    way: Way, key: str | None, dsn: str, look: psycopg.Connection
) -> None:
    proxy = Proxy(dsn)
    database = Database(proxy.dsn, schema="leasehold", prepare=False, wait=1)
    intent = Intent(kind="K", payload="{}", idempotency_key=key)
    assert way(database, Intent(kind="first", payload="{}"))
    proxy.lose_answers(10**6)
    with pytest.raises(DatabaseUnavailable) as e:
        way(database, intent)
    assert e.value.sent
    assert e.value.keys == (() if key is None else (key,))
    [job_id] = e.value.ids
    assert job_id in str(e.value)
    assert key is None or repr(key) in str(e.value)
    assert "unknown" in str(e.value)
    assert look.execute("select id from jobs where kind = 'K'").fetchall() == [(UUID(job_id),)]
    database.close()
    proxy.close()


@WAYS
def test_an_enqueue_that_was_never_sent_is_not_called_unknown(way: Way, dsn: str) -> None:
    proxy = Proxy(dsn)
    database = Database(proxy.dsn, schema="leasehold", wait=0.5)
    proxy.close()
    with pytest.raises(DatabaseUnavailable) as e:
        way(database, KEYED)
    assert not e.value.sent
    database.close()
