"""Keeps the leases alive, in a thread and on a connection of its own: a task that blocks the event loop, or a
worker that drains, must not lose what it runs."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from leasehold import _failpoints as failpoints
from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.context import JobContext
from leasehold.db.connections.link import Backoff, Reserve, ThreadLink
from leasehold.db.connections.outage import Outage
from leasehold.db.database import Database
from leasehold.db.sqlstates import of_one_row
from leasehold.db.store import ClaimedJob, Renewal, Token
from leasehold.errors import LeaseholdError, LockTimeout
from leasehold.worker.log_lines import names, stored

logger = logger_of(__name__)

RENEW_AT = 1 / 3
"""Of a lease's time: when it is renewed."""
GIVE_UP_AT = 0.8
"""Of a lease's time: when a lease that could not be renewed is treated as lost. Earlier than the database would."""
_LATE = {RENEW_AT: 1 / 4, GIVE_UP_AT: 1 / 20}
"""By how much of a lease's time a thread may be late for each; later, and the process counts as stalled."""
_WRITE_EVERY = 1.0
"""Seconds between two times that progress is written."""
_PART = "the keeper of leases"
_STALLED = (
    "worker %s stood still for %.1f s, %.1f s of them computing, and renewed no lease meanwhile (jobs of %s): either a"
    " task holds the interpreter in C code, then give it executor='process' or a longer lease; or this process was"
    " stopped, or had no processor"
)


@dataclass(slots=True, eq=False)
class _Batch:
    """Leases of one claim and one length: they began together, and are renewed together."""

    jobs: dict[ClaimedJob, None]
    lease: float
    renewed: float
    held: float = field(default_factory=monotonic)
    """Since when the keeper knows of it: a claim may be answered late."""
    not_before: float = 0.0
    """When to try again what could not be renewed because its row was locked."""
    give_up_at: float = field(init=False)
    """Not computed when it is asked for: that is before each attempt."""

    def __post_init__(self) -> None:
        self.count_from(self.renewed)

    def count_from(self, renewed: float) -> None:
        """Note that the leases have been renewed at that moment."""
        self.renewed = renewed
        self.give_up_at = renewed + self.lease * GIVE_UP_AT

    @property
    def renew_at(self) -> float:
        return max(self.not_before, self.renewed + self.lease * RENEW_AT)


