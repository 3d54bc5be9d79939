"""A worker's own connections: each belongs to one loop or thread of the worker and is opened again when it breaks.

Every call has a deadline: one that is not answered in time is given up together with its connection.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from psycopg.errors import Diagnostic

from leasehold._aio import run_blocking
from leasehold._clock import monotonic
from leasehold.db.call import Call
from leasehold.db.connections.dial import Dialer
from leasehold.db.connections.io import CallDeadline, Connection, ask, close
from leasehold.db.sqlstates import trouble_of
from leasehold.errors import DatabaseUnavailable, LockTimeout

T = TypeVar("T")

_LONGEST_PATIENCE = 10.0
"""Seconds for an answer, however long the leases are."""


class Reserve:
    """Descriptors for a worker's own connections where tasks leave none free; `used`: call it when one needed them."""

    def __init__(self, used: Callable[[], object]) -> None:
        self.used = used
        # For five connections, and what opening them takes, as for names, passwords and certificates.
        self._held = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]

    def free(self) -> bool:
        """Free them for other uses; return whether there were any."""
        held, self._held = self._held, []
        for number in held:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(number), Path(os.devnull).stat()):  # else a task has closed it
                    os.close(number)
        return bool(held)


class Backoff:
    """Pauses between tries: they grow, and they are spread so that workers do not return all at once."""

    def __init__(self, *, first: float = 0.05, longest: float = 2.0) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self) -> float:
        """Return the seconds to wait before the next try."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 (spread, not secrecy)

    def reset(self) -> None:
        """Start again with the first pause: the last try succeeded."""
        self._next = self._first


class _Line:
    """One connection, for one call at a time. Every error of a call is a LeaseholdError."""

    _blocking: bool

    def __init__(
        self, dsn: str, *, name: str, prepare: bool = True, patience: float = _LONGEST_PATIENCE,
        failed: Callable[[str], None] | None = None, reserve: Reserve | None = None,
    ) -> None:  # fmt: skip
        """`failed` receives, as JSON, each job that the database made fail in a call."""
        self._reserve = reserve
        self.unconnected_since: float | None = None
        """Since when no connection can be opened; None: the last try succeeded."""
        self._dialer = Dialer(dsn, name=name, prepare=prepare)
        self._connection: Connection | None = None
        self.patience = patience
        """Seconds that a call waits for its answer; doubled after each that was given up: the server may be slow."""
        self._given_up = 0
        self._turn = asyncio.Lock()
        self._failed = failed
        self._notices: list[str] = []

    async def _run(self, call: Call[T]) -> T:
        patience = min(self.patience * 2 ** min(self._given_up, 10), _LONGEST_PATIENCE)
        if self._connection is None:
            self._connection = await self._connect(monotonic() + max(patience, 2))  # psycopg takes no less
            self._connection.add_notice_handler(self._noticed)
        self._notices.clear()  # of the call before
        deadline = CallDeadline(self._connection, monotonic() + patience)
        try:
            with deadline:
                rows = await ask(self._connection, call.sql, call.args)
            self._given_up = 0
            for notice in self._notices:  # now that the call is committed
                self._failed(notice)  # type: ignore[misc] # there are none without it
            return call.read(rows)
        except Exception as error:
            self._dialer.route.learn(error)
            meaning = trouble_of(error, call.invalid)
            if deadline.passed:
                self._given_up += 1
                message = f"no answer from PostgreSQL within {patience:.1f} s; the connection was given up"
                meaning = DatabaseUnavailable(message)
            away = isinstance(meaning, DatabaseUnavailable) and not isinstance(meaning, LockTimeout)
            if self._connection.closed or away:
                await self._drop()
            raise meaning from error
        except BaseException:
            # Cancelled: the answer may still arrive, and the next call must not read it as its own.
            await self._drop()
            raise

    async def _connect(self, deadline: float) -> Connection:
        try:
            connection = await self._dialer.connect(deadline, blocking=self._blocking)
        except DatabaseUnavailable as error:
            if error.local and self._reserve is not None and self._reserve.free():
                connection = await self._connect(deadline)
                self._reserve.used()
                return connection
            self.unconnected_since = self.unconnected_since or monotonic()
            raise
        self.unconnected_since = None
        return connection

    def _noticed(self, notice: Diagnostic) -> None:
        ours = notice.message_primary == "leasehold: unreported failure"  # of the SQL function notice_failures
        if self._failed is not None and ours and notice.message_detail:
            self._notices.append(notice.message_detail)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await close(connection)


class Link(_Line):
    """One connection for coroutines that take turns."""

    _blocking = False

    async def run(self, call: Call[T]) -> T:
        """Run a call once. DatabaseUnavailable: it may or may not have happened."""
        async with self._turn:
            return await self._run(call)

    async def insist(
        self, call: Call[T], met: Callable[[DatabaseUnavailable], None] | None = None, *, locked: bool = True
    ) -> T:
        """Run a call that may be repeated, identically, until the database answers; `met` receives each failure.

        With `locked` False, a row that another session keeps locked is raised as LockTimeout."""
        backoff = Backoff()
        while True:
            try:
                return await self.run(call)
            except DatabaseUnavailable as error:
                if isinstance(error, LockTimeout) and not locked:
                    raise
                if met is not None:
                    met(error)
                await asyncio.sleep(backoff.pause())

    async def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        async with self._turn:
            await self._drop()


class ThreadLink(_Line):
    """One connection for one thread."""

    _blocking = True

    def run(self, call: Call[T]) -> T:
        """Run a call once. DatabaseUnavailable: it may or may not have happened."""
        return run_blocking(self._run(call))

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        run_blocking(self._drop())
