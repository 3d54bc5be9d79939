"""An end to calls that get no answer: the connection is shut, and the call that waits on it gets an OperationalError.

Not by cancelling: psycopg would then ask the server, which may be the one that does not answer, to cancel, and wait
for it. And a write that has been sent must not be cancelled: with synchronous replication it may be half done.
"""

import asyncio
import contextlib
import math
import os
import socket
import threading
import time
from typing import Any

import psycopg

_TICK = 1.0
"""Seconds between two looks at calls of threads while there are any: so a call need not wake the one who looks."""

_QUIET_TICKS = 5
"""Looks without any call after which the thread sleeps until there is one."""


class CutOff:
    """Around a coroutine's call: shuts the connection when the deadline, by the monotonic clock, has passed."""

    __slots__ = ("_connection", "_deadline", "_timer", "fired")

    def __init__(self, connection: psycopg.AsyncConnection, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self.fired = False
        """Whether the time was over."""

    def __enter__(self) -> "CutOff":
        left = max(0.0, self._deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(left, self._fire)
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()

    def move(self, deadline: float) -> None:
        """There is progress: give it until then."""
        self._timer.cancel()
        self._deadline = deadline
        self.__enter__()

    def _fire(self) -> None:
        self.fired = True
        shut(self._connection)


class ThreadCutOff:
    """Around a thread's call: the same, done by another thread."""

    __slots__ = ("connection", "deadline", "fired")

    def __init__(self, connection: psycopg.Connection, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.fired = False
        """Whether the time was over."""

    def __enter__(self) -> "ThreadCutOff":
        _sentry.watch(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _sentry.forget(self)

    def move(self, deadline: float) -> None:
        """There is progress: give it until then."""
        self.deadline = deadline


class _Sentry:
    """One thread for all calls of all threads of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: dict[int, ThreadCutOff] = {}
        self._wake = threading.Event()
        self._wake_at = 0.0
        self._thread: threading.Thread | None = None

    def watch(self, call: ThreadCutOff) -> None:
        with self._guard:
            self._calls[id(call)] = call
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leasehold-deadlines", daemon=True)
                self._thread.start()
            elif call.deadline < self._wake_at:
                self._wake.set()

    def forget(self, call: ThreadCutOff) -> None:
        # With the guard: while it is shut, the connection must not be closed, or another would be shut in its place.
        with self._guard:
            self._calls.pop(id(call), None)

    def _run(self) -> None:
        quiet = 0
        while True:
            with self._guard:
                now = time.monotonic()
                for call in [call for call in self._calls.values() if call.deadline <= now]:
                    del self._calls[id(call)]
                    call.fired = True
                    shut(call.connection)
                quiet = 0 if self._calls else quiet + 1
                soonest = min((call.deadline for call in self._calls.values()), default=math.inf)
                self._wake_at = math.inf if quiet > _QUIET_TICKS else min(soonest, now + _TICK)
                self._wake.clear()
            self._wake.wait(None if self._wake_at == math.inf else max(0.0, self._wake_at - now))


def shut(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Make the call that waits on the connection see its end."""
    # Shut, not closed: the thread that polls the descriptor must see it.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


_sentry = _Sentry()


def _begin_anew_in_child() -> None:
    global _sentry  # noqa: PLW0603 (the parent's thread does not exist here, and its lock may be taken for ever)
    _sentry = _Sentry()


os.register_at_fork(after_in_child=_begin_anew_in_child)
