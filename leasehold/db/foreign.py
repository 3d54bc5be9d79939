"""Calls inside *your* transaction: on a connection that belongs to the user's own code.

Nothing here commits, rolls back or closes anything. The other libraries are recognised by name, so that none of
them is imported unless the user has done so.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from leasehold.db.call import Call, Row
from leasehold.db.sqlstates import translate
from leasehold.errors import ConfigError

T = TypeVar("T")

_KINDS = (
    "a Connection or AsyncConnection of psycopg, a Connection of asyncpg, a Session, AsyncSession, Connection or "
    "AsyncConnection of SQLAlchemy, django.db.connection"
)

Run = Callable[[Any, str, tuple[object, ...]], Sequence[Row]]
AsyncRun = Callable[[Any, str, tuple[object, ...]], Awaitable[Sequence[Row]]]


def run_on(connection: object, call: Call[T]) -> T:
    """Run a call on a user's connection, from a thread."""
    run = _lookup(connection, _SYNC)
    if run is None:
        raise _refusal(connection, other=_ASYNC, use="aenqueue(...) or aenqueue_many(...)")
    try:
        return call.read(run(connection, call.sql, call.args))
    except Exception as error:
        meaning = translate(error)
        if meaning is None:
            raise
        raise meaning from error


async def arun_on(connection: object, call: Call[T]) -> T:
    """Run a call on a user's connection, from a coroutine."""
    run = _lookup(connection, _ASYNC)
    if run is None:
        raise _refusal(connection, other=_SYNC, use="enqueue(...) or enqueue_many(...)")
    try:
        return call.read(await run(connection, call.sql, call.args))
    except Exception as error:
        meaning = translate(error)
        if meaning is None:
            raise
        raise meaning from error


def is_idle_django(connection: object) -> bool:
    """Whether it is Django's and in no atomic() block: a coroutine has no use for it, and no transaction to join."""
    return _lookup(connection, _SYNC) is _django and not getattr(connection, "in_atomic_block", False)


def _psycopg(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    # Not connection.cursor(): the user's cursor factory may know other places than %s, or give other rows.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(sql, args).fetchall()


async def _apsycopg(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(sql, args)
        return await cursor.fetchall()


async def _asyncpg(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    rows = await connection.fetch(_numbered(sql, "${}"), *args)
    return [tuple(row) for row in rows]


def _sqlalchemy(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    return connection.execute(*_text(sql, args)).all()  # type: ignore[no-any-return]


async def _asqlalchemy(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    return (await connection.execute(*_text(sql, args))).all()  # type: ignore[no-any-return]


def _django(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    with connection.cursor() as cursor:
        cursor.execute(sql, args)
        return cursor.fetchall()  # type: ignore[no-any-return]


_SYNC: dict[str, Run] = {
    "psycopg.Connection": _psycopg,
    "sqlalchemy.orm.session.Session": _sqlalchemy,
    "sqlalchemy.orm.scoping.scoped_session": _sqlalchemy,
    "sqlalchemy.engine.base.Connection": _sqlalchemy,
    "django.utils.connection.ConnectionProxy": _django,
    "django.db.backends.base.base.BaseDatabaseWrapper": _django,
}

_ASYNC: dict[str, AsyncRun] = {
    "psycopg.AsyncConnection": _apsycopg,
    "asyncpg.connection.Connection": _asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _asyncpg,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _asqlalchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _asqlalchemy,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _asqlalchemy,
}


def _lookup(connection: object, known: dict[str, Any]) -> Any:
    for cls in type(connection).__mro__:
        found = known.get(f"{cls.__module__}.{cls.__qualname__}")
        if found is not None:
            return found
    return None


def _refusal(connection: object, *, other: dict[str, Any], use: str) -> ConfigError:
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if _lookup(connection, other) is not None:
        return ConfigError(f"connection= is a {name}, which this call cannot wait for", hint=f"use {use}")
    return ConfigError(f"connection= is a {name}, which is no connection that is known", hint=f"known: {_KINDS}")


def _numbered(sql: str, place: str) -> str:
    head, *rest = sql.split("%s")
    return head + "".join(place.format(n) + part for n, part in enumerate(rest, start=1))


def _text(sql: str, args: tuple[object, ...]) -> tuple[Any, dict[str, object]]:
    from sqlalchemy import text  # noqa: PLC0415 (there is a SQLAlchemy connection, so it is installed)

    return text(_numbered(sql, ":p{}")), {f"p{n}": value for n, value in enumerate(args, start=1)}
