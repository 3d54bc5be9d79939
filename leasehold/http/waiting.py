"""Looks at jobs for all who wait for them: one statement for all, a few times a second, none while nobody waits."""

import asyncio
import time
from collections import Counter
from typing import cast
from uuid import UUID

from leasehold.db.pool import Database
from leasehold.db.store import Seen
from leasehold.errors import LeaseholdError
from leasehold.http.problems import Problem
from leasehold.http.settings import ApiSettings

_PER_STATEMENT = 1000

_LEAST_SECONDS = 0.3
"""What a statement gets even if somebody has waited for long."""


class _Watch:
    """One job that somebody waits for."""

    __slots__ = ("changed", "failure", "seen", "watchers")

    def __init__(self) -> None:
        self.watchers = 0
        self.seen: Seen | None = None
        self.failure: LeaseholdError | None = None
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()


class _Look:
    """One job that somebody wants to see now."""

    __slots__ = ("answer", "at")

    def __init__(self) -> None:
        self.answer: asyncio.Future[Seen | None] = asyncio.get_running_loop().create_future()
        self.at = time.monotonic()

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # if nobody waits any more, nobody is to be warned


class Watcher:
    """The one who looks, for one event loop."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self._database = database
        self._settings = settings
        self._watches: dict[UUID, _Watch] = {}
        self._reading: dict[UUID, _Look] = {}
        self._task: asyncio.Task[None] | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._watching = 0
        self._by_token: Counter[UUID | None] = Counter()
        self.closing = asyncio.Event()
        """Set when this server is about to stop: nobody is kept waiting then."""
        self.statements = 0

    @property
    def waiting(self) -> int:
        """How many requests wait for jobs."""
        return self._watching

    # -- once

    async def look(self, job_id: UUID) -> Seen | None:
        """What the job is now; those who ask in the same moment are answered by one statement."""
        look = self._reading.get(job_id)
        if look is None:
            look = self._reading[job_id] = _Look()
            if len(self._readers) < self._settings.lanes:
                self._readers.add(asyncio.create_task(self._read()))
        return await asyncio.shield(look.answer)

    async def _read(self) -> None:
        try:
            while self._reading:
                await self._read_some()
        finally:
            # Here, not in a callback of the task: that comes later, and a look in between would count on this reader.
            self._readers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _read_some(self) -> None:
        # Taken out before the statement is sent: whoever asks from now on wants to know what is then.
        asked = dict(list(self._reading.items())[:_PER_STATEMENT])
        for job_id in asked:
            del self._reading[job_id]
        try:
            self.statements += 1
            # The oldest has waited already, perhaps for a statement that was not answered either.
            oldest = min(look.at for look in asked.values())
            deadline = max(oldest + self._database.wait, time.monotonic() + _LEAST_SECONDS)
            rows = await self._database.arun(self._database.store.statuses(list(asked)), deadline)
        except asyncio.CancelledError:
            for look in asked.values():
                look.fail(_stopped())
            raise
        except Exception as error:  # noqa: BLE001
            # Theirs to tell, defect or not; the reader goes on, for others wait for it.
            for look in asked.values():
                look.fail(error)
        else:
            found = {job.id: job for job in rows}
            for job_id, look in asked.items():
                if not look.answer.done():
                    look.answer.set_result(found.get(job_id))

    # -- until it changes

    async def change(self, job: Seen, deadline: float, who: UUID | None = None) -> Seen:
        """The job as soon as it is no longer as it was seen; else what it is at the deadline. `who`: the token."""
        if self._watching >= self._settings.watchers:
            raise Problem("overloaded", f"{self._watching:,} requests wait for jobs already", retry_after=1)
        if who is not None and self._by_token[who] >= self._settings.watchers_each:
            raise Problem("overloaded", f"{self._by_token[who]:,} requests of this token wait already", retry_after=1)
        watch = self._watches.setdefault(job.id, _Watch())
        watch.watchers += 1
        self._watching += 1
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
            self._watching -= 1
            self._by_token[who] -= 1
            if not self._by_token[who]:
                del self._by_token[who]
            if not watch.watchers:
                self._watches.pop(job.id, None)
        if watch.failure is not None:
            raise watch.failure
        return job

    async def _poll(self) -> None:
        while self._watches and not self.closing.is_set():
            await asyncio.sleep(self._settings.poll_seconds)
            ids = list(self._watches)
            for begin in range(0, len(ids), _PER_STATEMENT):
                await self._poll_some(ids[begin : begin + _PER_STATEMENT])

    async def _poll_some(self, ids: list[UUID]) -> None:
        try:
            self.statements += 1
            rows = await self._database.arun(self._database.store.statuses(ids))
        except LeaseholdError as error:
            # They go on waiting; it may be back before their time is over.
            for job_id in ids:
                if (watch := self._watches.get(job_id)) is not None:
                    watch.failure = error
            return
        for job in rows:
            if (watch := self._watches.get(job.id)) is not None:
                watch.failure = None
                if watch.seen != job:
                    watch.seen = job
                    watch.wake()

    def close(self) -> None:
        """Let all who wait go with what is known."""
        self.closing.set()
        for watch in self._watches.values():
            watch.wake()


def _stopped() -> Problem:
    return Problem("database-unavailable", "this server is stopping; ask another", retry_after=1)
