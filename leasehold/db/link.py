"""A worker's own connections: each belongs to one loop of the worker and is made again when it breaks.

No call waits without a bound: one that is not answered in time is given up together with its connection.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from leasehold.db.call import Call
from leasehold.db.cut import CutOff, ThreadCutOff
from leasehold.db.dial import Dialer
from leasehold.db.doubt import asettle, settle
from leasehold.db.sqlstates import trouble_of
from leasehold.errors import DatabaseUnavailable, LeaseholdError, LockTimeout

T = TypeVar("T")

_LONGEST_PATIENCE = 10.0
"""Seconds for an answer, however long the leases are."""

_CONNECT = 2.0
"""Seconds for a new connection at least: psycopg takes no less."""


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


class Patience:
    """How long an answer is waited for. It doubles with each call that was given up: the server may only be slow."""

    def __init__(self, seconds: float = _LONGEST_PATIENCE) -> None:
        self.seconds = min(seconds, _LONGEST_PATIENCE)
        """For the first try."""
        self._factor = 1.0

    def now(self) -> float:
        """Seconds that the next call gets."""
        return min(self.seconds * self._factor, _LONGEST_PATIENCE)

    def given_up(self, waited: float) -> DatabaseUnavailable:
        """A call was not answered in time."""
        self._factor *= 2
        return DatabaseUnavailable(f"no answer from PostgreSQL within {waited:.1f} s; the connection was given up")

    def answered(self) -> None:
        """A call was answered."""
        self._factor = 1.0


class Link:
    """One connection for coroutines that take turns. Whatever goes wrong with a call is a LeaseholdError."""

    def __init__(self, dsn: str, *, name: str, prepare: bool = True, patience: float = _LONGEST_PATIENCE) -> None:
        self._dialer = Dialer(dsn, name=name, prepare=prepare)
        self._connection: psycopg.AsyncConnection | None = None
        self._turn = asyncio.Lock()
        self._patience = Patience(patience)

    async def run(self, call: Call[T]) -> T:
        """Run a call once. DatabaseUnavailable: it may or may not have happened."""
        async with self._turn:
            patience = self._patience.now()
            if self._connection is None:
                self._connection = await self._dialer.aconnect(time.monotonic() + max(patience, _CONNECT))
            cut = CutOff(self._connection, time.monotonic() + patience)
            try:
                with cut:
                    cursor = await self._connection.execute(call.sql, call.args)
                    rows = await cursor.fetchall()
                    await asettle(self._connection)
                self._patience.answered()
                return call.read(rows)
            except asyncio.CancelledError:
                # The answer is still on its way; the next call must not read it as its own.
                await self._drop()
                raise
            except Exception as error:
                self._dialer.way.learn(error)
                meaning = self._patience.given_up(patience) if cut.fired else trouble_of(error)
                if _is_unusable(self._connection, meaning):
                    await self._drop()
                raise meaning from error

    async def insist(self, call: Call[T], met: Callable[[DatabaseUnavailable], None] | None = None) -> T:
        """Run a call that may be repeated, identically, until the database answers; `met` hears of each failure."""
        backoff = Backoff()
        while True:
            try:
                return await self.run(call)
            except DatabaseUnavailable as error:
                if met is not None:
                    met(error)
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
    """One connection for one thread. Whatever goes wrong with a call is a LeaseholdError."""

    def __init__(self, dsn: str, *, name: str, prepare: bool = True) -> None:
        self._dialer = Dialer(dsn, name=name, prepare=prepare)
        self._connection: psycopg.Connection | None = None
        self.patience = Patience()
        """How long an answer is waited for."""

    def run(self, call: Call[T]) -> T:
        """Run a call once. DatabaseUnavailable: it may or may not have happened."""
        patience = self.patience.now()
        if self._connection is None:
            self._connection = self._dialer.connect(time.monotonic() + max(patience, _CONNECT))
        cut = ThreadCutOff(self._connection, time.monotonic() + patience)
        try:
            with cut:
                rows = self._connection.execute(call.sql, call.args).fetchall()
                settle(self._connection)
            self.patience.answered()
            return call.read(rows)
        except Exception as error:
            self._dialer.way.learn(error)
            meaning = self.patience.given_up(patience) if cut.fired else trouble_of(error)
            if _is_unusable(self._connection, meaning):
                self.close()
            raise meaning from error

    def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _is_unusable(connection: "psycopg.Connection | psycopg.AsyncConnection | None", meaning: LeaseholdError) -> bool:
    if connection is None or connection.closed:
        return True
    return isinstance(meaning, DatabaseUnavailable) and not isinstance(meaning, LockTimeout)
