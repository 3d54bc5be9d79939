"""LISTEN as a hint that there is work. Losing a hint costs time, never a job: polling finds it."""

import asyncio
import logging
import time
from collections.abc import Callable

import psycopg
from psycopg import sql

from leasehold.db.cut import CutOff, shut
from leasehold.db.dial import Dialer
from leasehold.db.link import Backoff
from leasehold.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds for a new connection, and for the answer to LISTEN."""

PROBE = "@probe:"
"""How a hint begins that a worker sends to itself."""


class Listener:
    """Calls `hint` whenever a queue of the schema is said to have work; reconnects for ever."""

    def __init__(self, dsn: str, *, schema: str, name: str, hint: Callable[[str], None]) -> None:
        self._dialer = Dialer(dsn, name=name)
        self._schema = schema
        self._hint = hint
        self._expected: dict[str, asyncio.Future[None]] = {}
        self._connection: psycopg.AsyncConnection | None = None
        self.listening = asyncio.Event()
        """Set while hints can arrive."""
        self.renewed = asyncio.Event()
        """Set at each new connection, for whoever clears it."""

    def expect(self, name: str) -> "asyncio.Future[None]":
        """A future that is done when this probe arrives."""
        arrival = asyncio.get_running_loop().create_future()
        self._expected[name] = arrival
        arrival.add_done_callback(lambda _: self._expected.pop(name, None))
        return arrival

    async def run(self) -> None:
        """Listen until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await self._listen(backoff)
            except (psycopg.Error, DatabaseUnavailable) as error:
                logger.debug("not listening: %s", error)
            finally:
                self.listening.clear()
            await asyncio.sleep(backoff.pause())

    async def _listen(self, backoff: Backoff) -> None:
        async with await self._dialer.aconnect(time.monotonic() + _PATIENCE) as connection:
            with CutOff(connection, time.monotonic() + _PATIENCE):
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._schema)))
            self._connection = connection
            backoff.reset()
            self.listening.set()
            self.renewed.set()
            self._hint("")  # what came while nobody listened was missed
            try:
                async for notification in connection.notifies():
                    self._take(notification.payload)
            finally:
                self._connection = None

    def drop(self) -> None:
        """The connection brings nothing any more, though it looks alive: make another."""
        if self._connection is not None:
            shut(self._connection)

    def _take(self, name: str) -> None:
        if not name.startswith(PROBE):
            self._hint(name)
        elif (arrival := self._expected.get(name)) is not None and not arrival.done():
            arrival.set_result(None)
