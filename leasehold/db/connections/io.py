"""Blocking and asynchronous input and output on one connection: the one place where threads and coroutines differ.

Everything above is written once, as coroutines. Where no object decides it, `blocking` says which way to wait. A
blocking coroutine never suspends, so `run_blocking` runs it in a thread that has no event loop.
"""

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.errors import Diagnostic

from leasehold._clock import monotonic
from leasehold._os_process import renew_in_forks, restore_standard
from leasehold.db.call import Series

T = TypeVar("T")

Connection: TypeAlias = psycopg.Connection | psycopg.AsyncConnection
Semaphore: TypeAlias = threading.Semaphore | asyncio.Semaphore


async def acquire(semaphore: Semaphore, deadline: float) -> bool:
    """Acquire a semaphore before the deadline, by the monotonic clock; False if that was not possible."""
    if isinstance(semaphore, threading.Semaphore):
        return semaphore.acquire(timeout=max(0.0, deadline - monotonic()))
    if not semaphore.locked():
        return await semaphore.acquire()  # at once: without the cost of a timer
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - monotonic()):
            return await semaphore.acquire()
    except TimeoutError:
        return False


async def connect(options: dict[str, Any], *, blocking: bool) -> Connection:
    """Open a connection."""
    restore_standard()
    if blocking:
        connection: Connection = psycopg.connect(**options)
    else:
        connection = await psycopg.AsyncConnection.connect(**options)
    _note_unreplicated(connection)
    return connection


async def close(connection: Connection) -> None:
    """Close a connection."""
    if isinstance(connection, psycopg.Connection):
        connection.close()
    else:
        await connection.close()


async def ask(
    connection: Connection, sql: str, args: tuple[object, ...] = (), *, prepare: bool | None = None
) -> list[tuple[Any, ...]]:
    """Send a statement and return its rows. OperationalError: whether it took effect is unknown."""
    if isinstance(connection, psycopg.Connection):
        rows = connection.execute(sql, args, prepare=prepare).fetchall()
    else:
        rows = await (await connection.execute(sql, args, prepare=prepare)).fetchall()
    if _unreplicated:
        await _replicate(connection)
    return rows


# -- many calls in one transaction


async def ask_series(connection: Connection, series: Series[T]) -> list[T]:
    """Send the calls without waiting for each answer. After any error, also in making a call, nothing is committed."""
    calls = iter(series)
    first = next(calls, None)
    if first is None:
        return []
    if series.alone:
        return [first.read(await ask(connection, first.sql, first.args))]
    async with _pipeline(connection):
        # Explicitly: the end of a pipeline would commit what had been sent when making the next call failed.
        await _send(connection, "begin")
        try:
            sent = [(call, await _send(connection, call.sql, call.args)) for call in chain([first], calls)]
        except BaseException:
            await _send(connection, "rollback")
            raise
        await _send(connection, "commit")
    rows = [cursor.fetchall() if isinstance(cursor, psycopg.Cursor) else await cursor.fetchall() for _, cursor in sent]
    if _unreplicated:
        await _replicate(connection)
    return [call.read(found) for (call, _), found in zip(sent, rows, strict=True)]


async def _send(
    connection: Connection, sql: str, args: tuple[object, ...] = ()
) -> psycopg.Cursor | psycopg.AsyncCursor:
    if isinstance(connection, psycopg.Connection):
        return connection.execute(sql, args)
    return await connection.execute(sql, args)


@contextlib.asynccontextmanager
async def _pipeline(connection: Connection) -> AsyncIterator[None]:
    if isinstance(connection, psycopg.Connection):
        with connection.pipeline():
            yield
    else:
        async with connection.pipeline():
            yield


# -- commits that the server reports as done before the standby has them
#
# With synchronous replication a commit waits for the standby. If that wait is cancelled, the server reports success
# with a warning, and the commit is lost if the standby is promoted. After such a warning we commit something else and
# wait for its replication: changes are replicated in order, so the first is there when the second is.

_unreplicated: set[int] = set()
"""The connections that have received the warning, by id()."""


def _note_unreplicated(connection: Connection) -> None:
    number = id(connection)
    _unreplicated.discard(number)  # of an earlier connection at the same address in memory

    def note(warning: Diagnostic) -> None:
        if warning.source_function == "SyncRepWaitForLSN":  # the warning's text depends on the server's language
            _unreplicated.add(number)

    connection.add_notice_handler(note)


async def _replicate(connection: Connection) -> None:
    while id(connection) in _unreplicated:
        _unreplicated.discard(id(connection))
        await _send(connection, "select pg_logical_emit_message(true, 'leasehold', '')")  # changes no table


# -- deadlines of calls
#
# A call is aborted by shutting down its socket, not by cancelling: psycopg would then ask the server to cancel, and
# wait for it, although it may be the server that does not answer. And a write that has been sent must not be
# cancelled: with synchronous replication it may be half done.


class CallDeadline:
    """Wrap a call in this: at this moment of the monotonic clock it raises OperationalError."""

    __slots__ = ("at", "connection", "passed")

    def __init__(self, connection: Connection, at: float) -> None:
        self.connection = connection
        self.at = at
        """May be set to a later moment: there was progress."""
        self.passed = False
        """Whether the call was aborted."""

    def __enter__(self) -> "CallDeadline":
        _watch.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _watch.remove(self)


class _DeadlineThread:
    """One thread for all calls of this process: cheaper than a timer for each, also on an event loop."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_forks(self)

    def after_fork(self) -> None:
        """Start anew: in a forked child the parent's thread does not exist, and its lock may be held for ever."""
        self._guard = threading.Lock()
        self._calls: dict[int, CallDeadline] = {}
        self._wake = threading.Event()
        self._wake_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, call: CallDeadline) -> None:
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="leasehold-deadlines", daemon=True)
                thread.start()  # raises where the system has no thread for it: the next call tries again
                self._thread = thread
            elif call.at < self._wake_at:
                self._wake.set()
            self._calls[id(call)] = call

    def remove(self, call: CallDeadline) -> None:
        # With the guard: if the connection were closed while it is being shut down, another one could be hit instead.
        with self._guard:
            self._calls.pop(id(call), None)

    def _run(self) -> None:
        quiet = 0
        while True:
            with self._guard:
                now = monotonic()
                for call in [call for call in self._calls.values() if call.at <= now]:
                    del self._calls[id(call)]
                    call.passed = True
                    shut(call.connection)
                quiet = 0 if self._calls else quiet + 1
                soonest = min((call.at for call in self._calls.values()), default=math.inf)
                # Each second while there are calls, so that few of them have to wake this thread; after five checks
                # without any, it sleeps until the next call.
                self._wake_at = math.inf if quiet > 5 else min(soonest, now + 1)
                self._wake.clear()
            self._wake.wait(None if self._wake_at == math.inf else max(0.0, self._wake_at - now))


def shut(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Make the call that waits on the connection see its end."""
    # Shut down, not closed: the thread that polls the descriptor must see it. No copy of it: there may be no free one.
    with contextlib.suppress(OSError, psycopg.Error):
        line = socket.socket(fileno=connection.fileno())
        try:
            line.shutdown(socket.SHUT_RDWR)
        finally:
            line.detach()


_watch = _DeadlineThread()
