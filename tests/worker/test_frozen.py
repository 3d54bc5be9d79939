"""A connection that stands still, though the network acknowledges everything: no wait for it is without a bound."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, DatabaseUnavailable, current_job
from leasehold.db.call import Call
from leasehold.db.database import Database
from tests.db.proxy import Proxy
from tests.timing import bound
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()


@pytest.fixture
async def behind(proxy: Proxy) -> AsyncIterator[App]:
    """An app whose connections lead through the proxy."""
    async with App(proxy.dsn) as app:
        yield app


async def test_frozen_connections_cost_no_lease_when_new_ones_work(
    behind: App, app: App, proxy: Proxy, sql: Sql
) -> None:
    @behind.task(kind="long", lease=20)
    async def long() -> int:
        await asyncio.sleep(24)
        return current_job().attempt

    @app.task(kind="long", lease=20)
    async def stranger() -> int:
        return current_job().attempt

    @behind.task(kind="short", lease=20)
    async def short() -> None: ...

    async with working(behind) as worker:
        job = await stranger.aenqueue()  # not through the proxy
        await auntil(lambda: worker.snapshot().running == 1)  # the answer to the claim has arrived
        proxy.freeze()
        sql.execute("select enqueue('short')")
        await auntil(lambda: row(sql, job)["state"] == "success", within=90)
        finished = "select count(*) as n from jobs where state = 'success'"
        await auntil(lambda: sql.execute(finished).fetchone() == {"n": 2})
        assert attempts(sql, job) == []
        assert row(sql, job)["result"] == 1
        proxy.thaw()


async def test_what_ended_while_the_database_was_away_is_reported_and_not_given_back(
    behind: App, proxy: Proxy, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()

    @behind.task(kind="ends", lease=3)
    async def ends() -> None:
        await go.wait()

    @behind.task(kind="later", lease=3)
    async def later() -> None: ...

    def states(kind: str) -> set[str]:
        return {row["state"] for row in sql.execute("select state from jobs where kind = %s", [kind])}

    async with working(behind, slots=5) as worker:
        for _ in range(5):
            await ends.aenqueue()
        await auntil(lambda: worker.snapshot().running == 5)
        proxy.go_away()
        go.set()
        keeper = worker._loops.keeper  # type: ignore[union-attr]
        await auntil(lambda: not keeper._held)
        # The window in which the worker has given up a lease that still holds is short: here it is long.
        sql.execute("update jobs set lease_expires_at = clock() + interval '10 min' where state = 'running'")
        proxy.freeze_at("complete")
        proxy.come_back()
        for _ in range(2):  # the second claim is after what the first one did
            sql.execute("select enqueue('later')")
            await auntil(lambda: states("later") == {"running"})
        assert states("ends") == {"running"}
        proxy.freeze_at("")
        proxy.thaw()
        await auntil(lambda: states("ends") == {"success"})
    assert sql.execute("select max(attempt) as n from jobs where kind = 'ends'").fetchone() == {"n": 1}
    assert not [text for text in caplog.messages if "giving back" in text or ("ends" in text and "refused" in text)]


async def test_a_lease_that_cannot_be_renewed_is_given_up_on_time_though_the_keeper_waits(
    behind: App, app: App, proxy: Proxy, sql: Sql
) -> None:
    stopped: list[float] = []

    @behind.task(kind="endless", lease=6)
    async def endless() -> None:
        try:
            await asyncio.sleep(120)
        finally:
            stopped.append(time.monotonic())

    async with working(behind) as worker:
        job = await endless.aenqueue()
        await auntil(lambda: worker.snapshot().running == 1)  # the answer to the claim has arrived
        proxy.refuse_new()
        proxy.freeze()
        frozen = time.monotonic()
        await auntil(lambda: stopped)
        assert stopped[0] - frozen < bound(6)
        assert worker.snapshot().running == 0
        proxy.come_back()
        proxy.thaw()
        await auntil(lambda: row(sql, job)["attempt"] > 1)  # taken over, here or elsewhere
        sql.execute("select cancel(%s)", [job.id])


def counted(sql: str, *, repeatable: bool) -> Call[Any]:
    return Call(sql, (), lambda rows: rows[0][0], repeatable=repeatable)


@pytest.mark.parametrize("way", ["thread", "coroutine"])
async def test_a_call_that_is_not_answered_is_given_up_and_repeated_if_it_may_be(proxy: Proxy, way: str) -> None:
    database = Database(proxy.dsn, schema="leasehold", answer=4)

    async def run(call: Call[Any]) -> Any:
        return await (database.arun(call) if way == "coroutine" else asyncio.to_thread(database.run, call))

    pid = counted("select pg_backend_pid()", repeatable=True)
    first = await run(pid)
    proxy.freeze()
    assert await asyncio.wait_for(run(pid), 60) != first
    proxy.freeze()
    with pytest.raises(DatabaseUnavailable, match="no answer from PostgreSQL within 4 s") as caught:
        await asyncio.wait_for(run(counted("select 1", repeatable=False)), 60)
    assert caught.value.sent
    database.close()


async def test_many_calls_in_one_have_their_time_each(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.app.Database", partial(Database, answer=5))

    @app.task(kind="one")
    async def one() -> None: ...

    def slowly() -> Iterator[Any]:
        for _ in range(4):
            time.sleep(1.5)
            yield from (one.intent() for _ in range(1000))

    assert len(await asyncio.to_thread(app.enqueue_many, slowly())) == 4000
