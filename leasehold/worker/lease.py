"""Keeps the leases alive, in a thread and on a connection of its own: a task that blocks the event loop, or a
worker that drains, must not lose what it runs."""

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold import failpoints
from leasehold.context import JobContext
from leasehold.db.link import Backoff, ThreadLink
from leasehold.db.outage import Outage
from leasehold.db.sqlstates import of_one_row
from leasehold.db.store import ClaimedJob, Renewal, Token
from leasehold.errors import LeaseholdError, LockTimeout
from leasehold.worker.standstill import Moment, Standstill

if TYPE_CHECKING:
    from leasehold.db.pool import Database
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

RENEW_AT = 1 / 3
"""Of a lease's time: when it is renewed."""

_WAIT = 1 / 4
"""Of a lease's time: how long the answer to a heartbeat is waited for. Then there is time for another, on a new
connection, before the lease is given up."""

_SHORTEST_WAIT = 0.25

_PART = "the keeper of leases"

GIVE_UP_AT = 0.8
"""Of a lease's time: when a lease that could not be renewed is treated as lost. Earlier than the database would."""

_LATE = {RENEW_AT: 1 / 4, GIVE_UP_AT: 1 / 20}
"""Of a lease's time: by how much a thread has to be late at these to say that the process stood still."""

_TRY_AGAIN_AFTER = 0.1
"""Seconds after which a lease is renewed whose row was locked."""


_WRITE_EVERY = 1.0
"""Seconds between two times that progress is written."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Leases of one claim and one length: they began together, and are renewed together."""

    jobs: dict[ClaimedJob, None]
    lease: float
    renewed: float
    held: float = field(default_factory=time.monotonic)
    """Since when the keeper knows of it: a claim may be answered late."""
    not_before: float = 0.0
    """When to try again what could not be renewed because its row was locked."""

    @property
    def renew_at(self) -> float:
        return max(self.not_before, self.renewed + self.lease * RENEW_AT)

    @property
    def give_up_at(self) -> float:
        return self.renewed + self.lease * GIVE_UP_AT


