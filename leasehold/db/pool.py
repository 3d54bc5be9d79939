"""The connections of a program that enqueues and looks: some for its threads, some for each of its event loops."""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from leasehold.db.busykeys import BusyKeys
from leasehold.db.call import Call, Series
from leasehold.db.cut import CutOff, ThreadCutOff
from leasehold.db.dial import Dialer
from leasehold.db.doubt import asettle, settle
from leasehold.db.hints import Hinter
from leasehold.db.idle import Held, Idle
from leasehold.db.link import Backoff
from leasehold.db.outage import Outage
from leasehold.db.series import asend, send
from leasehold.db.sqlstates import trouble_of
from leasehold.db.store import Store
from leasehold.db.tries import Tries, nothing_sent
from leasehold.errors import DatabaseUnavailable
from leasehold.ids import IdMaker

T = TypeVar("T")

_MOST_CONNECTIONS = 10
"""For the threads together, and for each event loop."""

_WAIT_SECONDS = 10.0
"""How long a call may wait for a connection, repetitions included, before the caller is told."""

_ANSWER_SECONDS = 30.0
"""How long an answer is waited for, where no server's clients wait for it; of many calls, for the next progress."""


_PART = "a call"
"""What the log calls those that are sent again."""


class _Loop:
    """What belongs to one event loop."""

    def __init__(self) -> None:
        self.idle: Idle[psycopg.AsyncConnection] = Idle()
        self.seats = asyncio.Semaphore(_MOST_CONNECTIONS)


