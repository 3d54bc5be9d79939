"""Reports outcomes: many jobs in one fenced statement, kept and repeated until the database has answered."""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold import failpoints
from leasehold.context import LogLine
from leasehold.db.call import Call
from leasehold.db.link import Backoff, Link
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.outcome import Cancelled, Error, Failed, Lost, Outcome, Snoozed, Success
from leasehold.worker import lines
from leasehold.worker.statistics import Tally, counting

if TYPE_CHECKING:
    from leasehold.worker.lease import LeaseKeeper
    from leasehold.worker.worker import Worker

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LARGEST_REPORT = 1000

_Report = tuple[ClaimedJob, Outcome, Sequence[LogLine]]


class Finisher:
    """The loop that writes outcomes. While a report is on its way, the next one gathers."""

    def __init__(self, worker: "Worker", link: Link, store: Store, keeper: "LeaseKeeper") -> None:
        self._worker = worker
        self._link = link
        self._store = store
        self._keeper = keeper
        self._outcomes: list[_Report] = []
        self._under_way = 0
        self._reported = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self.tally = Tally()
        """What became of the jobs whose report counts."""
        self.on_retry: Callable[[], None] = lambda: None
        """Called when a job will be due again: upkeep should look when."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when outcomes have been written, or need not be: there is room again."""

    @property
    def backlog(self) -> int:
        """Outcomes not yet answered by the database."""
        return len(self._outcomes) + self._under_way

    def report(self, job: ClaimedJob, outcome: Outcome, spoken: Sequence[LogLine] = ()) -> None:
        """Take an outcome; it is written within milliseconds, and until then its lease is kept."""
        if isinstance(outcome, Lost):
            self._keeper.let_go([job])
            self.on_written()
            return
        if not self._outcomes:
            self._empty.clear()
            self._reported.set()
        self._outcomes.append((job, outcome, spoken))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._reported.wait()
            await asyncio.sleep(0)  # let every job that ends in this turn of the loop come along
            batch, self._outcomes = self._outcomes[:_LARGEST_REPORT], self._outcomes[_LARGEST_REPORT:]
            if not self._outcomes:
                self._reported.clear()
            self._under_way = len(batch)
            try:
                await self._write(batch)
            finally:
                self._under_way = 0
            self._worker.app.telemetry.emit("jobs.reported", jobs=len(batch))
            if not self._outcomes:
                self._empty.set()
            self.on_written()

    async def drain(self) -> None:
        """Return when everything has been written, or, with the database away, when its leases are gone."""
        self._draining = True
        await self._empty.wait()

    async def _write(self, batch: list[_Report]) -> None:
        await self._write_lines(batch)
        done: list[ClaimedJob] = []
        results: list[str | None] = []
        failed: list[ClaimedJob] = []
        failures: list[dict[str, Any]] = []
        released: list[ClaimedJob] = []
        for job, outcome, _ in batch:
            if type(outcome) is Success:
                done.append(job)
                results.append(outcome.result)
            elif isinstance(outcome, Failed | Snoozed | Cancelled):
                failed.append(job)
                failures.append(_failure(job, outcome))
            else:
                released.append(job)
        refused: list[ClaimedJob] = []
        if done:
            _reach("before-complete")
            refused = await self._write_successes(done, results)
            self.tally.finished("success", counting(done, refused))
            _reach("after-complete")
        if failed:
            _reach("before-fail")
            counted = await self._insist(self._store.fail_many(self._worker.id, json.dumps(failures)), failed)
            _reach("after-fail")
            refused += _missing(failed, counted)
            self.tally.reported(failed, failures, counted or {})
            self._say(batch, counted or {})
            self.on_retry()
        if released:
            _reach("before-release")
            missing = _missing(released, await self._insist(self._store.release(self._worker.id, released), released))
            self.tally.finished("released", counting(released, missing))
            refused += missing
            _reach("after-release")
        self._keeper.let_go([job for job, _, _ in batch])
        for job in refused:
            lines.refused(self._worker.id, job)

    def _say(self, batch: list[_Report], counted: Mapping[str, str]) -> None:
        for job, outcome, _ in batch:
            if job.id in counted:
                lines.reported(self._worker.id, job, outcome, counted[job.id])

    async def _write_successes(self, done: list[ClaimedJob], results: list[str | None]) -> list[ClaimedJob]:
        """Gives those that were refused. Which they are is asked only when there are any: they are rare."""
        counted = await self._insist(self._store.complete(self._worker.id, done, results), done)
        if counted == len(done):
            return []
        return _missing(done, await self._insist(self._store.completed(self._worker.id, done, results), done) or ())

    async def _write_lines(self, batch: list[_Report]) -> None:
        """Before the outcomes: afterwards nothing may be written for these attempts."""
        said = [(job, json.dumps(spoken)) for job, _, spoken in batch if spoken]
        if said:
            jobs, texts = [job for job, _ in said], [text for _, text in said]
            try:
                await self._link.run(self._store.add_logs(self._worker.id, jobs, texts))
            except LeaseholdError as error:
                logger.warning("what %d jobs said is lost: %s", len(said), error)

    async def _insist(self, call: Call[T], jobs: Collection[ClaimedJob]) -> Any:
        """Repeat the report identically until it is answered: whether the lease still holds, the database says.

        Only a worker that wants to stop gives up by its own clock; then nothing is known to count.
        """
        backoff = Backoff()
        while True:
            try:
                return await self._link.run(call)
            except DatabaseUnavailable as error:
                logger.warning("reporting waits for the database: %s", error)
                if self._draining and not any(self._keeper.holds(job) for job in jobs):
                    return ()
                await asyncio.sleep(backoff.pause())


def _reach(point: str) -> None:
    if failpoints.ARMED:
        failpoints.reach(point)


def _missing(jobs: Sequence[ClaimedJob], counted: Container[str]) -> list[ClaimedJob]:
    return [job for job in jobs if job.id not in counted]


def _failure(job: ClaimedJob, outcome: Failed | Snoozed | Cancelled) -> dict[str, Any]:
    """An outcome as the SQL function fail_many takes it."""
    report: dict[str, Any] = {"id": job.id, "attempt": job.attempt, "claim_id": job.claim_id}
    match outcome:
        case Failed(error=error, retry_after=after, fatal=fatal):
            report |= {"outcome": "failed", "retry_after": after, "fatal": fatal, "error": _error(error)}
        case Snoozed(after):
            report |= {"outcome": "snoozed", "retry_after": after}
        case Cancelled(reason):
            report |= {"outcome": "cancelled", "error": {"message": reason}}
    return report


def _error(error: Error) -> dict[str, str]:
    return {"class": error.type, "message": error.message, "traceback": error.traceback}
