"""The database of a program that enqueues and reads: runs calls from its threads and from its event loops."""

import asyncio
import select
import threading
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus

from leasehold._aio import run_blocking, sleep
from leasehold._clock import monotonic
from leasehold._os_process import renew_in_forks
from leasehold.db.call import Call, Series
from leasehold.db.connections.dial import Dialer
from leasehold.db.connections.io import CallDeadline, Connection, acquire, ask, ask_series
from leasehold.db.connections.link import Backoff
from leasehold.db.connections.outage import Outage
from leasehold.db.connections.tries import BusyKeys, Tries, name_jobs
from leasehold.db.notify import Sender, names_after
from leasehold.db.sqlstates import trouble_of
from leasehold.db.store import IdMaker, Store
from leasehold.errors import DatabaseUnavailable

T = TypeVar("T")

_ANSWER_SECONDS: Final = 30.0
"""How long a call waits for an answer, unless a client of a server waits for it; a series, for the next progress."""

_PART: Final = "a call"
"""The name in the log of calls that are sent again."""

MOST_CONNECTIONS: Final = 10

MAX_AGE = 3600.0
"""Seconds after which a connection is not kept: the database's address, or its clock, may have changed."""

MAX_IDLE = 600.0
"""Seconds without use after which a connection is not kept."""

# What a forked child has inherited, never to be collected: the parent uses these sockets.
_inherited: list[object] = []