class Database:
    """Runs calls, from any thread and any event loop.

    While the database is away for a moment a call waits for it. A call that was sent and not answered is sent
    again if it may be repeated; else the caller gets the error. No call waits without a bound: one that has had no
    answer when its time is over is given up with its connection. With `bounded`, that is the time of the whole call:
    for servers, whose clients wait.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        prepare: bool = True,
        wait: float = _WAIT_SECONDS,
        answer: float = _ANSWER_SECONDS,
        bounded: bool = False,
        ids: IdMaker | None = None,
    ) -> None:
        self.dsn = dsn
        self.wait = wait
        """Seconds that a call may take at most: to get a connection, and if `bounded` to be answered as well."""
        self.store = Store(schema)
        self.ids = ids or IdMaker()
        self._answer = answer
        self._bounded = bounded
        self._prepare = prepare
        self._dialer = Dialer(dsn, name="leasehold", prepare=prepare, prepare_after=2)
        self._begin()
        _databases.add(self)

    def __repr__(self) -> str:
        return f"<Database {self._dialer!r} schema {self.store.schema}>"

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler is known to be before the database."""
        return bool(self._dialer.way.pooled)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._closed = False
        self.outage = Outage()
        """Calls that are sent again are in the log, when the first is and when one was answered."""
        self.hints = Hinter(self.dsn, self.store, prepare=self._prepare)
        self._busy = BusyKeys()
        self._idle: Idle[psycopg.Connection] = Idle()
        self._seats = threading.Semaphore(_MOST_CONNECTIONS)
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def after_fork(self) -> None:
        """In a forked child: begin anew. The parent's locks may be taken for ever, its sockets are its own."""
        self._idle.abandon()
        for loop in self._loops.values():
            loop.idle.abandon()
        self.ids = self.ids.anew()
        self._begin()

    # -- calls

    def run(self, call: Call[T]) -> T:
        """Run a call from a thread."""
        return self._persist(call, lambda connection: call.read(connection.execute(call.sql, call.args).fetchall()))

    def run_series(self, series: Series[T]) -> list[T]:
        """Run calls as one transaction, all or none, from a thread."""
        return self._persist(series, lambda connection: send(connection, series))

    async def arun(self, call: Call[T], deadline: float | None = None) -> T:
        """Run a call from a coroutine; until `deadline` by the monotonic clock, if one is given.

        DatabaseUnavailable says in `sent` whether the call may have happened.
        """

        async def execute(connection: psycopg.AsyncConnection) -> T:
            cursor = await connection.execute(call.sql, call.args)
            return call.read(await cursor.fetchall())

        return await self._apersist(call, execute, deadline)

    async def arun_series(self, series: Series[T]) -> list[T]:
        """Run calls as one transaction, all or none, from a coroutine."""
        return await self._apersist(series, lambda connection: asend(connection, series), None)

    def _persist(self, what: Call[Any] | Series[Any], execute: Callable[[psycopg.Connection], T]) -> T:
        tries = Tries(what, wait=self.wait, deadline=None, answer=self._answer)
        while True:
            cut = None
            try:
                with (
                    self._busy.turn(what.key),  # before a connection: others need it
                    self._connection(tries.deadline) as connection,
                    tries.of_thread(connection) as cut,
                ):
                    answer = execute(connection)
                    settle(connection)
                    self.outage.over(_PART)
                    return answer
            except psycopg.Error as error:
                self._dialer.way.learn(error)
                pause = tries.failed(error, cut)
                if not tries.locked:
                    self.outage.met(_PART, trouble_of(error))
            except DatabaseUnavailable as error:
                tries.name(error)
                raise
            time.sleep(pause)

    async def _apersist(
        self,
        what: Call[Any] | Series[Any],
        execute: Callable[[psycopg.AsyncConnection], Awaitable[T]],
        deadline: float | None,
    ) -> T:
        answer_within = self._answer if deadline is None and not self._bounded else None
        tries = Tries(what, wait=self.wait, deadline=deadline, answer=answer_within)
        while True:
            cut = None
            try:
                with self._busy.turn(what.key):
                    loop = self._loop()
                    held = await self._atake(loop, tries.deadline)
                    try:
                        with tries.of_coroutine(held.connection) as cut:
                            answer = await execute(held.connection)
                            await asettle(held.connection)
                            self.outage.over(_PART)
                            return answer
                    except asyncio.CancelledError:
                        # The answer may still be on its way; no other call may read it as its own.
                        held.close()
                        raise
                    finally:
                        loop.idle.put(held)
                        loop.seats.release()
            except psycopg.Error as error:
                self._dialer.way.learn(error)
                pause = tries.failed(error, cut)
                if not tries.locked:
                    self.outage.met(_PART, trouble_of(error))
            except DatabaseUnavailable as error:
                tries.name(error)
                raise
            await asyncio.sleep(pause)

    def new_ids(self, count: int) -> list[str]:
        """Ids for new jobs, in the order of the database's clock."""
        if not self.ids.follows:
            with nothing_sent():
                self.run(self.store.clock())  # the connection it makes learns the clock
        return self.ids.make(count)

    async def anew_ids(self, count: int) -> list[str]:
        """Ids for new jobs, in the order of the database's clock."""
        if not self.ids.follows:
            with nothing_sent():
                await self.arun(self.store.clock())
        return self.ids.make(count)

    def close(self) -> None:
        """Close the connections of all threads and event loops, those in use when their call has ended."""
        with self._guard:
            self._closed = True
            loops, self._loops = self._loops, {}
        self.hints.close()
        self._idle.close()
        for loop in loops.values():
            loop.idle.close()

    # -- connections

    @contextmanager
    def _connection(self, deadline: float) -> Iterator[psycopg.Connection]:
        if not self._seats.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._all_busy("threads")
        try:
            held = self._idle.take() or self._connect(deadline)
            held.connection.prepare_threshold = self._dialer.prepare_after
            try:
                yield held.connection
            finally:
                self._idle.put(held)
        finally:
            self._seats.release()

    async def _atake(self, loop: _Loop, deadline: float) -> Held[psycopg.AsyncConnection]:
        """A connection, and a seat that is to be given back with it. No context manager: every job comes this way."""
        if not loop.seats.locked():
            await loop.seats.acquire()  # at once
        else:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await loop.seats.acquire()
            except TimeoutError:
                raise self._all_busy("coroutines") from None
        try:
            held = loop.idle.take() or await self._aconnect(deadline)
        except BaseException:
            loop.seats.release()
            raise
        held.connection.prepare_threshold = self._dialer.prepare_after
        return held

    def _connect(self, deadline: float) -> Held[psycopg.Connection]:
        backoff = Backoff(first=0.05, longest=0.5)
        while True:
            self._refuse_if_closed()
            try:
                return self._dial(deadline)
            except (DatabaseUnavailable, psycopg.OperationalError):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(backoff.pause(), left))

    async def _aconnect(self, deadline: float) -> Held[psycopg.AsyncConnection]:
        backoff = Backoff(first=0.05, longest=0.5)
        while True:
            self._refuse_if_closed()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic()) if self._bounded else None):
                    return await self._adial(deadline)
            except TimeoutError:
                raise DatabaseUnavailable(f"no connection to PostgreSQL within {self.wait:g} s") from None
            except (DatabaseUnavailable, psycopg.OperationalError):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            await asyncio.sleep(min(backoff.pause(), left))

    def _dial(self, deadline: float) -> Held[psycopg.Connection]:
        held = Held(self._dialer.connect(deadline))
        try:
            before = self.ids.clock()
            with ThreadCutOff(held.connection, max(deadline, time.monotonic() + 1)):
                row = held.connection.execute(self.store.clock().sql).fetchone()
            self._learn_clock(before, row)
        except BaseException:
            held.close()
            raise
        return held

    async def _adial(self, deadline: float) -> Held[psycopg.AsyncConnection]:
        held = Held(await self._dialer.aconnect(deadline))
        try:
            before = self.ids.clock()
            with CutOff(held.connection, max(deadline, time.monotonic() + 1)):
                cursor = await held.connection.execute(self.store.clock().sql)
                row = await cursor.fetchone()
            self._learn_clock(before, row)
        except BaseException:
            held.close()
            raise
        return held

    def _loop(self) -> _Loop:
        running = asyncio.get_running_loop()
        if (known := self._loops.get(running)) is not None and not self._closed:
            return known
        with self._guard:
            self._refuse_if_closed()
            for dead in [loop for loop in self._loops if loop.is_closed()]:
                self._loops.pop(dead).idle.close()
            return self._loops.setdefault(running, _Loop())

    def _learn_clock(self, before: int, row: Any) -> None:
        middle = (before + self.ids.clock()) // 2
        self.ids.follow(database_ns=row[0] * 1000, local_ns=middle)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise DatabaseUnavailable("the connections were closed meanwhile", hint="was the app closed while in use?")

    def _all_busy(self, whose: str) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"all {_MOST_CONNECTIONS} connections for {whose} were in use for {self.wait:g} s",
            hint="is the database slow, or are calls made by very many at once?",
        )


_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _begin_anew_in_child() -> None:
    for database in list(_databases):
        database.after_fork()


os.register_at_fork(after_in_child=_begin_anew_in_child)
