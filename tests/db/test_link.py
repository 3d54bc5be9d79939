"""A worker's connections come back by themselves, and never return the answer of another call."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from leasehold import DatabaseUnavailable, SchemaMismatch
from leasehold.db.call import Call
from leasehold.db.connections.link import Backoff, Link, ThreadLink
from leasehold.errors import DatabaseTrouble, InvalidArgument
from tests.db.proxy import PASSWORD, Proxy
from tests.timing import bound


def scalar(sql: str, *args: object) -> Call[object]:
    return Call(sql, args, lambda rows: rows[0][0], repeatable=True)


PID = scalar("select pg_backend_pid()")
REFUSED = scalar("select leasehold.enqueue('')")


@pytest.fixture
async def link(dsn: str) -> AsyncIterator[Link]:
    link = Link(dsn, name="test link")
    yield link
    await link.close()


@pytest.fixture
def thread_link(dsn: str) -> Iterator[ThreadLink]:
    link = ThreadLink(dsn, name="test link")
    yield link
    link.close()


@pytest.fixture
def look(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()


def end(look: psycopg.Connection, pid: object) -> None:
    look.execute("select pg_terminate_backend(%s, 5000)", [pid])


async def test_a_broken_connection_raises_once_and_is_made_again(link: Link, look: psycopg.Connection) -> None:
    first = await link.run(PID)
    assert await link.run(PID) == first
    end(look, first)
    with pytest.raises(DatabaseUnavailable) as caught:
        await link.run(PID)
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert await link.run(PID) != first


def test_a_broken_connection_of_a_thread_raises_once_and_is_made_again(
    thread_link: ThreadLink, look: psycopg.Connection
) -> None:
    first = thread_link.run(PID)
    assert thread_link.run(PID) == first
    end(look, first)
    with pytest.raises(DatabaseUnavailable):
        thread_link.run(PID)
    assert thread_link.run(PID) != first


async def test_insist_repeats_until_there_is_an_answer(link: Link, look: psycopg.Connection) -> None:
    first = await link.run(PID)
    end(look, first)
    assert await link.insist(PID) != first


async def test_insist_outlasts_a_database_that_is_away(proxy: Proxy) -> None:
    link = Link(proxy.dsn, name="test link")
    await link.run(PID)
    proxy.go_away()
    insisting = asyncio.create_task(link.insist(PID))
    done, _ = await asyncio.wait([insisting], timeout=0.5)
    assert not done
    proxy.come_back()
    assert await asyncio.wait_for(insisting, 60)
    await link.close()


async def test_an_answer_that_was_lost_is_asked_for_again(proxy: Proxy) -> None:
    link = Link(proxy.dsn, name="test link")
    await link.run(PID)
    proxy.lose_answers(2, to="42")
    assert await link.insist(scalar("select 42")) == 42
    assert proxy.lost == 2
    await link.close()


@pytest.mark.parametrize("pause", [0, 0.001, 0.02, 0.1])
async def test_a_cancelled_call_leaves_no_answer_for_the_next(link: Link, pause: float) -> None:
    for n in range(10):
        slow = asyncio.create_task(link.run(scalar("select cast(%s as text) from pg_sleep(0.05)", f"late {n}")))
        await asyncio.sleep(pause)
        slow.cancel()
        assert await link.run(scalar("select %s::int", n)) == n
        await asyncio.wait([slow])


async def test_coroutines_take_turns(link: Link) -> None:
    answers = await asyncio.gather(*(link.run(scalar("select %s::int", n)) for n in range(50)))
    assert answers == list(range(50))


async def test_an_error_of_ours_leaves_the_connection_alone(link: Link) -> None:
    first = await link.run(PID)
    with pytest.raises(InvalidArgument, match="kind is empty"):
        await link.run(REFUSED)
    with pytest.raises(SchemaMismatch):
        await link.run(scalar("select nowhere.x()"))
    with pytest.raises(DatabaseTrouble, match="42703"):
        await link.run(scalar("select nosuchcolumn"))
    assert await link.run(PID) == first


def test_an_error_of_ours_leaves_the_connection_of_a_thread_alone(thread_link: ThreadLink) -> None:
    first = thread_link.run(PID)
    with pytest.raises(InvalidArgument, match="kind is empty"):
        thread_link.run(REFUSED)
    with pytest.raises(DatabaseTrouble, match="42703"):
        thread_link.run(scalar("select nosuchcolumn"))
    assert thread_link.run(PID) == first


@pytest.mark.parametrize(
    "statement",
    [
        "do $$ begin raise deadlock_detected; end $$",
        "do $$ begin raise serialization_failure; end $$",
        "do $$ begin raise lock_not_available; end $$",
        "do $$ begin raise query_canceled; end $$",
    ],
)
async def test_what_the_database_has_undone_may_be_repeated(link: Link, statement: str) -> None:
    """A worker's loop must not die of a deadlock."""
    with pytest.raises(DatabaseUnavailable, match=r"undone|gave up waiting for a lock"):
        await link.run(Call(statement, (), len))


async def test_a_link_never_shows_the_password(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    proxy.go_away()
    link, thread_link = Link(proxy.dsn, name="test"), ThreadLink(proxy.dsn, name="test")
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1, port") as caught:
        await link.run(PID)
    with pytest.raises(DatabaseUnavailable, match="refused") as caught_too:
        thread_link.run(PID)
    for error in (caught.value, caught_too.value):
        for part in (error, error.__cause__):
            assert PASSWORD not in f"{part} {part!r}"
    assert PASSWORD not in caplog.text
    proxy.come_back()


async def test_a_link_connects_anew_after_close(link: Link) -> None:
    first = await link.run(PID)
    await link.close()
    await link.close()
    assert await link.run(PID) != first


@pytest.mark.parametrize("prepare", [True, False])
async def test_statements_are_prepared_unless_they_must_not_be(dsn: str, prepare: bool) -> None:
    count = scalar("select count(*) from pg_prepared_statements")
    link, thread_link = (kind(dsn, name="test", prepare=prepare) for kind in (Link, ThreadLink))
    for _ in range(10):
        await link.run(PID)
        thread_link.run(PID)
    assert bool(await link.run(count)) is bool(thread_link.run(count)) is prepare
    await link.close()
    thread_link.close()


async def test_the_connection_says_whose_it_is_and_notices_a_dead_peer(link: Link, dsn: str) -> None:
    name = await link.run(scalar("select current_setting('application_name')"))
    assert name == "test link"
    parameters = link._connection.info.get_parameters()  # type: ignore[union-attr]
    assert (parameters["tcp_user_timeout"], parameters["keepalives_idle"]) == ("10000", "5")
    named = ThreadLink(dsn + "&application_name=theirs&keepalives_idle=99", name="ours")
    assert named.run(scalar("select current_setting('application_name')")) == "theirs"
    assert named._connection.info.get_parameters()["keepalives_idle"] == "99"  # type: ignore[union-attr]
    named.close()


def test_pauses_grow_up_to_a_longest_and_are_spread() -> None:
    backoff = Backoff(first=1, longest=4)
    for most in (1, 2, 4, 4, 4):
        assert most / 2 <= backoff.pause() <= most
    backoff.reset()
    assert backoff.pause() <= 1
    assert len({Backoff().pause() for _ in range(20)}) > 1


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        link = ThreadLink(f"postgresql://x@127.0.0.1:{port}/x?connect_timeout=2", name="test")
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="timeout"):
            link.run(PID)
        assert time.monotonic() - began < bound(4)