class LeaseKeeper:
    """A thread that renews every lease the worker holds."""

    def __init__(self, worker: "Worker", database: "Database", *, prepare: bool, outage: Outage) -> None:
        self._worker = worker
        self._outage = outage
        self._store = database.store
        self._link = ThreadLink(database.dsn, name=f"leasehold keeper {worker.id}", prepare=prepare)
        self._held: dict[ClaimedJob, _Batch] = {}
        self._batches: set[_Batch] = set()
        self._urgent: set[ClaimedJob] = set()
        self._said: set[ClaimedJob] = set()
        self._wrote = -math.inf
        self._standstill = Standstill(worker.id)
        self._guard = threading.Lock()
        self._changed = threading.Event()
        self._wake_at = math.inf
        self._stopping = False
        self._thread = threading.Thread(target=self._keep, name="leasehold-keeper", daemon=True)
        self._overseer = threading.Thread(target=self._oversee, name="leasehold-leases", daemon=True)
        self._sooner = threading.Event()
        self._look_at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_lost: Callable[[ClaimedJob], None] = lambda _job: None
        """Called on the event loop when a lease is gone."""
        self.on_death: Callable[[BaseException | None], None] = lambda _error: None
        """Called on the event loop when a thread of the keeper has ended though it should not have."""
        self.context_of: Callable[[ClaimedJob], JobContext | None] = lambda _job: None
        """Where a job that has started keeps its progress and its log lines, which go along with the heartbeats."""

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._overseer.start()

    def stop(self) -> None:
        """End the threads; nothing is renewed any more. One that waits for an answer ends by itself, a little later."""
        self._stopping = True
        self._changed.set()
        self._sooner.set()
        if self._thread.is_alive():  # it may not have been started
            self._thread.join(timeout=1)

    @property
    def alive(self) -> bool:
        """Whether leases are being renewed, or need not be any more."""
        return self._stopping or (self._thread.is_alive() and self._overseer.is_alive())

    @property
    def overdue_since(self) -> float | None:
        """Since when a lease should have been renewed; None: all are."""
        now = time.monotonic()
        with self._guard:
            due = min((batch.renew_at for batch in self._batches), default=math.inf)
        return due if due <= now else None

    def hold(self, jobs: Iterable[ClaimedJob], since: float) -> None:
        """Keep the leases of a claim alive; they count from `since`, before it was asked for."""
        batches: dict[float, _Batch] = {}
        for job in jobs:
            batch = batches.get(job.lease_seconds)
            if batch is None:
                batch = batches[job.lease_seconds] = _Batch({}, job.lease_seconds, since)
            batch.jobs[job] = None
        with self._guard:
            for batch in batches.values():
                self._batches.add(batch)
                self._held.update(dict.fromkeys(batch.jobs, batch))
            sooner = any(batch.renew_at < self._wake_at for batch in batches.values())
            look = any(batch.give_up_at < self._look_at for batch in batches.values())
        if sooner:
            self._changed.set()
        if look:
            self._sooner.set()

    def soon(self, job: ClaimedJob) -> None:
        """Renew this one now instead of at its turn."""
        with self._guard:
            self._urgent.add(job)
        self._changed.set()

    def write_soon(self, job: ClaimedJob) -> None:
        """It has said how far it is: that is written together with what others say, once a second at most."""
        if job in self._said:
            return
        with self._guard:
            first = not self._said
            self._said.add(job)
        if first:
            self._changed.set()

    def let_go(self, jobs: Iterable[ClaimedJob]) -> None:
        """The jobs have ended."""
        with self._guard:
            for job in jobs:
                self._forget(job)

    def _forget(self, job: ClaimedJob) -> bool:
        batch = self._held.pop(job, None)
        if batch is None:
            return False
        self._leave(batch, job)
        return True

    def _leave(self, batch: _Batch, job: ClaimedJob) -> None:
        del batch.jobs[job]
        if not batch.jobs:
            self._batches.discard(batch)

    def holds(self, job: ClaimedJob) -> bool:
        """Whether, as far as the worker knows, the lease is still its own."""
        return job in self._held

    def holds_token(self, token: Token) -> bool:
        """The same, of a job that the database speaks of."""
        with self._guard:
            return any(
                job.id == token.id and job.attempt == token.attempt and job.claim_id == token.claim_id
                for job in self._held
            )

    def is_live(self, job: ClaimedJob) -> bool:
        """Whether the lease is held and has not run out by this process's clock."""
        batch = self._held.get(job)
        return batch is not None and time.monotonic() < batch.give_up_at

    # -- the thread that renews

    def _keep(self) -> None:
        self._until_death(self._run)

    def _until_death(self, run: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            run()
        except BaseException as raised:  # noqa: BLE001 (the worker ends of it, and says so)
            error = raised
        if not self._stopping and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the worker has gone
                self._loop.call_soon_threadsafe(self.on_death, error)

    def _run(self) -> None:
        self._warm_up()
        backoff = Backoff(first=0.05, longest=0.5)
        while not self._stopping:
            since = Moment.now()
            self._changed.wait(self._pause())
            self._changed.clear()
            self._look_back(since, RENEW_AT)
            try:
                self._renew()
                backoff.reset()
                self._outage.over(_PART)
            except LeaseholdError as error:
                self._outage.met(_PART, error)
                time.sleep(backoff.pause())
            except Exception:  # whatever it is, this thread must go on
                logger.exception("leases cannot be renewed")
                time.sleep(backoff.pause())
        self._link.close()

    def _look_back(self, since: Moment, part: float) -> None:
        """See whether this thread, which has something to do at a part of each lease's time, could run then."""
        with self._guard:
            first = min(self._batches, key=lambda batch: batch.renewed + batch.lease * part, default=None)
            if first is None or (due := first.renewed + first.lease * part) > time.monotonic():
                return
            kinds = [job.kind for job in self._held]
        self._standstill.look(since, max(due, first.held), first.lease * _LATE[part], kinds)

    def _warm_up(self) -> None:
        """Connect, and have the function compiled: the first heartbeat may have little time."""
        try:
            self._link.run(self._store.renew(self._worker.id, []))
        except Exception as error:  # noqa: BLE001 (the first heartbeat will try again, and say so)
            logger.debug("the first call of the keeper failed: %s", error)

    # -- the thread that gives up: not the one that renews, which may be waiting for an answer

    def _oversee(self) -> None:
        self._until_death(self._give_up_in_time)

    def _give_up_in_time(self) -> None:
        while not self._stopping:
            with self._guard:
                self._look_at = min((batch.give_up_at for batch in self._batches), default=math.inf)
                self._sooner.clear()
            since = Moment.now()
            self._sooner.wait(None if self._look_at == math.inf else max(0.0, self._look_at - time.monotonic()))
            self._look_back(since, GIVE_UP_AT)
            self._give_up()

    def _pause(self) -> float | None:
        with self._guard:
            self._wake_at = min((batch.renew_at for batch in self._batches), default=math.inf)
            if self._said:
                self._wake_at = min(self._wake_at, self._wrote + _WRITE_EVERY)
            return None if self._wake_at == math.inf else max(0.0, self._wake_at - time.monotonic())

    def _renew(self) -> None:
        """One statement for every lease that is due, and for those that soon would be."""
        asked = time.monotonic()
        with self._guard:
            urgent, self._urgent = self._urgent, set()
            if self._said and self._wrote + _WRITE_EVERY <= asked:
                urgent |= self._said
                self._said, self._wrote = set(), asked
            if not urgent and not any(batch.renew_at <= asked for batch in self._batches):
                return
            due = [batch for batch in self._batches if batch.renew_at - batch.lease / 6 <= asked]
            if due:
                self._link.patience.seconds = max(_SHORTEST_WAIT, min(batch.lease for batch in due) * _WAIT)
            jobs = dict.fromkeys(job for batch in due for job in batch.jobs)
            jobs.update((job, None) for job in urgent if job in self._held)
        try:
            answer = self._beat(list(jobs))
        except LeaseholdError:
            with self._guard:
                self._urgent |= urgent
            raise
        with self._guard:
            for job in jobs:
                if job.id in answer.busy:
                    self._set_apart(job)
        for batch in due:
            batch.renewed = asked
        # Answers are by id: of two attempts of one job, both here, only the later one can have been renewed.
        latest = {job.id: job.attempt for job in sorted(jobs, key=lambda job: job.attempt)}
        for job in jobs:
            if (job.id not in answer.renewed and job.id not in answer.busy) or job.attempt < latest[job.id]:
                self._lose(job)

    def _set_apart(self, job: ClaimedJob) -> None:
        """Its row was locked and its lease was not renewed: from now on it is tried again, alone, until it is."""
        batch = self._held.get(job)
        if batch is None:
            return
        alone = _Batch({job: None}, batch.lease, batch.renewed, not_before=time.monotonic() + _TRY_AGAIN_AFTER)
        self._held[job] = alone  # never out of it meanwhile: `holds` and `is_live` read without the guard
        self._batches.add(alone)
        self._leave(batch, job)

    def _beat(self, jobs: list[ClaimedJob]) -> Renewal:
        contexts = [self.context_of(job) for job in jobs]
        progress = [None if context is None else context.take_progress() for context in contexts]
        try:
            if failpoints.ARMED:
                failpoints.reach("before-heartbeat")
            answer = self._renewed(jobs, progress)
        except LeaseholdError:
            for context, taken in zip(contexts, progress, strict=True):
                if taken is not None and context is not None:
                    context.restore_progress(taken)
            raise
        if failpoints.ARMED:
            failpoints.reach("after-heartbeat")
        for job, context, taken in zip(jobs, contexts, progress, strict=True):
            if taken is not None and context is not None and job.id in answer.busy:
                context.restore_progress(taken)
        self._write_lines([(job, context) for job, context in zip(jobs, contexts, strict=True) if context is not None])
        return answer

    def _renewed(self, jobs: list[ClaimedJob], progress: list[tuple[float, str] | None]) -> Renewal:
        """All in one statement; if that is refused, one by one, so that the one at fault costs no other its lease."""
        try:
            return self._link.run(self._store.renew(self._worker.id, jobs, progress))
        except LeaseholdError as error:
            # Rows that are locked are passed over: what it has waited for is a table, and each one would wait again.
            if isinstance(error, LockTimeout) or not of_one_row(error):
                raise
            logger.warning("%d leases are renewed one by one: %s", len(jobs), error)
            return self._link.run(self._store.renew(self._worker.id, jobs, progress, each=True))

    def _write_lines(self, started: list[tuple[ClaimedJob, JobContext]]) -> None:
        """Keep what long jobs have said so far; the rest goes along with their outcome. Lost if it is refused."""
        said = [(job, lines) for job, context in started if (lines := context.take_lines())]
        if not said:
            return
        jobs = [job for job, _ in said]
        try:
            self._link.run(self._store.add_logs(self._worker.id, jobs, [json.dumps(lines) for _, lines in said]))
        except LeaseholdError as error:
            logger.warning("the log lines of %d job(s) are lost: %s", len(said), error)

    def _give_up(self) -> None:
        now = time.monotonic()
        with self._guard:
            late = [job for batch in self._batches if batch.give_up_at <= now for job in batch.jobs]
        for job in late:
            self._lose(job)

    def _lose(self, job: ClaimedJob) -> None:
        """Tell the event loop, unless the job has ended meanwhile: then it was a finish that won the race."""
        with self._guard:
            held = self._forget(job)
        if held and self._loop is not None:
            self._loop.call_soon_threadsafe(self.on_lost, job)
