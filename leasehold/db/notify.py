"""Notifications to idle workers: their names, the sender, the listener.

A notification has a name: of a queue that has work, or one of those below that begin with @. A lost one costs time,
never a job: polling finds it.

A NOTIFY in the transaction that records a job costs next to nothing and wakes a worker soonest. But the server commits
the transactions that have a NOTIFY one after the other, each until it is on disk: where many producers send one, they
wait for each other. So of one process one transaction in some milliseconds notifies by itself, and none for a while
after one that took long. A thread gathers the notifications for all other jobs and sends them in one statement.

A worker LISTENs on a connection of its own. Behind a pooler that succeeds and nothing arrives: so it probes.
"""

import asyncio
import atexit
import contextlib
import math
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg
from psycopg import sql

from leasehold import _aio as aio
from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.db.call import Call
from leasehold.db.connections.dial import Dialer
from leasehold.db.connections.io import CallDeadline, shut
from leasehold.db.connections.link import Backoff, Link, ThreadLink
from leasehold.db.store import Store
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.intent import Intent

logger = logger_of(__name__)

QUEUE = ""
"""Stands for the name of any queue."""

DUE = "@due"
"""For jobs that wait for their time."""

DECLARED = "@queue of "
"""With a kind after it: for jobs in the queue that their kind declares, which only the database knows."""

CANCEL = "@cancel:"
"""With the id of a running job after it, which was cancelled."""

PROBE = "@probe:"
"""With a token after it: a worker sends it to itself."""

PAUSE = 0.005
"""Seconds after a transaction that notified by itself in which no other does."""

LONGEST_PAUSE = 1.0
"""Each transaction that took long doubles the pause, up to this many seconds; the first that did not ends it."""

GATHER = 0.008
"""Seconds after a notification in which others are gathered. Longer than PAUSE: in a stream of jobs the next
transaction notifies for them."""

_EXIT_PATIENCE = 0.5
"""Seconds that an exiting program waits for its last notifications."""

_PATIENCE = 5.0
"""Seconds for a new connection, and for the answer to LISTEN."""

_AGAIN_WHEN_NOT = 10.0


# -- of what workers are notified


def names_after(call: Call[Any], answer: Any) -> Collection[str]:
    """Return the names to send after a call that has recorded jobs, or let them run, with this answer."""
    if not call.intents:
        return {job.queue if job.state == "queued" else DUE for job in answer if job.state in {"created", "queued"}}
    if call.key is None and len(call.intents) == 1:
        return _names_of(call.intents[0])
    # A job whose id is not the one that was offered existed before. Those with one head have one name.
    rows = zip(call.intents, call.ids, answer if isinstance(answer, list) else [str(answer)], strict=True)
    new = {intent.head: intent for intent, offered, recorded in rows if offered == recorded}
    return {name for intent in new.values() for name in _names_of(intent)}


def _names_of(intent: Intent) -> tuple[str, ...]:
    """Return the names for a job that was recorded: several if only the database knows which one it is."""
    queue = intent.queue if intent.queue is not None else DECLARED + intent.kind
    match intent.run_after:
        case datetime():
            return (queue, DUE)  # it may be past
        case timedelta() as delay if delay > timedelta(0):
            return (DUE,)
        case _:
            return (queue,)


# -- who sends notifications, and when


