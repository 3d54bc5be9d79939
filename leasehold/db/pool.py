"""The connections of a program that enqueues and looks: one pool for threads, one for each event loop."""

import asyncio
import logging
import threading
import time
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from leasehold.db.call import Call
from leasehold.db.sqlstates import translate
from leasehold.db.store import Store
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.ids import IdMaker

T = TypeVar("T")

logger = logging.getLogger(__name__)
# Its warnings repeat, for every try, what the caller gets as an exception.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

_POOL_SIZE = 10
_WAIT_SECONDS = 10.0
"""How long a call may wait for a connection, repetitions included, before the caller is told."""


class Database:
    """Runs calls. A call that may be repeated is repeated while the database is away for a moment."""

    def __init__(self, dsn: str, *, schema: str, prepare: bool = True, wait: float = _WAIT_SECONDS) -> None:
        self.dsn = dsn
        self.store = Store(schema)
        self.ids = IdMaker()
        self._wait = wait
        self._options = {
            "autocommit": True,
            "prepare_threshold": 2 if prepare else None,
            "application_name": "leasehold",
        }
        self._guard = threading.Lock()
        self._pool: ConnectionPool[psycopg.Connection] | None = None
        self._async_pools: dict[asyncio.AbstractEventLoop, AsyncConnectionPool[psycopg.AsyncConnection]] = {}

    def run(self, call: Call[T]) -> T:
        """Run a call from a thread."""
        deadline = time.monotonic() + self._wait
        while True:
            try:
                with self._sync_pool().connection(timeout=max(0.1, deadline - time.monotonic())) as connection:
                    return call.read(connection.execute(call.sql, call.args).fetchall())
            except (psycopg.Error, PoolTimeout) as error:
                _raise_unless_repeatable(call, error, deadline)
            time.sleep(0.05)

    async def arun(self, call: Call[T]) -> T:
        """Run a call from a coroutine."""
        deadline = time.monotonic() + self._wait
        while True:
            try:
                pool = await self._async_pool()
                async with pool.connection(timeout=max(0.1, deadline - time.monotonic())) as connection:
                    cursor = await connection.execute(call.sql, call.args)
                    return call.read(await cursor.fetchall())
            except (psycopg.Error, PoolTimeout) as error:
                _raise_unless_repeatable(call, error, deadline)
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Close the threads' connections."""
        with self._guard:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        """Close this event loop's connections, and the threads'."""
        pool = self._async_pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()
        await asyncio.to_thread(self.close)

    def _sync_pool(self) -> ConnectionPool[psycopg.Connection]:
        with self._guard:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self.dsn, min_size=1, max_size=_POOL_SIZE, kwargs=self._options, open=True,
                    configure=self._follow_clock, check=None, name="leasehold",
                )  # fmt: skip
            return self._pool

    async def _async_pool(self) -> AsyncConnectionPool[psycopg.AsyncConnection]:
        loop = asyncio.get_running_loop()
        pool = self._async_pools.get(loop)
        if pool is None:
            for other in [known for known in self._async_pools if known.is_closed()]:
                del self._async_pools[other]
            pool = self._async_pools[loop] = AsyncConnectionPool(
                self.dsn, min_size=1, max_size=_POOL_SIZE, kwargs=self._options, open=False,
                configure=self._afollow_clock, name="leasehold",
            )  # fmt: skip
            await pool.open()
        return pool

    def _follow_clock(self, connection: psycopg.Connection) -> None:
        before = time.time_ns()
        row = connection.execute(self.store.clock().sql).fetchone()
        self._learn_clock(before, row)

    async def _afollow_clock(self, connection: psycopg.AsyncConnection) -> None:
        before = time.time_ns()
        row = await (await connection.execute(self.store.clock().sql)).fetchone()
        self._learn_clock(before, row)

    def _learn_clock(self, before: int, row: Any) -> None:
        middle = (before + time.time_ns()) // 2
        self.ids.follow(database_ns=row[0] * 1000, local_ns=middle)


def _raise_unless_repeatable(call: Call[Any], error: Exception, deadline: float) -> None:
    """Return when the call should be sent again; else raise what its error means."""
    meaning = meaning_of(error)
    if meaning is None:
        raise error
    if not (isinstance(meaning, DatabaseUnavailable) and call.repeatable and time.monotonic() < deadline):
        raise meaning from error


def meaning_of(error: BaseException) -> LeaseholdError | None:
    """What an error of this driver or its pool means."""
    if isinstance(error, PoolTimeout):
        return DatabaseUnavailable(f"no connection to PostgreSQL: {error}")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return DatabaseUnavailable(f"PostgreSQL is not available: {str(error).strip()}")
    return translate(error)
