"""Connections of users' own code, of every kind that `connection=` takes, spoken to in one way."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import asyncpg
import django
import psycopg
from django.conf import settings as django_settings
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import class_row, dict_row
from sqlalchemy import URL, Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from leasehold import Intent, Job, Task
from leasehold._aio import run_blocking
from leasehold.app import App
from leasehold.db.call import Call
from leasehold.db.connections.foreign import execute_on


@dataclass
class User:
    """A user's connection, with a transaction begun on it, and the user's own ways to end that."""

    connection: Any
    is_async: bool
    run: Callable[..., Awaitable[Any]]
    """Calls a function where the connection lives, and waits for it if it is a coroutine."""
    select: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    savepoint: Callable[[], Any]
    undo: Callable[[], Any]
    """Roll back to the savepoint."""

    async def enqueue(self, task: Task[Any, Any], **arguments: Any) -> Job[Any]:
        task = task.using(connection=self.connection)
        return await self.run((task.aenqueue if self.is_async else task.enqueue), **arguments)

    async def enqueue_many(self, app: App, intents: list[Intent]) -> list[Job[Any]]:
        many = app.aenqueue_many if self.is_async else app.enqueue_many
        return await self.run(many, intents, connection=self.connection)

    async def send(self, call: Call[Any]) -> Any:
        if self.is_async:
            return await self.run(execute_on, self.connection, call, blocking=False)
        return await self.run(lambda: run_blocking(execute_on(self.connection, call, blocking=True)))

    async def ask(self, sql: str) -> Any:
        return await self.run(self.select, sql)


async def _here(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await function(*args, **kwargs)


@asynccontextmanager
async def _thread() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """One thread for all that a blocking connection does: Django insists on it, and on a thread without a loop."""
    with ThreadPoolExecutor(1) as executor:

        async def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(executor, lambda: function(*args, **kwargs))

        yield run


# -- psycopg


def _first(row: Any) -> Any:
    return next(iter(row.values())) if isinstance(row, dict) else row[0]


def _psycopg(**options: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[User]:
        async with _thread() as run:
            with psycopg.connect(dsn, **options) as connection:
                execute = psycopg.Cursor(connection).execute
                yield User(
                    connection, False, run,
                    select=lambda sql: _first(psycopg.Cursor(connection).execute(sql).fetchone()),
                    commit=lambda: run(connection.commit), rollback=lambda: run(connection.rollback),
                    savepoint=lambda: run(execute, "savepoint s"), undo=lambda: run(execute, "rollback to s"),
                )  # fmt: skip

    return opened


def _psycopg_async(**options: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[User]:
        async with await psycopg.AsyncConnection.connect(dsn, **options) as connection:

            async def select(sql: str) -> Any:
                cursor = psycopg.AsyncCursor(connection)
                return _first(await (await cursor.execute(sql)).fetchone())

            execute = psycopg.AsyncCursor(connection).execute
            yield User(
                connection, True, _here, select=select, commit=connection.commit, rollback=connection.rollback,
                savepoint=lambda: execute("savepoint s"), undo=lambda: execute("rollback to s"),
            )  # fmt: skip

    return opened


# -- asyncpg


async def _asyncpg_user(connection: Any) -> User:
    await connection.execute("begin")
    return User(
        connection, True, _here, select=connection.fetchval,
        commit=lambda: connection.execute("commit; begin"), rollback=lambda: connection.execute("rollback; begin"),
        savepoint=lambda: connection.execute("savepoint s"), undo=lambda: connection.execute("rollback to s"),
    )  # fmt: skip


@asynccontextmanager
async def _asyncpg(dsn: str) -> AsyncIterator[User]:
    connection = await asyncpg.connect(dsn)
    try:
        yield await _asyncpg_user(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_json(dsn: str) -> AsyncIterator[User]:
    """A user whose json and jsonb come and go as Python objects."""
    connection = await asyncpg.connect(dsn)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    try:
        yield await _asyncpg_user(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(dsn: str) -> AsyncIterator[User]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield await _asyncpg_user(connection)


# -- SQLAlchemy


def sqlalchemy_url(dsn: str, driver: str) -> URL:
    parts = conninfo_to_dict(dsn)
    return URL.create(
        f"postgresql+{driver}", username=str(parts["user"]), password=parts.get("password"), database=parts["dbname"],
        query={"host": str(parts["host"]), "port": str(parts["port"])},
    )  # fmt: skip


def _sqlalchemy(make: Callable[[Engine], Any]) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[User]:
        async with _thread() as run:
            engine = create_engine(sqlalchemy_url(dsn, "psycopg"), poolclass=NullPool)
            with closing(await run(make, engine)) as connection:
                nested: list[Any] = []
                yield User(
                    connection, False, run, select=lambda sql: connection.execute(text(sql)).scalar(),
                    commit=lambda: run(connection.commit), rollback=lambda: run(connection.rollback),
                    savepoint=lambda: run(lambda: nested.append(connection.begin_nested())),
                    undo=lambda: run(lambda: nested.pop().rollback()),
                )  # fmt: skip

    return opened


def _sqlalchemy_async(driver: str, kind: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[User]:
        engine = create_async_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        async with AsyncExitStack() as stack:
            connection: Any
            if kind == "connection":
                connection = await stack.enter_async_context(engine.connect())
            elif kind == "scoped":
                connection = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: dsn)
                stack.push_async_callback(connection.remove)
            else:
                connection = await stack.enter_async_context(AsyncSession(engine))
            nested: list[Any] = []

            async def select(sql: str) -> Any:
                return (await connection.execute(text(sql))).scalar()

            async def savepoint() -> None:
                nested.append(await connection.begin_nested())

            yield User(
                connection, True, _here, select=select, commit=connection.commit, rollback=connection.rollback,
                savepoint=savepoint, undo=lambda: nested.pop().rollback(),
            )  # fmt: skip

    return opened


# -- Django


def django_database(dsn: str) -> dict[str, Any]:
    parts = conninfo_to_dict(dsn)
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"],
        "PASSWORD": parts.get("password") or "", "HOST": parts["host"], "PORT": str(parts["port"]),
    }  # fmt: skip


def configure_django(dsn: str) -> None:
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": django_database(dsn)}, USE_TZ=True)
        django.setup()
    from django.db import connections  # noqa: PLC0415 (needs the settings)

    connections.settings["default"].update(django_database(dsn))


@asynccontextmanager
async def _django(dsn: str) -> AsyncIterator[User]:
    configure_django(dsn)
    from django.db import connection, connections, transaction  # noqa: PLC0415 (needs the settings)

    def begin() -> None:
        connections["default"] = connections.create_connection("default")
        transaction.set_autocommit(False)

    def end(how: Callable[[], None]) -> None:
        how()
        transaction.set_autocommit(True)
        transaction.set_autocommit(False)

    def close() -> None:
        connections["default"].close()  # this thread's

    def select(sql: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    saved: list[str] = []
    async with _thread() as run:
        await run(begin)
        try:
            yield User(
                connection, False, run, select=select,
                commit=lambda: run(end, transaction.commit), rollback=lambda: run(end, transaction.rollback),
                savepoint=lambda: run(lambda: saved.append(transaction.savepoint())),
                undo=lambda: run(lambda: transaction.savepoint_rollback(saved.pop())),
            )  # fmt: skip
        finally:
            await run(close)


def _named(**columns: Any) -> dict[str, Any]:
    return columns


DRIVERS: dict[str, Callable[[str], Any]] = {
    "psycopg": _psycopg(),
    "psycopg-dict-rows": _psycopg(row_factory=dict_row),
    "psycopg-class-rows": _psycopg(row_factory=class_row(_named)),
    "psycopg-raw-cursor": _psycopg(cursor_factory=psycopg.RawCursor),
    "psycopg-client-cursor": _psycopg(cursor_factory=psycopg.ClientCursor),
    "psycopg-async": _psycopg_async(),
    "psycopg-async-dict-rows": _psycopg_async(row_factory=dict_row),
    "psycopg-async-raw-cursor": _psycopg_async(cursor_factory=psycopg.AsyncRawCursor),
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "asyncpg-json-codec": _asyncpg_json,
    "sqlalchemy-connection": _sqlalchemy(lambda engine: engine.connect()),
    "sqlalchemy-session": _sqlalchemy(Session),
    "sqlalchemy-scoped-session": _sqlalchemy(lambda engine: scoped_session(sessionmaker(engine))),
    "sqlalchemy-async-connection-asyncpg": _sqlalchemy_async("asyncpg", "connection"),
    "sqlalchemy-async-connection-psycopg": _sqlalchemy_async("psycopg", "connection"),
    "sqlalchemy-async-session-asyncpg": _sqlalchemy_async("asyncpg", "session"),
    "sqlalchemy-async-session-psycopg": _sqlalchemy_async("psycopg", "session"),
    "sqlalchemy-async-scoped-session": _sqlalchemy_async("asyncpg", "scoped"),
    "django": _django,
}
