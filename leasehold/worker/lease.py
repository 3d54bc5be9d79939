"""Keeps the leases alive, in a thread and on a connection of its own: a task that blocks the event loop, or a
worker that drains, must not lose what it runs."""

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from leasehold.context import JobContext
from leasehold.db.link import Backoff, ThreadLink
from leasehold.db.store import ClaimedJob, Token
from leasehold.errors import DatabaseUnavailable, LeaseholdError

if TYPE_CHECKING:
    from leasehold.db.pool import Database
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

RENEW_AT = 1 / 3
"""Of a lease's time: when it is renewed."""

GIVE_UP_AT = 0.8
"""Of a lease's time: when a lease that could not be renewed is treated as lost. Earlier than the database would."""


@dataclass(slots=True)
class _Held:
    token: Token
    lease: float
    renewed: float
    context: JobContext | None = None
    urgent: bool = False

    @property
    def renew_at(self) -> float:
        return self.renewed + self.lease * RENEW_AT

    @property
    def give_up_at(self) -> float:
        return self.renewed + self.lease * GIVE_UP_AT


class LeaseKeeper:
    """A thread that renews every lease the worker holds."""

    def __init__(self, worker: "Worker", database: "Database", *, prepare: bool) -> None:
        self._worker = worker
        self._store = database.store
        self._link = ThreadLink(database.dsn, name=f"leasehold keeper {worker.id}", prepare=prepare)
        self._held: dict[UUID, _Held] = {}
        self._guard = threading.Lock()
        self._changed = threading.Event()
        self._wake_at = math.inf
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leasehold-keeper", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_lost: Callable[[Token], None] = lambda _token: None
        """Called on the event loop when a lease is gone."""

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End the thread. By now nothing is held."""
        self._stopping = True
        self._changed.set()
        self._thread.join(timeout=5)

    @property
    def alive(self) -> bool:
        """Whether leases are being renewed, or need not be any more."""
        return self._stopping or self._thread.is_alive()

    def hold(self, job: ClaimedJob, since: float) -> None:
        """Keep this job's lease alive; it counts from `since`, before it was asked for."""
        held = _Held(job.token, job.lease_seconds, since)
        with self._guard:
            self._held[job.id] = held
            sooner = held.renew_at < self._wake_at
        if sooner:
            self._changed.set()

    def watch(self, token: Token, context: JobContext) -> None:
        """The job has started: its progress and its log lines go along with the heartbeats."""
        with self._guard:
            held = self._held.get(token.id)
            if held is not None and held.token == token:
                held.context = context
                context.on_heartbeat = partial(self._soon, held)

    def _soon(self, held: _Held) -> None:
        held.urgent = True
        self._changed.set()

    def let_go(self, token: Token) -> None:
        """The job has ended, or another attempt of it is held by now."""
        with self._guard:
            held = self._held.get(token.id)
            if held is not None and held.token == token:
                del self._held[token.id]

    def holds(self, token: Token) -> bool:
        """Whether, as far as the worker knows, the lease is still its own."""
        with self._guard:
            held = self._held.get(token.id)
            return held is not None and held.token == token

    def _run(self) -> None:
        self._warm_up()
        backoff = Backoff(first=0.05, longest=0.5)
        while not self._stopping:
            self._changed.wait(self._pause())
            self._changed.clear()
            try:
                self._renew()
                backoff.reset()
            except DatabaseUnavailable as error:
                logger.warning("leases cannot be renewed: %s", error)
                time.sleep(backoff.pause())
            except Exception:  # whatever it is, this thread must go on
                logger.exception("leases cannot be renewed")
                time.sleep(backoff.pause())
            self._give_up()
        self._link.close()

    def _warm_up(self) -> None:
        """Connect, and have the function compiled: the first heartbeat may have little time."""
        with suppress(LeaseholdError):  # the first heartbeat will try again, and say so
            self._link.run(self._store.heartbeat(self._worker.id, []))

    def _pause(self) -> float | None:
        with self._guard:
            self._wake_at = min((held.renew_at for held in self._held.values()), default=math.inf)
            return None if self._wake_at == math.inf else max(0.0, self._wake_at - time.monotonic())

    def _renew(self) -> None:
        """One statement for every lease that is due, and for those that soon would be."""
        asked = time.monotonic()
        with self._guard:
            if not any(held.urgent or held.renew_at <= asked for held in self._held.values()):
                return
            due = [held for held in self._held.values() if held.urgent or held.renew_at - held.lease / 6 <= asked]
        self._write_lines(due)
        progress = [None if held.context is None else held.context.take_progress() for held in due]
        try:
            kept = self._link.run(self._store.heartbeat(self._worker.id, [held.token for held in due], progress))
        except LeaseholdError:
            for held, taken in zip(due, progress, strict=True):
                if taken is not None and held.context is not None:
                    held.context.restore_progress(taken)
            raise
        for held in due:
            if held.token.id in kept:
                held.renewed = asked
                held.urgent = False
            else:
                self._lose(held)

    def _write_lines(self, due: list[_Held]) -> None:
        """Keep what long jobs have said so far; the rest goes along with their outcome."""
        said = [(held, lines) for held in due if held.context is not None and (lines := held.context.take_lines())]
        if said:
            tokens = [held.token for held, _ in said]
            self._link.run(self._store.add_logs(self._worker.id, tokens, [json.dumps(lines) for _, lines in said]))

    def _give_up(self) -> None:
        now = time.monotonic()
        with self._guard:
            late = [held for held in self._held.values() if held.give_up_at <= now]
        for held in late:
            self._lose(held)

    def _lose(self, held: _Held) -> None:
        """Tell the event loop, unless the job has ended meanwhile: then it was a finish that won the race."""
        with self._guard:
            if self._held.get(held.token.id) is not held:
                return
            del self._held[held.token.id]
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.on_lost, held.token)
