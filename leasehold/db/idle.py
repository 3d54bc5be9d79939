"""Connections that nobody uses at the moment, kept for the next who needs one.

Without a thread or a task of its own: nothing here outlives an event loop, and nothing survives a fork.
"""

import select
import threading
import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

C = TypeVar("C", psycopg.Connection, psycopg.AsyncConnection)

MAX_AGE = 3600.0
"""Seconds after which a connection is not kept: the database's address, or its clock, may have changed."""

MAX_IDLE = 600.0
"""Seconds without use after which a connection is not kept."""

# What a forked child has inherited, never to be collected: it is the parent who speaks on these sockets.
_inherited: list[object] = []


@dataclass(slots=True)
class Held(Generic[C]):
    """A connection in somebody's hands."""

    connection: C
    born: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    _ear: "select.poll | None" = None

    def close(self) -> None:
        """Close it. An asynchronous one too, from any thread: nobody waits on it."""
        self.connection.pgconn.finish()

    @property
    def is_quiet(self) -> bool:
        """False if the server said something unasked, which mostly is farewell. Costs no round trip."""
        if self.connection.closed:
            return False
        if self._ear is None:
            self._ear = select.poll()
            self._ear.register(self.connection.fileno(), select.POLLIN)
        return not self._ear.poll(0)

    @property
    def is_reusable(self) -> bool:
        """Whether the next may have it."""
        status = self.connection.pgconn.transaction_status
        return status == TransactionStatus.IDLE and self.used - self.born < MAX_AGE


class Idle(Generic[C]):
    """A stack: the connection used last is used next, so that the others grow old and go."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stack: list[Held[C]] = []
        self._closed = False

    def take(self) -> Held[C] | None:
        """A connection that looks alive, if there is one."""
        while True:
            with self._guard:
                if not self._stack:
                    return None
                held = self._stack.pop()
            if held.is_quiet:
                return held
            held.close()

    def put(self, held: Held[C]) -> None:
        """Keep a connection that is no longer used, unless it is broken or old."""
        held.used = time.monotonic()
        with self._guard:
            if not self._closed and held.is_reusable:
                self._stack.append(held)
                if held.used - self._stack[0].used <= MAX_IDLE:
                    return  # it is the one that has waited longest
                gone = [old for old in self._stack if held.used - old.used > MAX_IDLE]
                self._stack = [old for old in self._stack if held.used - old.used <= MAX_IDLE]
            else:
                gone = [held]
        for old in gone:
            old.close()

    def close(self) -> None:
        """Close what is idle now; what is in use is closed when it comes back."""
        with self._guard:
            self._closed = True
            gone, self._stack = self._stack, []
        for held in gone:
            held.close()

    def abandon(self) -> None:
        """In a forked child: neither use nor close what is the parent's."""
        _inherited.append(self._stack)
