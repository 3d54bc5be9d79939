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

Execute = Callable[[Any, str, tuple[object, ...]], Awaitable[Sequence[Row]]]


async def execute_on(connection: object, call: Call[T], *, blocking: bool) -> T:
    """Run a call on a user's connection, which has to be a blocking or an asynchronous one."""
    execute = _lookup(connection, _BLOCKING if blocking else _ASYNC)
    if execute is None:
        raise _refusal(connection, blocking=blocking)
    try:
        return call.read(await execute(connection, call.sql, call.args))
    except Exception as error:
        meaning = translate(error, call.invalid)
        if meaning is None:
            raise
        raise meaning from error


def is_idle_django(connection: object) -> bool:
    """Return whether it is Django's, outside of atomic(): a coroutine cannot use it, and there is no transaction."""
    return _lookup(connection, _BLOCKING) is _django and not getattr(connection, "in_atomic_block", False)


async def _psycopg(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    # Not connection.cursor(): the user's cursor factory may expect other placeholders than %s, or return other rows.
    if isinstance(connection, psycopg.Connection):
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(sql, args).fetchall()
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as awaited:
        await awaited.execute(sql, args)
        return await awaited.fetchall()


async def _asyncpg(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    rows = await connection.fetch(_numbered(sql, "${}"), *args)
    return [tuple(row) for row in rows]


async def _sqlalchemy(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    from sqlalchemy import text  # noqa: PLC0415 (there is a SQLAlchemy connection, so it is installed)

    values = {f"p{n}": value for n, value in enumerate(args, start=1)}
    result = connection.execute(text(_numbered(sql, ":p{}")), values)
    if isinstance(result, Awaitable):
        result = await result
    return result.all()  # type: ignore[no-any-return]


async def _django(connection: Any, sql: str, args: tuple[object, ...]) -> Sequence[Row]:
    with connection.cursor() as cursor:
        cursor.execute(sql, args)
        return cursor.fetchall()  # type: ignore[no-any-return]


_BLOCKING: dict[str, Execute] = {
    "psycopg.Connection": _psycopg,
    "sqlalchemy.orm.session.Session": _sqlalchemy,
    "sqlalchemy.orm.scoping.scoped_session": _sqlalchemy,
    "sqlalchemy.engine.base.Connection": _sqlalchemy,
    "django.utils.connection.ConnectionProxy": _django,
    "django.db.backends.base.base.BaseDatabaseWrapper": _django,
}

_ASYNC: dict[str, Execute] = {
    "psycopg.AsyncConnection": _psycopg,
    "asyncpg.connection.Connection": _asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _asyncpg,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _sqlalchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _sqlalchemy,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _sqlalchemy,
}


def _lookup(connection: object, known: dict[str, Execute]) -> Execute | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(connection).__mro__)
    return next((known[name] for name in names if name in known), None)


def _refusal(connection: object, *, blocking: bool) -> ConfigError:
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if _lookup(connection, _ASYNC if blocking else _BLOCKING) is not None:
        use = "aenqueue(...) or aenqueue_many(...)" if blocking else "enqueue(...) or enqueue_many(...)"
        return ConfigError(f"connection= is a {name}, which this call cannot wait for", hint=f"use {use}")
    return ConfigError(f"connection= is a {name}, which is no connection that is known", hint=f"known: {_KINDS}")


def _numbered(sql: str, place: str) -> str:
    head, *rest = sql.split("%s")
    return head + "".join(place.format(n) + part for n, part in enumerate(rest, start=1))