class LeaseKeeper:
    """A thread that renews every lease the worker holds."""

    def __init__(
        self, worker_id: str, database: Database, contexts: Mapping[ClaimedJob, JobContext], *,
        shortest: float, prepare: bool, outage: Outage, reserve: Reserve,
    ) -> None:  # fmt: skip
        """`contexts` are those of the jobs that have started: their progress and log lines go with the heartbeats.

        `shortest` is the shortest lease of any task. The threads never wait longer than half of the time after which
        it would be due: so a claim rarely has to wake them, which would cost its jobs time.
        """
        self._shortest = shortest
        self._worker_id = worker_id
        self._contexts = contexts
        self._outage = outage
        self._store = database.store
        name = f"leasehold keeper {worker_id}"
        self._link = ThreadLink(database.dsn, name=name, prepare=prepare, reserve=reserve)
        self.ready = asyncio.Event()
        """Set when it has connected, or tried to: before, no job is to be claimed."""
        self.answered = -math.inf
        """When the database last answered a renewal."""
        self._held: dict[ClaimedJob, _Batch] = {}
        self._batches: set[_Batch] = set()
        self._urgent: set[ClaimedJob] = set()
        self._progressed: set[ClaimedJob] = set()
        self._wrote = -math.inf
        self._quiet_until = 0.0
        """Until when no stall is logged again."""
        self._guard = threading.Lock()
        self._changed = threading.Event()
        self._wake_at = math.inf
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._until_death, args=[run], name=name, daemon=True)
            for run, name in ((self._run, "leasehold-keeper"), (self._give_up_in_time, "leasehold-leases"))
        ]
        self._sooner = threading.Event()
        self._check_at = math.inf
        self._loop = asyncio.get_running_loop()

    def start(self, lost: Callable[[ClaimedJob], None], died: Callable[[BaseException | None], None]) -> None:
        """Start the threads. On the event loop, `lost` is called for a lost lease, `died` if one of them ends."""
        self._lost, self._died = lost, died
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; nothing is renewed any more. One that waits for an answer ends by itself, a little later."""
        self._stopping = True
        self._changed.set()
        self._sooner.set()
        if self._threads[0].is_alive():  # it may not have been started
            self._threads[0].join(timeout=1)

    @property
    def alive(self) -> bool:
        """Whether leases are being renewed, or need not be any more."""
        return self._stopping or all(thread.is_alive() for thread in self._threads)

    @property
    def overdue_since(self) -> float | None:
        """Since when a lease should have been renewed; None: all are."""
        with self._guard:
            due = min((batch.renew_at for batch in self._batches), default=math.inf)
        return due if due <= monotonic() else None

    def hold(self, jobs: Sequence[ClaimedJob], since: float) -> None:
        """Keep the leases of a claim alive; they count from `since`, before it was asked for."""
        lengths = {job.lease_seconds for job in jobs}
        groups = [jobs] if len(lengths) == 1 else [[job for job in jobs if job.lease_seconds == one] for one in lengths]
        batches = [_Batch(dict.fromkeys(group), group[0].lease_seconds, since) for group in groups]
        with self._guard:
            for batch in batches:
                self._batches.add(batch)
                self._held.update(dict.fromkeys(batch.jobs, batch))
            if any(batch.renew_at < self._wake_at for batch in batches):
                self._changed.set()
            if any(batch.give_up_at < self._check_at for batch in batches):
                self._sooner.set()

    def soon(self, job: ClaimedJob) -> None:
        """Renew this one now instead of at its turn."""
        with self._guard:
            self._urgent.add(job)
        self._changed.set()

    def write_soon(self, job: ClaimedJob) -> None:
        """Write this job's progress together with that of others, once a second at most."""
        if job in self._progressed:
            return
        with self._guard:
            if not self._progressed:
                self._changed.set()
            self._progressed.add(job)

    def let_go(self, jobs: Iterable[ClaimedJob]) -> int:
        """Renew these leases no more: the jobs have ended. Return how many of them were held."""
        held, batches, found = self._held, self._batches, 0
        with self._guard:
            for job in jobs:
                batch = held.pop(job, None)
                if batch is not None:
                    found += 1
                    del batch.jobs[job]
                    if not batch.jobs:
                        batches.discard(batch)
        return found

    def holds(self, job: ClaimedJob) -> bool:
        """Return whether, as far as the worker knows, the lease is still its own."""
        return job in self._held

    def holds_token(self, token: Token) -> bool:
        """Return the same for a token that the database returned."""
        wanted = (token.id, token.attempt, token.claim_id)
        with self._guard:
            return any((job.id, job.attempt, job.claim_id) == wanted for job in self._held)

    def is_live(self, job: ClaimedJob) -> bool:
        """Return whether the lease is held and has not run out by this process's clock."""
        batch = self._held.get(job)
        return batch is not None and monotonic() < batch.give_up_at

    # -- the thread that renews

    def _until_death(self, run: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            run()
        except BaseException as raised:  # noqa: BLE001 (the worker ends because of it, and logs it)
            error = raised
        if not self._stopping:
            with suppress(RuntimeError):  # the loop is closed: the worker has gone
                self._loop.call_soon_threadsafe(self._died, error)

    def _run(self) -> None:
        try:  # connect, and have the function compiled: the first heartbeat may have little time
            self._link.run(self._store.renew(self._worker_id, []))
        except Exception as error:  # noqa: BLE001 (the first heartbeat will try again, and log it)
            logger.debug("the first call of the keeper failed: %s", error)
        with suppress(RuntimeError):  # the loop is closed: the worker has gone
            self._loop.call_soon_threadsafe(self.ready.set)
        backoff = Backoff(first=0.05, longest=0.5)
        while not self._stopping:
            since = (monotonic(), time.process_time())
            self._changed.wait(self._pause())
            self._changed.clear()
            self._check_stall(*since, RENEW_AT)
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

    def _check_stall(self, since: float, computed: float, part: float) -> None:
        """Log that this thread, which has something to do at a part of each lease's time, runs again much too late.

        `since` and `computed` are when it began to wait, and how much this process had computed by then.
        """
        now = monotonic()
        with self._guard:
            first = min(self._batches, key=lambda batch: batch.renewed + batch.lease * part, default=None)
            if first is None or now < self._quiet_until:
                return
            late = now - max(first.renewed + first.lease * part, first.held, since)
            if late < max(1.0, first.lease * _LATE[part]):  # less is the machine's load
                return
            self._quiet_until = now + 60
            kinds = [job.kind for job in self._held]
        logger.warning(_STALLED, self._worker_id, late, min(time.process_time() - computed, late), names(kinds))

    # -- the thread that abandons leases: not the one that renews, which may be waiting for an answer

    def _give_up_in_time(self) -> None:
        while not self._stopping:
            with self._guard:
                self._check_at = min((batch.give_up_at for batch in self._batches), default=math.inf)
                self._check_at = min(self._check_at, monotonic() + self._shortest * GIVE_UP_AT / 2)
                self._sooner.clear()
            since = (monotonic(), time.process_time())
            self._sooner.wait(max(0.0, self._check_at - monotonic()))
            self._check_stall(*since, GIVE_UP_AT)
            self._give_up()

    def _pause(self) -> float:
        with self._guard:
            now = monotonic()
            self._wake_at = min((batch.renew_at for batch in self._batches), default=math.inf)
            self._wake_at = min(self._wake_at, now + self._shortest * RENEW_AT / 2)
            if self._progressed:
                self._wake_at = min(self._wake_at, self._wrote + _WRITE_EVERY)
            return max(0.0, self._wake_at - now)

    def _renew(self) -> None:
        """Renew, in one statement, every lease that is due, and those that soon would be."""
        asked = monotonic()
        with self._guard:
            urgent, self._urgent = self._urgent, set()
            if self._progressed and self._wrote + _WRITE_EVERY <= asked:
                urgent |= self._progressed
                self._progressed, self._wrote = set(), asked
            if not urgent and not any(batch.renew_at <= asked for batch in self._batches):
                return
            due = [batch for batch in self._batches if batch.renew_at - batch.lease / 6 <= asked]
            if due:  # after that there is time for another try, on a new connection, before the lease is given up
                self._link.patience = max(0.25, min(batch.lease for batch in due) / 4)
            jobs = dict.fromkeys(job for batch in due for job in batch.jobs)
            jobs.update((job, None) for job in urgent if job in self._held)
        try:
            answer = self._beat(list(jobs))
        except LeaseholdError:
            with self._guard:
                self._urgent |= urgent
            raise
        self.answered = monotonic()
        with self._guard:
            for job in jobs:
                if job.id in answer.busy:
                    self._set_apart(job)
        for batch in due:
            batch.count_from(asked)
        # Answers are by id: of two attempts of one job, both here, only the later one can have been renewed.
        latest = {job.id: job.attempt for job in sorted(jobs, key=lambda job: job.attempt)}
        for job in jobs:
            if (job.id not in answer.renewed and job.id not in answer.busy) or job.attempt < latest[job.id]:
                self._lose(job)

    def _set_apart(self, job: ClaimedJob) -> None:
        """Try a lease alone from now on, until it is renewed: its row was locked."""
        batch = self._held.get(job)
        if batch is None:
            return
        alone = _Batch({job: None}, batch.lease, batch.renewed, not_before=monotonic() + 0.1)
        self._held[job] = alone  # never out of it meanwhile: `holds` and `is_live` read without the guard
        self._batches.add(alone)
        del batch.jobs[job]
        if not batch.jobs:
            self._batches.discard(batch)

    def _beat(self, jobs: list[ClaimedJob]) -> Renewal:
        started = {job: context for job in jobs if (context := self._contexts.get(job)) is not None}
        progress = {job: taken for job, context in started.items() if (taken := context.take_progress()) is not None}
        unwritten = {job.id for job in progress}
        try:
            failpoints.reach("before-heartbeat")
            answer = self._renewed(jobs, [progress.get(job) for job in jobs])
            failpoints.reach("after-heartbeat")
            unwritten = answer.busy
        finally:
            for job, taken in progress.items():
                if job.id in unwritten:
                    started[job].restore_progress(taken)
        self._write_lines(started)
        return answer

    def _renewed(self, jobs: list[ClaimedJob], progress: list[tuple[float, str] | None]) -> Renewal:
        """Renew all in one statement; if that is refused, one by one, so that only the one at fault is lost."""
        try:
            return self._link.run(self._store.renew(self._worker_id, jobs, progress))
        except LeaseholdError as error:
            # renew skips locked rows, so this wait was for a table lock: one by one each would wait for it again.
            if isinstance(error, LockTimeout) or not of_one_row(error):
                raise
            logger.warning("%d leases are renewed one by one: %s", len(jobs), error)
            return self._link.run(self._store.renew(self._worker_id, jobs, progress, each=True))

    def _write_lines(self, started: Mapping[ClaimedJob, JobContext]) -> None:
        """Write what long jobs have logged so far; the rest is written with their outcome. Lost if it is refused."""
        logged = {job: json.dumps(lines) for job, context in started.items() if (lines := context.take_lines())}
        if not logged:
            return
        try:
            jobs = list(logged)
            stored(jobs, self._link.run(self._store.add_logs(self._worker_id, jobs, list(logged.values()))))
        except LeaseholdError as error:
            logger.warning("the log lines of %d job(s) are lost: %s", len(logged), error)

    def _give_up(self) -> None:
        now = monotonic()
        with self._guard:
            late = [job for batch in self._batches if batch.give_up_at <= now for job in batch.jobs]
        for job in late:
            self._lose(job)

    def _lose(self, job: ClaimedJob) -> None:
        """Notify the event loop, unless the job has ended meanwhile: then its finish won the race."""
        if self.let_go([job]):
            self._loop.call_soon_threadsafe(self._lost, job)
            if (context := self._contexts.get(job)) is not None:
                context.lose()  # now: a task in a thread shall not wait for an event loop that another task blocks
