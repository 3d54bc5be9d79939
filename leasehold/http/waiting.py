"""Reads jobs for all requests that ask for them or wait for them: one statement for many."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from leasehold.db.database import Database
from leasehold.db.store import Seen
from leasehold.errors import LeaseholdError
from leasehold.http.problems import Problem
from leasehold.http.settings import ApiSettings
from leasehold.http.submitter import LEAST_SECONDS, Coalescer, Waiter

_PER_STATEMENT = 1000


@dataclass(slots=True, eq=False)
class _Watch:
    """One job that requests wait for."""

    watchers: int = 0
    seen: Seen | None = None
    failure: LeaseholdError | None = None
    changed: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def wake(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()


class Watcher:
    """Reads jobs for the requests of one event loop."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self._database = database
        self._settings = settings
        stopped = Problem("database-unavailable", "this server is stopping; ask another", retry_after=1)
        self._reads: Coalescer[UUID, Seen | None] = Coalescer(
            self._read, senders=settings.senders, most=_PER_STATEMENT, stopped=stopped
        )
        self._watches: dict[UUID, _Watch] = {}
        self._task: asyncio.Task[None] | None = None
        self._by_token: Counter[UUID | None] = Counter()
        self.waiting = 0
        """How many requests wait for jobs."""
        self.closing = asyncio.Event()
        """Set when this server is about to stop: requests wait no longer."""

    async def read(self, job_id: UUID) -> Seen | None:
        """Return the job as it is now; None if there is none."""
        return await self._reads.ask(job_id)

    async def _read(self, batch: list[Waiter[UUID, Seen | None]]) -> None:
        # The oldest has waited already, perhaps for a statement that was not answered either.
        deadline = max(batch[0].at + self._database.wait, time.monotonic() + LEAST_SECONDS)
        found = await self._statuses(list({waiter.item for waiter in batch}), deadline)
        for waiter in batch:
            waiter.resolve(found.get(waiter.item))

    async def _statuses(self, ids: list[UUID], deadline: float | None = None) -> dict[UUID, Seen]:
        rows = await self._database.arun(self._database.store.statuses(ids), deadline)
        return {job.id: job for job in rows}

    async def change(self, job: Seen, deadline: float, who: UUID | None = None) -> Seen:
        """Return the job as soon as it differs from `job`; else what it is at the deadline. `who`: the token."""
        if self.waiting >= self._settings.watchers:
            raise Problem("overloaded", f"{self.waiting:,} requests wait for jobs already", retry_after=1)
        if who is not None and self._by_token[who] >= self._settings.watchers_each:
            raise Problem("overloaded", f"{self._by_token[who]:,} requests of this token wait already", retry_after=1)
        watch = self._watches.setdefault(job.id, _Watch())
        watch.watchers += 1
        self.waiting += 1
        self._by_token[who] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            while not self.closing.is_set() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait([watch.changed], timeout=left)
                if watch.seen is not None and watch.seen != job:
                    return watch.seen
        finally:
            watch.watchers -= 1
            self.waiting -= 1
            self._by_token[who] -= 1
            if not self._by_token[who]:
                del self._by_token[who]
            if not watch.watchers:
                self._watches.pop(job.id, None)
        if watch.failure is not None:
            raise watch.failure
        return job

    async def _poll(self) -> None:
        """Read all jobs that requests wait for, a few times a second, until there are none."""
        while self._watches and not self.closing.is_set():
            await asyncio.sleep(self._settings.poll_seconds)
            ids = list(self._watches)
            for begin in range(0, len(ids), _PER_STATEMENT):
                await self._poll_some(ids[begin : begin + _PER_STATEMENT])

    async def _poll_some(self, ids: list[UUID]) -> None:
        failure: LeaseholdError | None = None
        found: dict[UUID, Seen] = {}
        try:
            found = await self._statuses(ids)
        except LeaseholdError as error:
            failure = error  # the requests go on waiting: the database may be back before their time is over
        for job_id in ids:
            watch, job = self._watches.get(job_id), found.get(job_id)
            if watch is None or (job is None and failure is None):
                continue
            watch.failure = failure
            if job is not None and watch.seen != job:
                watch.seen = job
                watch.wake()

    def close(self) -> None:
        """End all waits with what is known."""
        self.closing.set()
        for watch in self._watches.values():
            watch.wake()
