"""A worker leaves a paused queue alone, and comes back to it when it is resumed."""

import asyncio
from typing import Any

import psycopg

from faults.waiting import auntil
from leasehold import App
from tests.worker.conftest import row, working

Sql = psycopg.Connection[dict[str, Any]]


async def test_a_worker_takes_nothing_of_a_paused_queue_and_is_woken_when_it_is_resumed(app: App, sql: Sql) -> None:
    @app.task(kind="work")
    async def work() -> None: ...

    sql.execute("select pause('held')")
    async with working(app, slots=3):
        waiting = [await work.using(queue="held").aenqueue() for _ in range(3)]
        for _ in range(20):  # those of another queue pass by
            await (await work.aenqueue()).aresult(60)
        assert {row(sql, job)["attempt"] for job in waiting} == {0}
        sql.execute("select resume('held')")
        for job in waiting:
            await job.aresult(60)


async def test_what_runs_when_its_queue_is_paused_runs_to_its_end(app: App, sql: Sql) -> None:
    go_on = asyncio.Event()

    @app.task(kind="work", lease=2)
    async def work() -> str:
        await go_on.wait()
        return "done"

    async with working(app, slots=1):
        job = await work.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        sql.execute("select pause('default')")
        began = row(sql, job)["lease_expires_at"]
        await auntil(lambda: row(sql, job)["lease_expires_at"] > began)
        go_on.set()
        assert await job.aresult(60) == "done"