class Database:
    """Runs calls, from any thread and any event loop.

    While the database is away for a moment a call waits for it. A call that was sent and not answered is sent
    again if it may be repeated; else the caller gets the error. No call waits without a bound: one that has had no
    answer at its deadline is given up with its connection. With `bounded`, the deadline is that of the whole call:
    for servers, whose clients wait.
    """

    def __init__(
        self, dsn: str, *, schema: str, prepare: bool = True, wait: float = 10.0,
        answer: float = _ANSWER_SECONDS, bounded: bool = False, ids: IdMaker | None = None,
    ) -> None:  # fmt: skip
        self.dsn = dsn
        self.wait = wait
        """Seconds that a call may take, repetitions included: to get a connection, and if `bounded` also the answer."""
        self.store = Store(schema)
        self.ids = ids or IdMaker()
        self._answer = answer
        self.bounded = bounded
        self._prepare = prepare
        self.dialer = Dialer(dsn, name="leasehold", prepare=prepare, prepare_after=2)
        self._start()
        renew_in_forks(self)

    def __repr__(self) -> str:
        return f"<Database {self.dialer!r} schema {self.store.schema}>"

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler is known to be before the database."""
        return bool(self.dialer.route.pooled)

    def _start(self) -> None:
        self._guard = threading.Lock()
        self._closed = False
        self.outage = Outage()
        """Logs when calls begin to be sent again, and when one is answered."""
        self._sender = Sender(self.dsn, self.store, prepare=self._prepare)
        self._busy_keys = BusyKeys()
        self._threads = _Pool(self, blocking=True)
        self._loops: dict[asyncio.AbstractEventLoop, _Pool] = {}

    def after_fork(self) -> None:
        """Start anew in a forked child: the parent's locks may be held for ever, and it uses its sockets."""
        _inherited.extend(pool.idle for pool in (self._threads, *self._loops.values()))
        self.ids = self.ids.anew()
        self._start()

    def run(self, call: Call[T]) -> T:
        """Run a call from a thread."""
        return run_blocking(self.execute(call, blocking=True))

    async def arun(self, call: Call[T], deadline: float | None = None) -> T:
        """Run a call from a coroutine; until `deadline` by the monotonic clock, if there is one."""
        return await self.execute(call, deadline, blocking=False)

    async def execute(self, call: Call[T], deadline: float | None = None, *, blocking: bool) -> T:
        """Run a call, blocking the thread or not. DatabaseUnavailable says in `sent` whether it may have happened."""
        if not call.wakes:
            return cast("T", await self._persist(call, call.args, deadline, blocking=blocking))
        began = monotonic()
        notifies, names = call.may_notify and self._sender.limiter.begin(began), None
        try:
            args = (*call.args[:-1], True) if notifies else call.args
            answer: T = await self._persist(call, args, deadline, blocking=blocking)
            names = names_after(call, answer)
        finally:
            self._sender.ended(names, began, notified=notifies, comparable=call.may_notify)
        return answer

    async def execute_series(self, series: Series[T], *, blocking: bool) -> list[T]:
        """Run calls that record jobs as one transaction, all or none."""
        began, names = monotonic(), None
        series.notifies = self._sender.limiter.begin(began)
        try:
            answers: list[T] = await self._persist(series, (), None, blocking=blocking)
            names = {name for pair in zip(series.made, answers, strict=True) for name in names_after(*pair)}
        finally:
            self._sender.ended(names, began, notified=series.notifies, comparable=False)
        return answers

    async def _persist(
        self, what: Call[Any] | Series[Any], args: tuple[object, ...], deadline: float | None, *, blocking: bool
    ) -> Any:
        """Send it again until it is answered, it may not be repeated, or its time is over."""
        begun = monotonic()
        until = begun + self.wait if deadline is None else deadline
        within = self._answer if deadline is None and not self.bounded else None
        tries: Tries | None = None
        while True:
            sent: list[CallDeadline] = []
            try:
                pool = self._threads if blocking else self._pool_of_loop()
                if what.key is None:
                    return await self._try(what, args, pool, until, within, sent)
                with self._busy_keys.turn(what.key):  # before it takes a connection, which others need
                    return await self._try(what, args, pool, until, within, sent)
            except psycopg.Error as error:
                self.dialer.route.learn(error)
                tries = tries or Tries(what, begun=begun, deadline=until, wait=self.wait, answer=within)
                pause = tries.failed(error, sent[0] if sent else None)
                until = tries.deadline
                if not tries.locked:
                    self.outage.met(_PART, trouble_of(error))
            except DatabaseUnavailable as error:
                name_jobs(error, what, unknown=tries is not None and tries.unknown)
                raise
            await sleep(pause, blocking=blocking)

    async def _try(
        self, what: Call[Any] | Series[Any], args: tuple[object, ...], pool: "_Pool", until: float,
        within: float | None, sent: list[CallDeadline],
    ) -> Any:  # fmt: skip
        """Send it once; `sent` receives the deadline of the answer as soon as there is a connection."""
        held = await pool.take(until)
        deadline = CallDeadline(held.connection, until if within is None else monotonic() + within)
        sent.append(deadline)
        try:
            with deadline:
                if isinstance(what, Call):
                    answer = what.read(await ask(held.connection, what.sql, args))
                else:
                    if within is not None:  # for each call of a series: a program may take long to make the next one
                        what.on_call = lambda: setattr(deadline, "at", monotonic() + within)
                    answer = await ask_series(held.connection, what)
        except BaseException as error:
            if not isinstance(error, Exception):
                held.close()  # cancelled: the answer may still arrive, and no other call may read it as its own
            raise
        finally:
            pool.put(held)
        if self.outage.noted:
            self.outage.over(_PART)
        return answer

    def new_ids(self, count: int) -> list[str]:
        """Return ids for new jobs, in the order of the database's clock."""
        return run_blocking(self.make_ids(count, blocking=True))

    async def anew_ids(self, count: int) -> list[str]:
        """Return ids for new jobs, in the order of the database's clock."""
        return await self.make_ids(count, blocking=False)

    async def make_ids(self, count: int, *, blocking: bool) -> list[str]:
        """Return ids for new jobs, blocking the thread or not while the first connection is opened."""
        if not self.ids.follows:
            try:
                await self.execute(self.store.clock(), blocking=blocking)  # a new connection learns the clock
            except DatabaseUnavailable as error:
                error.sent = False  # the enqueue, which needs the ids first
                raise
        return self.ids.make(count)

    def close(self) -> None:
        """Close the connections of all threads and event loops, those in use when their call has ended."""
        with self._guard:
            self._closed = True
            loops, self._loops = self._loops, {}
        self._sender.close()
        for pool in (self._threads, *loops.values()):
            pool.close()

    def _pool_of_loop(self) -> "_Pool":
        running = asyncio.get_running_loop()
        if (known := self._loops.get(running)) is not None and not self._closed:
            return known
        with self._guard:
            if self._closed:
                raise _was_closed()
            for dead in [loop for loop in self._loops if loop.is_closed()]:
                self._loops.pop(dead).close()
            return self._loops.setdefault(running, _Pool(self, blocking=False))


