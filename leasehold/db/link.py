"""A worker's own connections: each belongs to one loop of the worker and is made again when it breaks."""

import asyncio
import random
from typing import TypeVar

import psycopg

from leasehold.db.call import Call
from leasehold.db.dial import Dialer
from leasehold.db.doubt import asettle, settle
from leasehold.db.sqlstates import meaning_of
from leasehold.errors import DatabaseUnavailable

T = TypeVar("T")


class Backoff:
    """Pauses between tries: they grow, and they are spread so that workers do not return all at once."""

    def __init__(self, *, first: float = 0.05, longest: float = 2.0) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self) -> float:
        """Seconds to wait before the next try."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 (spread, not secrecy)

    def reset(self) -> None:
        """The last try worked."""
        self._next = self._first


class Link:
    """One connection for coroutines that take turns."""

    def __init__(self, dsn: str, *, name: str, prepare: bool = True) -> None:
        self._dialer = Dialer(dsn, name=name, prepare=prepare)
        self._connection: psycopg.AsyncConnection | None = None
        self._turn = asyncio.Lock()

    async def run(self, call: Call[T]) -> T:
        """Run a call once. DatabaseUnavailable: it may or may not have happened."""
        async with self._turn:
            if self._connection is None:
                self._connection = await self._dialer.aconnect()
            try:
                cursor = await self._connection.execute(call.sql, call.args)
                rows = await cursor.fetchall()
                await asettle(self._connection)
                return call.read(rows)
            except psycopg.Error as error:
                meaning = meaning_of(error)
                if isinstance(meaning, DatabaseUnavailable):
                    await self._drop()
                if meaning is None:
                    raise
                raise meaning from error
            except asyncio.CancelledError:
                # The answer is still on its way; the next call must not read it as its own.
                await self._drop()
                raise

    async def insist(self, call: Call[T]) -> T:
        """Run a call that may be repeated, identically, until the database answers."""
        backoff = Backoff()
        while True:
            try:
                return await self.run(call)
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.pause())

    async def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        async with self._turn:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class ThreadLink:
    """One connection for one thread."""

    def __init__(self, dsn: str, *, name: str, prepare: bool = True) -> None:
        self._dialer = Dialer(dsn, name=name, prepare=prepare)
        self._connection: psycopg.Connection | None = None

    def run(self, call: Call[T]) -> T:
        """Run a call once. DatabaseUnavailable: it may or may not have happened."""
        if self._connection is None:
            self._connection = self._dialer.connect()
        try:
            rows = self._connection.execute(call.sql, call.args).fetchall()
            settle(self._connection)
            return call.read(rows)
        except psycopg.Error as error:
            meaning = meaning_of(error)
            if isinstance(meaning, DatabaseUnavailable):
                self.close()
            if meaning is None:
                raise
            raise meaning from error

    def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
