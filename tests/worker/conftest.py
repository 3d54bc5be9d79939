"""A worker in this process, on a database of its own."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from faults.waiting import auntil
from leasehold import App, Job
from leasehold.worker import Worker, WorkerOptions
from tests.worker.processes import Pool, children


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An app without tasks; the test registers what it needs."""
    async with App(dsn) as app:
        yield app


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A superuser's look into the tables."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row, options="-c search_path=leasehold") as connection:
        yield connection


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """Afterwards: no process, no zombie and no file descriptor is left."""
    await asyncio.sleep(0)
    gc.collect()  # or a socket that an earlier test left to the collector is closed, and missed, in this one
    fds = len(list(Path("/proc/self/fd").iterdir()))
    pool = Pool()
    yield pool
    await pool.executor.close()
    assert children() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


# -- a job that ends by itself


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker that works while the block runs, and has stopped in good order after it."""
    worker = Worker(app, WorkerOptions(**{"grace": 5, **options}))
    running = asyncio.create_task(worker.run())
    started = asyncio.create_task(worker.started.wait())
    await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    try:
        if running.done():
            running.result()
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, 60)


async def idle(sql: psycopg.Connection[dict[str, Any]], worker: Worker) -> None:
    """Wait until the worker listens and its last claim is over: now a notification or its poll makes it claim."""
    claimed = """select from pg_stat_activity where datname = current_database() and state = 'idle'
        and application_name = left(%s, 63) and query like '%%claim%%'"""
    await auntil(lambda: worker.snapshot().state == "working")
    await auntil(lambda: sql.execute(claimed, [f"leasehold claimer {worker.id}"]).rowcount, "the claimer is idle")


def row(sql: psycopg.Connection[dict[str, Any]], job: Job[Any]) -> dict[str, Any]:
    """The job as it is stored."""
    found = sql.execute("select * from jobs where id = %s", [job.id]).fetchone()
    assert found is not None
    return found


def attempts(sql: psycopg.Connection[dict[str, Any]], job: Job[Any]) -> list[dict[str, Any]]:
    """What is on record about the job's attempts, in order."""
    return sql.execute("select * from attempts where job_id = %s order by attempt", [job.id]).fetchall()
