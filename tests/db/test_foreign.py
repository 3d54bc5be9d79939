"""`connection=`: a job is part of the user's own transaction, whatever the user's driver."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from leasehold import App, ConfigError, IdempotencyConflict, Intent, InvalidJob, SchemaMismatch, Task
from leasehold.db.call import Call
from leasehold.errors import DatabaseUnavailable, InvalidArgument, LeaseholdError
from tests.db.drivers import DRIVERS, User, configure_django, sqlalchemy_url

UNICODE = "żółć 𝄞 日本 \" ' \\ %s :p1 $1 {}"

Look = psycopg.Connection[dict[str, Any]]


@pytest.fixture(scope="module")
def common(admin, migrated) -> Iterator[str]:
    """One database for all drivers: every test has a queue of its own in it."""
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)


@pytest.fixture
def look(common: str) -> Iterator[Look]:
    with psycopg.connect(common, autocommit=True, row_factory=dict_row, options="-c search_path=leasehold") as found:
        yield found


@pytest.fixture
def queue() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def app(common: str) -> Iterator[App]:
    with App(common) as app:
        yield app


@pytest.fixture
def task(app: App, queue: str) -> Task[Any, Any]:
    @app.task(kind="SAY", queue=queue)
    def say(words: str, n: int = 0) -> None: ...

    return say


@pytest.fixture(params=DRIVERS)
async def user(request: pytest.FixtureRequest, common: str) -> AsyncIterator[User]:
    async with DRIVERS[request.param](common) as user:
        yield user


def jobs(look: Look, queue: str) -> list[dict[str, Any]]:
    return look.execute("select * from jobs where queue = %s order by id", [queue]).fetchall()


async def test_a_rollback_leaves_no_job_and_a_commit_exactly_one(
    user: User, task: Task[Any, Any], look: Look, queue: str
) -> None:
    await user.enqueue(task, words="rolled back")
    assert await user.ask(f"select count(*) from leasehold.jobs where queue = '{queue}'") == 1
    assert jobs(look, queue) == []  # only the user's transaction sees it
    await user.rollback()
    assert jobs(look, queue) == []

    job = await user.enqueue(task, words="committed")
    assert jobs(look, queue) == []
    await user.commit()
    [row] = jobs(look, queue)
    assert (row["id"], row["payload"], row["state"]) == (job.id, {"words": "committed"}, "queued")
    assert job.kind == "SAY"
    # The connection is the user's still.
    assert await user.ask("select 41 + 1") == 42


async def test_every_option_arrives(user: User, task: Task[Any, Any], look: Look, queue: str) -> None:
    big = UNICODE + "ü" * 400_000
    exact = datetime(2077, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
    key = f"{queue} {UNICODE}"
    full = task.using(
        priority=-7, run_after=exact, idempotency_key=key, max_attempts=9, exclusive_key=UNICODE, tags=[UNICODE, "b"]
    )
    job = await user.enqueue(full, words=big, n=10**30)
    assert await user.enqueue(full, words="another") == job
    await user.enqueue(task.using(run_after=timedelta(hours=1, microseconds=7)), words="later")
    await user.commit()

    first, later = jobs(look, queue)
    assert first["id"] == job.id
    assert first["payload"] == {"words": big, "n": 10**30}
    assert (first["priority"], first["max_attempts"], first["run_at"]) == (-7, 9, exact)
    assert (first["idempotency_key"], first["exclusive_key"], first["tags"]) == (key, UNICODE, [UNICODE, "b"])
    assert first["state"] == later["state"] == "created"
    assert later["run_at"] - later["created_at"] == timedelta(hours=1, microseconds=7)
    assert (later["idempotency_key"], later["exclusive_key"], later["tags"]) == (None, None, None)


async def test_many_are_recorded_together_in_order(
    user: User, app: App, task: Task[Any, Any], look: Look, queue: str
) -> None:
    intents = [task.using(priority=n, tags=(UNICODE,)).intent(words=UNICODE, n=n) for n in range(20)]
    await user.enqueue_many(app, intents)
    await user.rollback()
    assert jobs(look, queue) == []
    made = await user.enqueue_many(app, intents)
    assert await user.enqueue_many(app, []) == []
    await user.commit()
    found = {row["id"]: row for row in jobs(look, queue)}
    assert [found[job.id]["payload"] for job in made] == [{"words": UNICODE, "n": n} for n in range(20)]
    assert [found[job.id]["priority"] for job in made] == list(range(20))


async def test_a_savepoint_undoes_only_what_came_after_it(
    user: User, task: Task[Any, Any], look: Look, queue: str
) -> None:
    kept = await user.enqueue(task, words="before")
    await user.savepoint()
    await user.enqueue(task, words="undone")
    await user.undo()
    after = await user.enqueue(task, words="after")
    await user.commit()
    assert [row["id"] for row in jobs(look, queue)] == [kept.id, after.id]


REFUSALS: list[tuple[type[LeaseholdError], str, str, str]] = [
    (InvalidArgument, "kind is empty", "leasehold.enqueue(kind => cast(%s as text))", ""),
    (InvalidArgument, "unknown field", "leasehold.enqueue_many(cast(cast(%s as text) as jsonb))", '[{"knd": 1}]'),
    (IdempotencyConflict, "'taken' belongs to job",
     "leasehold.enqueue('X', strict => true, idempotency_key => cast(%s as text))", "taken"),
    (InvalidArgument, "interval",
     "leasehold.enqueue('K', run_after => cast(cast(%s as text) as interval))", "1e30 years"),
    (SchemaMismatch, "leasehold migrate", "nowhere.enqueue(cast(%s as text))", "K"),
]  # fmt: skip


async def test_a_refusal_comes_as_our_exception_with_the_drivers_as_its_cause(user: User, look: Look) -> None:
    look.execute("select enqueue(kind => 'FIRST', idempotency_key => 'taken')")
    for expected, words, function, value in REFUSALS:
        with pytest.raises(expected, match=words) as caught:
            await user.send(Call(f"select {function}", (value,), len))
        assert type(caught.value) is expected
        cause = caught.value.__cause__
        assert cause is not None
        assert not isinstance(cause, LeaseholdError)
        # The rest is the user's: the transaction is broken, the connection is not.
        await user.rollback()
        assert await user.ask("select 1") == 1


async def test_an_error_that_is_not_ours_comes_as_the_driver_raised_it(user: User) -> None:
    with pytest.raises(Exception, match="nosuchcolumn") as caught:
        await user.send(Call("select nosuchcolumn", (), len))
    assert not isinstance(caught.value, LeaseholdError)


def test_an_atomic_block_of_django_takes_its_jobs_with_it(
    task: Task[Any, Any], look: Look, queue: str, common: str
) -> None:
    configure_django(common)
    from django.db import connection, connections, transaction  # noqa: PLC0415 (needs the settings)

    def leave(words: str, error: type[Exception] | None = None) -> None:
        with transaction.atomic():
            task.using(connection=connection).enqueue(words=words)
            if error:
                raise error

    connections["default"] = connections.create_connection("default")
    try:
        with pytest.raises(ZeroDivisionError):
            leave("rolled back", ZeroDivisionError)
        assert jobs(look, queue) == []
        with transaction.atomic():
            leave("committed")
            with pytest.raises(ZeroDivisionError):
                leave("inner", ZeroDivisionError)
            # The database's own object, and not the proxy, is as good.
            task.using(connection=connections["default"]).enqueue(words="too")
            assert jobs(look, queue) == []
        assert [row["payload"]["words"] for row in jobs(look, queue)] == ["committed", "too"]
    finally:
        connections["default"].close()


def test_an_app_with_a_current_connection_joins_an_atomic_block_by_itself(look: Look, queue: str, common: str) -> None:
    configure_django(common)
    from django.db import connection, connections, transaction  # noqa: PLC0415 (needs the settings)

    connections["default"] = connections.create_connection("default")
    with App(common, connection=lambda: connection) as app:

        @app.task(kind="SAY", queue=queue)
        def say(words: str) -> None: ...

        def leave(error: type[Exception]) -> None:
            with transaction.atomic():
                say.enqueue(words="rolled back")
                app.enqueue_many([say.intent(words="rolled back")])
                say.using(connection=None).enqueue(words="meant to stay")
                raise error

        try:
            with pytest.raises(ZeroDivisionError):
                leave(ZeroDivisionError)
            say.enqueue(words="at once")
            asyncio.run(say.aenqueue(words="from a coroutine"))  # which is in no atomic(), and cannot wait for Django's
            words = sorted(row["payload"]["words"] for row in jobs(look, queue))
            assert words == ["at once", "from a coroutine", "meant to stay"]
        finally:
            connections["default"].close()


def test_a_session_of_sqlalchemy_can_be_the_current_connection_and_none_means_our_own(
    look: Look, queue: str, common: str
) -> None:
    current: ContextVar[Session | None] = ContextVar("current", default=None)
    engine = create_engine(sqlalchemy_url(common, "psycopg"), poolclass=NullPool)
    with App(common, connection=current.get) as app:

        @app.task(kind="SAY", queue=queue)
        def say(words: str) -> None: ...

        say.enqueue(words="without a session")
        with Session(engine) as session:
            current.set(session)
            say.enqueue(words="rolled back")
            session.rollback()
            say.enqueue(words="committed")
            session.commit()
            current.set(None)
    assert [row["payload"]["words"] for row in jobs(look, queue)] == ["without a session", "committed"]


def test_a_job_enqueued_beside_an_atomic_block_warns_where_it_was_written(
    task: Task[Any, Any], app: App, common: str
) -> None:
    configure_django(common)
    from django.db import connection, connections, transaction  # noqa: PLC0415 (needs the settings)

    connections["default"] = connections.create_connection("default")
    try:
        with transaction.atomic():
            with pytest.warns(UserWarning, match=r"outside the transaction of this atomic\(\) block") as warned:
                task.enqueue(words="beside")
            assert warned[0].filename == __file__
            with pytest.warns(UserWarning, match="App\\(connection=lambda: django.db.connection\\)"):
                app.enqueue_many([task.intent(words="beside")])
            task.using(connection=connection).enqueue(words="inside")  # these do not warn
            task.using(connection=None).enqueue(words="meant")
        task.enqueue(words="no block")
    finally:
        connections["default"].close()


# -- what cannot work


def blocking(app: App, task: Task[Any, Any], connection: object) -> None:
    task.using(connection=connection).enqueue(words="x")


def blocking_many(app: App, task: Task[Any, Any], connection: object) -> None:
    app.enqueue_many([task.intent(words="x")], connection=connection)


async def coroutine(app: App, task: Task[Any, Any], connection: object) -> None:
    await task.using(connection=connection).aenqueue(words="x")


async def coroutine_many(app: App, task: Task[Any, Any], connection: object) -> None:
    await app.aenqueue_many([task.intent(words="x")], connection=connection)


async def test_a_connection_of_the_wrong_colour_is_refused_with_the_right_call(
    user: User, app: App, task: Task[Any, Any], look: Look, queue: str
) -> None:
    if user.is_async:
        with pytest.raises(ConfigError, match=r"cannot wait for \(use aenqueue\(\.\.\.\) or aenqueue_many"):
            blocking(app, task, user.connection)
        with pytest.raises(ConfigError, match="use aenqueue"):
            blocking_many(app, task, user.connection)
    else:
        with pytest.raises(ConfigError, match=r"cannot wait for \(use enqueue\(\.\.\.\) or enqueue_many"):
            await coroutine(app, task, user.connection)
        with pytest.raises(ConfigError, match="use enqueue"):
            await coroutine_many(app, task, user.connection)
    await user.commit()
    assert jobs(look, queue) == []


async def test_what_is_no_connection_is_refused_by_name(app: App, task: Task[Any, Any], common: str) -> None:
    engine = create_engine(sqlalchemy_url(common, "psycopg"))
    for stranger in (object(), "postgresql://", engine, psycopg, 0):
        name = f"{type(stranger).__module__}.{type(stranger).__qualname__}".replace(".", r"\.")
        with pytest.raises(ConfigError, match=rf"is a {name}, which is no connection that is known \(known: .*django"):
            blocking(app, task, stranger)
        with pytest.raises(ConfigError, match="known: a Connection"):
            await coroutine(app, task, stranger)


async def test_an_intent_does_not_lose_its_connection_silently(task: Task[Any, Any], common: str) -> None:
    with psycopg.connect(common) as connection, pytest.raises(ConfigError, match="give connection= to enqueue_many"):
        task.using(connection=connection).intent(words="x")


async def test_what_the_database_would_refuse_is_refused_before_it_spoils_the_transaction(
    user: User, app: App, task: Task[Any, Any]
) -> None:
    await user.ask("select 1")
    with pytest.raises(InvalidJob, match="nothing was recorded"):
        await user.enqueue(task.using(priority=40_000), words="x")
    await user.ask("select 1")
    with pytest.raises(InvalidJob):
        await user.enqueue_many(app, [Intent(kind="", payload="{}")])
    await user.ask("select 1")


async def test_a_broken_connection_of_the_user_raises_and_is_not_replaced(
    user: User, task: Task[Any, Any], look: Look, queue: str
) -> None:
    pid = await user.ask("select pg_backend_pid()")
    look.execute("select pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises((DatabaseUnavailable, asyncpg.InterfaceError)):
        await user.enqueue(task, words="x")
    assert jobs(look, queue) == []
