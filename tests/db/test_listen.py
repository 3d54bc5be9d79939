"""A hint comes with every job, from whatever connection, and again after the listener's own was lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest

from leasehold.db.listen import Listener
from leasehold.intent import DUE

NAME = "test listener"
OURS = "from pg_stat_activity where application_name = %s and datname = current_database()"
END = f"select pg_terminate_backend(pid, 5000) {OURS}"


@pytest.fixture
def look(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        yield connection


@asynccontextmanager
async def listening(dsn: str, schema: str = "leasehold") -> AsyncIterator[tuple[Listener, "asyncio.Queue[str]"]]:
    hints: asyncio.Queue[str] = asyncio.Queue()
    listener = Listener(dsn, schema=schema, name=NAME, hint=hints.put_nowait)
    running = asyncio.create_task(listener.run())
    try:
        yield listener, hints
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def next_hint(hints: "asyncio.Queue[str]") -> str:
    return await asyncio.wait_for(hints.get(), 60)


async def test_a_job_of_another_connection_is_a_hint_with_its_queue(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        assert await next_hint(hints) == ""  # what came before was missed: look everywhere
        assert listener.listening.is_set()
        look.execute("select enqueue('K', queue => 'mail')")
        assert await next_hint(hints) == "mail"
        look.execute("select enqueue('K', run_after => '1 hour')")
        assert await next_hint(hints) == DUE
        with look.transaction(force_rollback=True):
            look.execute("select enqueue('K', queue => 'never')")
        look.execute("select enqueue('K', queue => 'after')")
        assert await next_hint(hints) == "after"


async def test_hints_come_again_after_the_connection_was_lost(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        for _ in range(3):
            assert await next_hint(hints) == ""
            look.execute(END, [NAME])
            look.execute("select enqueue('K', queue => 'missed')")
        assert await next_hint(hints) == ""
        await asyncio.wait_for(listener.listening.wait(), 60)
        look.execute("select enqueue('K', queue => 'mail')")
        assert await next_hint(hints) == "mail"


async def test_other_schemas_are_not_our_business(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn, schema="elsewhere") as (_, hints):
        assert await next_hint(hints) == ""
        look.execute("select enqueue('K')")
        look.execute("select pg_notify('elsewhere', 'ours')")
        assert await next_hint(hints) == "ours"


async def test_a_database_that_is_not_there_is_waited_for(empty_dsn: str) -> None:
    nowhere = empty_dsn.replace("/test_", "/nowhere_")
    async with listening(nowhere) as (listener, hints):
        await asyncio.sleep(0.3)
        assert not listener.listening.is_set()
        assert hints.empty()


async def test_a_listener_that_was_cancelled_leaves_no_connection(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        await next_hint(hints)
    assert not listener.listening.is_set()
    deadline = time.monotonic() + 60
    while look.execute(f"select count(*) {OURS}", [NAME]).fetchone() != (0,):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
