"""Sends the calls of a series through one connection: all of them without waiting, in one transaction."""

from itertools import chain
from typing import TypeVar

import psycopg

from leasehold.db.call import Series

T = TypeVar("T")


def send(connection: psycopg.Connection, series: Series[T]) -> list[T]:
    """Send and read. Whatever goes wrong, in making a call too, nothing of it stays."""
    calls = iter(series)
    first = next(calls, None)
    if first is None:
        return []
    if series.alone:
        return [first.read(connection.execute(first.sql, first.args).fetchall())]
    with connection.pipeline():
        # Said in so many words: without it the end of the pipeline would commit what had been sent when making the
        # next call failed.
        connection.execute("begin")
        try:
            sent = [(call, connection.execute(call.sql, call.args)) for call in chain([first], calls)]
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")
    return [call.read(cursor.fetchall()) for call, cursor in sent]


async def asend(connection: psycopg.AsyncConnection, series: Series[T]) -> list[T]:
    """The same, from a coroutine."""
    calls = iter(series)
    first = next(calls, None)
    if first is None:
        return []
    if series.alone:
        cursor = await connection.execute(first.sql, first.args)
        return [first.read(await cursor.fetchall())]
    async with connection.pipeline():
        await connection.execute("begin")
        try:
            sent = [(call, await connection.execute(call.sql, call.args)) for call in chain([first], calls)]
        except BaseException:
            await connection.execute("rollback")
            raise
        await connection.execute("commit")
    return [call.read(await cursor.fetchall()) for call, cursor in sent]