@dataclass(slots=True)
class _Held:
    """A connection that is in use or idle."""

    connection: Connection
    born: float = field(default_factory=monotonic)
    used: float = field(default_factory=monotonic)
    _poll: "select.poll | None" = None

    def close(self) -> None:
        """Close it. An asynchronous one too, from any thread: no call waits on it."""
        self.connection.pgconn.finish()

    @property
    def is_quiet(self) -> bool:
        """False if the server sent something unasked, which mostly is its end. Costs no round trip."""
        if self.connection.closed:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.connection.fileno(), select.POLLIN)
        return not self._poll.poll(0)


class _Pool:
    """The connections of all threads of a program, or of one of its event loops.

    At most ten; idle ones are a stack: the one used last is used next, so that the others expire. Without a thread or a
    task of its own: nothing here outlives an event loop, and nothing survives a fork.
    """

    def __init__(self, database: Database, *, blocking: bool) -> None:
        self._database = database
        self._blocking = blocking
        self._seats = (threading.Semaphore if blocking else asyncio.Semaphore)(MOST_CONNECTIONS)
        self._guard = threading.Lock()
        self.idle: list[_Held] = []
        self._closed = False

    async def take(self, deadline: float) -> _Held:
        """Return a connection that seems alive, an idle one or a new one; it has to be put back."""
        began = monotonic()
        if not await acquire(self._seats, deadline):
            whose = "threads" if self._blocking else "coroutines"
            raise DatabaseUnavailable(
                f"all {MOST_CONNECTIONS} connections for {whose} were in use for {monotonic() - began:.3g} s",
                hint="is the database slow, or are calls made by very many at once?",
            )
        try:
            held = self._take_idle() or await self._open(deadline)
        except BaseException:
            self._seats.release()
            raise
        if self._database.dialer.route.pooled:  # found after it was opened
            held.connection.prepare_threshold = None
        return held

    def put(self, held: _Held) -> None:
        """Keep a connection that is no longer used, unless it is broken or old."""
        held.used = now = monotonic()
        reusable = held.connection.pgconn.transaction_status == TransactionStatus.IDLE and now - held.born < MAX_AGE
        expired: list[_Held] = []
        with self._guard:
            if not self._closed and reusable:
                self.idle.append(held)
                if now - self.idle[0].used > MAX_IDLE:
                    expired = [old for old in self.idle if now - old.used > MAX_IDLE]
                    self.idle = [old for old in self.idle if now - old.used <= MAX_IDLE]
            else:
                expired = [held]
        for old in expired:
            old.close()
        self._seats.release()

    def close(self) -> None:
        """Close what is idle now; what is in use is closed when it is put back."""
        with self._guard:
            self._closed = True
            idle, self.idle = self.idle, []
        for held in idle:
            held.close()

    def _take_idle(self) -> _Held | None:
        while True:
            with self._guard:
                if not self.idle:
                    return None
                held = self.idle.pop()
            if held.is_quiet:
                return held
            held.close()

    async def _open(self, deadline: float) -> _Held:
        backoff = Backoff(first=0.05, longest=0.5)
        while True:
            if self._closed:
                raise _was_closed()
            try:
                return await self._dial(deadline)
            except (DatabaseUnavailable, psycopg.OperationalError):
                left = deadline - monotonic()
                if left <= 0:
                    raise
            await sleep(min(backoff.pause(), left), blocking=self._blocking)

    async def _dial(self, deadline: float) -> _Held:
        if self._blocking or not self._database.bounded:
            return await self._opened(deadline)
        began = monotonic()
        try:
            async with asyncio.timeout(max(0.0, deadline - began)):
                return await self._opened(deadline)
        except TimeoutError:
            raise DatabaseUnavailable(f"no connection to PostgreSQL within {monotonic() - began:.3g} s") from None

    async def _opened(self, deadline: float) -> _Held:
        held = _Held(await self._database.dialer.connect(deadline, blocking=self._blocking))
        ids = self._database.ids
        try:
            before = ids.clock()
            with CallDeadline(held.connection, max(deadline, monotonic() + 1)):
                [(microseconds,)] = await ask(held.connection, self._database.store.clock().sql)
        except BaseException:
            held.close()
            raise
        ids.follow(database_ns=microseconds * 1000, local_ns=(before + ids.clock()) // 2)
        return held


def _was_closed() -> DatabaseUnavailable:
    return DatabaseUnavailable("the connections were closed meanwhile", hint="was the app closed while in use?")
