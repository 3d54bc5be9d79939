"""A notification arrives with every job, from whatever connection, and again after the listener's own was lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest

from faults.waiting import astays, auntil
from leasehold.db.notify import CANCEL, DUE, QUEUE, Listener

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
    listener = Listener(dsn, schema=schema, name=NAME)
    listener.on(QUEUE, hints.put_nowait)
    listener.on(DUE, lambda rest: hints.put_nowait(f"due {rest}"))
    listener.on(CANCEL, lambda rest: hints.put_nowait(f"cancelled {rest}"))
    running = asyncio.create_task(listener.run())
    try:
        yield listener, hints
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def next_hint(hints: "asyncio.Queue[str]") -> str:
    return await asyncio.wait_for(hints.get(), 60)


async def connected(hints: "asyncio.Queue[str]") -> None:
    """Wait for a new connection: every callback is called, for notifications may have been lost."""
    assert [await next_hint(hints) for _ in range(3)] == ["", "due ", "cancelled "]


async def test_a_notification_goes_to_the_callback_of_its_name_and_any_other_is_a_queue(
    dsn: str, look: psycopg.Connection
) -> None:
    names = ["mail", "@due", "@cancel:7:8", "@cancel", "a: b", "@due:", "@new", "last"]
    async with listening(dsn) as (_, hints):
        await connected(hints)
        for name in names:
            look.execute("select pg_notify('leasehold', %s)", [name])
        got = [await next_hint(hints) for _ in range(8)]
    assert got == ["mail", "due ", "cancelled 7:8", "@cancel", "a: b", "@due:", "@new", "last"]


async def test_who_sleeps_until_there_is_a_job_is_called_once(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        await connected(hints)
        listener.at_next_job = lambda: hints.put_nowait("a job")
        for name in ["@due", "mail", "mail"]:
            look.execute("select pg_notify('leasehold', %s)", [name])
        assert [await next_hint(hints) for _ in range(4)] == ["due ", "mail", "a job", "mail"]


async def test_a_notification_without_a_name_is_of_any_queue(dsn: str, look: psycopg.Connection) -> None:
    """Limits send it: jobs of some queue may run now."""
    async with listening(dsn) as (listener, hints):
        await connected(hints)
        listener.at_next_job = lambda: hints.put_nowait("a job")
        look.execute("select pg_notify('leasehold', '')")
        assert [await next_hint(hints) for _ in range(2)] == ["", "a job"]


async def test_a_job_of_another_connection_is_a_notification_with_its_queue(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        await connected(hints)
        assert listener.listening.is_set()
        look.execute("select enqueue('K', queue => 'mail')")
        assert await next_hint(hints) == "mail"
        look.execute("select enqueue('K', run_after => '1 hour')")
        assert await next_hint(hints) == "due "
        with look.transaction(force_rollback=True):
            look.execute("select enqueue('K', queue => 'never')")
        look.execute("select enqueue('K', queue => 'after')")
        assert await next_hint(hints) == "after"


async def test_notifications_come_again_after_the_connection_was_lost(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        for _ in range(3):
            await connected(hints)
            look.execute(END, [NAME])
            look.execute("select enqueue('K', queue => 'missed')")
        await connected(hints)
        await asyncio.wait_for(listener.listening.wait(), 60)
        look.execute("select enqueue('K', queue => 'mail')")
        assert await next_hint(hints) == "mail"


async def test_other_schemas_are_not_our_business(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn, schema="elsewhere") as (_, hints):
        await connected(hints)
        look.execute("select enqueue('K')")
        look.execute("select pg_notify('elsewhere', 'ours')")
        assert await next_hint(hints) == "ours"


async def test_a_database_that_is_not_there_is_waited_for(empty_dsn: str) -> None:
    nowhere = empty_dsn.replace("/test_", "/nowhere_")
    name = nowhere.partition("?")[0].rpartition("/")[2]
    async with listening(nowhere) as (listener, hints):
        await astays(lambda: not listener.listening.is_set() and hints.empty(), "it does not listen", seconds=0.3)
        with psycopg.connect(empty_dsn, autocommit=True) as owner:
            owner.execute(f'create database "{name}"')
            try:
                await asyncio.wait_for(listener.listening.wait(), 60)
            finally:
                owner.execute(f'drop database "{name}" with (force)')


async def test_a_listener_that_was_cancelled_leaves_no_connection(dsn: str, look: psycopg.Connection) -> None:
    async with listening(dsn) as (listener, hints):
        await next_hint(hints)
    assert not listener.listening.is_set()
    await auntil(lambda: look.execute(f"select count(*) {OURS}", [NAME]).fetchone() == (0,))
