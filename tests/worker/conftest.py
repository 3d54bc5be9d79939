"""A worker in this process, on a database of its own."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from leasehold import App, Job
from leasehold.worker import Worker, WorkerOptions


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


async def until(condition: Callable[[], Any], *, within: float = 60) -> Any:
    """Wait until the condition holds; give what it gave."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"still not so after {within} s"
        await asyncio.sleep(0.01)


def row(sql: psycopg.Connection[dict[str, Any]], job: Job[Any]) -> dict[str, Any]:
    """The job as it is stored."""
    found = sql.execute("select * from jobs where id = %s", [job.id]).fetchone()
    assert found is not None
    return found


def attempts(sql: psycopg.Connection[dict[str, Any]], job: Job[Any]) -> list[dict[str, Any]]:
    """What is on record about the job's attempts, in order."""
    return sql.execute("select * from attempts where job_id = %s order by attempt", [job.id]).fetchall()
