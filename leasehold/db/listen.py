"""LISTEN as a hint that there is work. Losing a hint costs time, never a job: polling finds it."""

import asyncio
import logging
from collections.abc import Callable

import psycopg
from psycopg import sql

from leasehold.db.link import KEEPALIVE, Backoff

logger = logging.getLogger(__name__)

DUE = "@due"
"""The hint for jobs that wait for their time; every other hint is the name of a queue, or empty: look everywhere."""


class Listener:
    """Calls `hint` whenever a queue of the schema is said to have work; reconnects for ever."""

    def __init__(self, dsn: str, *, schema: str, name: str, hint: Callable[[str], None]) -> None:
        self._dsn = dsn
        self._schema = schema
        self._name = name
        self._hint = hint
        self.listening = asyncio.Event()
        """Set while hints can arrive."""

    async def run(self) -> None:
        """Listen until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await self._listen(backoff)
            except psycopg.Error as error:
                logger.debug("not listening: %s", error)
            finally:
                self.listening.clear()
            await asyncio.sleep(backoff.pause())

    async def _listen(self, backoff: Backoff) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, application_name=self._name, **KEEPALIVE
        )
        async with connection:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._schema)))
            backoff.reset()
            self.listening.set()
            self._hint("")  # what came while nobody listened was missed
            async for notification in connection.notifies():
                self._hint(notification.payload)