class Limiter:
    """Decides when a notification is sent, and how. It has no clock and sends nothing: its methods take the time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[str, tuple[float, float]] = {}
        """The names to send, and when the first and the latest of the jobs that wait for it were recorded."""
        self._latest = -math.inf
        """When the latest notification was sent, either way."""
        self._free_at = -math.inf
        self._pause = PAUSE
        self._usual = 0.0
        """Seconds that it takes of late to record one job without a notification."""

    def begin(self, now: float) -> bool:
        """Return whether a transaction that begins now notifies by itself; then `notified` must follow."""
        with self._guard:
            if now < self._free_at:
                return False
            self._free_at = math.inf  # one at a time
            return True

    def notified(self, names: Collection[str] | None, began: float, now: float, *, comparable: bool) -> None:
        """Note a transaction that was to notify by itself; without names, one that failed."""
        with self._guard:
            # Comparable are transactions of one job: they take about as long as each other.
            # One that took 5 ms more than twice the usual time has waited for others that notify.
            slow = names is None or (comparable and now - began > 2 * self._usual + 0.005)
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if slow else PAUSE
            self._free_at = now + self._pause
            if names is None:
                return
            self._latest = now
            for name in names if len(names) == 1 else ():  # of several, only SQL knows which it sent
                first, latest = self._waiting.pop(name, (now, -math.inf))
                if latest > began:  # a job that may have been committed after the notification
                    self._waiting[name] = max(first, began), latest

    def recorded(self, names: Collection[str], began: float, now: float, *, comparable: bool) -> bool:
        """Note a transaction that did not notify: these names wait to be sent. Return whether one of them is new."""
        with self._guard:
            if comparable:
                self._usual += 0.1 * (now - began - self._usual)
            before = len(self._waiting)
            for name in names:
                self._waiting[name] = self._waiting.get(name, (now, now))[0], now
            return len(self._waiting) > before

    def pause(self, now: float) -> float | None:
        """Return the seconds until what waits is to be sent; None if nothing waits."""
        with self._guard:
            if not self._waiting:
                return None
            oldest = min(first for first, _ in self._waiting.values())
            return min(self._latest, oldest + GATHER) + GATHER - now

    def take(self, now: float) -> list[str]:
        """Return all names that wait: they are sent now."""
        with self._guard:
            self._latest = now
            names, self._waiting = list(self._waiting), {}
            return names


class Sender:
    """A thread with a connection of its own, started when the first notification has to be sent apart."""

    def __init__(self, dsn: str, store: Store, *, prepare: bool) -> None:
        self._link = ThreadLink(dsn, name="leasehold notifications", prepare=prepare)
        self._store = store
        self.limiter = Limiter()
        self._wake = threading.Event()
        self._sent = threading.Event()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False

    def ended(self, names: Collection[str] | None, began: float, *, notified: bool, comparable: bool) -> None:
        """Note a transaction, and what to notify workers of; None: it failed. `notified`: it had to do so itself."""
        now = monotonic()
        if notified:
            self.limiter.notified(names, began, now, comparable=comparable)
        elif names is not None and self.limiter.recorded(names, began, now, comparable=comparable):
            self._wake_up()

    def _wake_up(self) -> None:
        """Send what waits soon. Never blocks, never raises: without a thread polling finds the jobs."""
        with self._guard, contextlib.suppress(RuntimeError):
            self._sent.clear()
            self._wake.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="leasehold-notifications", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(_flush, weakref.ref(self))

    def flush(self) -> None:
        """Wait, for a moment, until everything has been sent."""
        if self._thread is not None:
            self._sent.wait(_EXIT_PATIENCE)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self.flush()
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_EXIT_PATIENCE)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            while (pause := self.limiter.pause(monotonic())) is not None and not self._closing:
                if pause > 0:
                    time.sleep(pause)  # in a stream of jobs another transaction notifies for these
                else:
                    self._send(self.limiter.take(monotonic()))
            with self._guard:  # a name that is added between the two must not count as sent
                if not self._wake.is_set():
                    self._sent.set()
        self._link.close()

    def _send(self, names: list[str]) -> None:
        try:
            self._link.run(self._store.notify(names))
        except LeaseholdError:
            time.sleep(0.1)  # polling finds the jobs; do not load a database that is away


def _flush(sender: "weakref.ref[Sender]") -> None:
    with contextlib.suppress(Exception):
        alive = sender()
        if alive is not None:
            alive.flush()


# -- how workers receive them


class Listener:
    """The loop of a worker that receives the notifications of the schema and calls back by their names."""

    def __init__(self, dsn: str, *, schema: str, name: str) -> None:
        self._dialer = Dialer(dsn, name=name)
        self._schema = schema
        self._callbacks: dict[str, Callable[[str], None]] = {}
        self._connection: psycopg.AsyncConnection | None = None
        self.listening = asyncio.Event()
        """Set while notifications can arrive."""
        self.renewed = asyncio.Event()
        """Set at each new connection, until the prober clears it."""
        self.arrives = False
        """Whether notifications are known to arrive on the present connection; the prober sets it."""
        self.at_next_job: Callable[[], object] | None = None
        """Called once, at the next notification of a queue."""

    def on(self, name: str, callback: Callable[[str], None]) -> None:
        """Call this at each notification of that name, with what follows its colon; for QUEUE, with the queue's name.

        At each new connection every callback is called with "": notifications may have been lost.
        """
        self._callbacks[name] = callback

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
                self.arrives = False
            await asyncio.sleep(backoff.pause())

    async def _listen(self, backoff: Backoff) -> None:
        connection = await self._dialer.connect(time.monotonic() + _PATIENCE, blocking=False)
        async with cast(psycopg.AsyncConnection, connection) as connection:
            with CallDeadline(connection, time.monotonic() + _PATIENCE):
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._schema)))
            self._connection = connection
            backoff.reset()
            self.listening.set()
            self.renewed.set()
            for callback in self._callbacks.values():
                callback("")
            try:
                async for notification in connection.notifies():
                    self._take(notification.payload)
            finally:
                self._connection = None

    def drop(self) -> None:
        """Reconnect: no notification arrives on the connection any more, though it seems alive."""
        if self._connection is not None:
            shut(self._connection)

    def _take(self, name: str) -> None:
        beginning, colon, rest = name.partition(":")
        callback = self._callbacks.get(beginning + colon) if name else None  # without a name: any queue may have jobs
        if callback is not None:
            callback(rest)
            return
        if (queued := self._callbacks.get(QUEUE)) is not None:
            queued(name)
        if self.at_next_job is not None:
            at_next_job, self.at_next_job = self.at_next_job, None
            at_next_job()


class Prober:
    """The loop of a worker that finds out, for its listener, whether notifications arrive."""

    def __init__(self, link: Link, store: Store, listener: Listener) -> None:
        self._link = link
        self._store = store
        self._listener = listener
        self._probed, self._token, self._arrived = 0.0, "none", asyncio.Event()
        listener.on(PROBE, self._probe_arrived)

    def _probe_arrived(self, token: str) -> None:
        if token == self._token:
            self._arrived.set()

    def doubt(self) -> None:
        """Probe soon: there was work without a notification."""
        if self._listener.arrives and time.monotonic() - self._probed > _AGAIN_WHEN_NOT:
            self._listener.renewed.set()

    async def run(self) -> None:
        """Probe until cancelled: at each new connection, and from time to time."""
        known: bool | None = None
        while True:
            await self._listener.listening.wait()
            self._listener.renewed.clear()
            arrived = await self.probe()
            if self._listener.arrives and not arrived:
                self._listener.drop()  # notifications did arrive on it, and it has stopped
            if arrived != known:
                logger.info("notifications %s", "arrive" if arrived else "do not arrive: polling every second instead")
            known = arrived
            self._listener.arrives = arrived and self._listener.listening.is_set()
            await aio.within(180.0 if arrived else _AGAIN_WHEN_NOT, self._listener.renewed)

    async def probe(self, within: float = 2.0) -> bool:
        """Send a notification, and return whether it arrives within so many seconds."""
        self._probed, self._token = time.monotonic(), secrets.token_hex(8)
        self._arrived.clear()
        try:
            await self._link.run(self._store.notify([PROBE + self._token]))
        except LeaseholdError as error:
            logger.debug("a probe was not sent: %s", error)
            return False
        return await aio.within(within, self._arrived)


def notifications_arrive(dsn: str, store: Store, *, within: float = 3.0) -> bool:
    """Probe once, for a program that has no listener."""

    async def probe() -> bool:
        listener = Listener(dsn, schema=store.schema, name="leasehold doctor")
        link = Link(dsn, name="leasehold doctor", prepare=False)
        listening = asyncio.create_task(listener.run())
        try:
            prober = Prober(link, store, listener)
            return await aio.within(within, listener.listening) and await prober.probe(within)
        finally:
            await aio.cancel(listening)
            await link.close()

    return asyncio.run(probe())
