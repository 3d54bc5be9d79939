"""A worker whose `run()` is cancelled, or fails before it takes jobs, leaves nothing open."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App
from leasehold.worker import Worker, WorkerOptions

Sql = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    return tmp_path


def connections(sql: Sql, worker: Worker) -> list[dict[str, Any]]:
    parts = ("claimer", "finisher", "upkeep", "keeper", "listener")
    names = [f"leasehold {part} {worker.id}"[:63] for part in parts]  # PostgreSQL keeps no more of a name
    sql.execute("select pg_stat_clear_snapshot()")
    return sql.execute(
        "select application_name from pg_stat_activity where application_name = any(%s)", [names]
    ).fetchall()


async def nothing_is_left(sql: Sql, worker: Worker, folder: Path) -> None:
    await auntil(lambda: not connections(sql, worker))
    assert list(folder.rglob("*.journal")) == []
    mine = asyncio.current_task()
    await auntil(lambda: all(task is mine or task.done() for task in asyncio.all_tasks()))


async def test_cancelled_before_the_database_has_answered(app: App, sql: Sql, folder: Path) -> None:
    @app.task(kind="work")
    async def work() -> None: ...

    worker = Worker(app)
    with sql.transaction():
        sql.execute("lock table workers in access exclusive mode")
        running = asyncio.create_task(worker.run())
        await auntil(lambda: connections(sql, worker))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await nothing_is_left(sql, worker, folder)


async def test_cancelled_in_a_startup_hook(app: App, sql: Sql, folder: Path) -> None:
    reached = asyncio.Event()

    @app.task(kind="work")
    async def work() -> None: ...

    @app.on_startup
    async def stay() -> None:
        reached.set()
        await asyncio.Event().wait()

    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nothing_is_left(sql, worker, folder)


async def test_cancelled_twice_while_a_job_runs(app: App, sql: Sql, folder: Path) -> None:
    begun = asyncio.Event()

    @app.task(kind="work", lease=30)
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    await work.aenqueue()
    worker = Worker(app, WorkerOptions(grace=60))
    running = asyncio.create_task(worker.run())
    await begun.wait()
    running.cancel()
    await auntil(worker.stopping.is_set)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nothing_is_left(sql, worker, folder)
