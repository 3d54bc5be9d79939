"""Reports outcomes: many jobs in one fenced statement, kept and repeated until the database has answered.

A report that the database refuses fails alone: the others of its batch are written without it, and its job is failed
with the reason. Whatever the database answers, this loop goes on.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from leasehold import failpoints
from leasehold.context import LogLine
from leasehold.db.link import Backoff, Link
from leasehold.db.sqlstates import blames_values, of_one_row
from leasehold.db.store import ClaimedJob, Store
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.outcome import Cancelled, Failed, Lost, Outcome, Snoozed, Success
from leasehold.worker import lines as log
from leasehold.worker.apart import Apart
from leasehold.worker.reports import failure, plainly
from leasehold.worker.statistics import Tally, counting

if TYPE_CHECKING:
    from leasehold.db.outage import Outage
    from leasehold.worker.lease import LeaseKeeper
    from leasehold.worker.worker import Worker

logger = logging.getLogger(__name__)

_LARGEST_REPORT = 1000

_STUBBORN = 60.0
"""Seconds of refusals, of a kind that may pass, after which a job is failed with the reason instead."""

_HOPELESS = 300.0
"""Seconds of refusals after which a job is left to its lease: another worker may have more luck."""

_PART = "reporting"

_Report = tuple[ClaimedJob, Outcome, Sequence[LogLine]]
_Send = Callable[[Sequence[_Report]], Awaitable[None]]


class Finisher:
    """The loop that writes outcomes. While a report is on its way, the next one gathers."""

    def __init__(self, worker: "Worker", link: Link, store: Store, keeper: "LeaseKeeper", outage: "Outage") -> None:
        self._worker = worker
        self._link = link
        self._store = store
        self._keeper = keeper
        self._outage = outage
        self._outcomes: list[_Report] = []
        self._under_way = 0
        self._reported = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self.waiting_since: float | None = None
        """Since when outcomes wait without any of them being written; None: none waits."""
        self.tally = Tally()
        """What became of the jobs whose report counts."""
        self._apart = Apart(worker.id, link, store, keeper, self.tally)
        self._apart.on_done = self._written
        self.on_retry: Callable[[], None] = lambda: None
        """Called when a job will be due again: upkeep should look when."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when outcomes have been written, or need not be: there is room again."""

    @property
    def backlog(self) -> int:
        """Outcomes not yet answered by the database."""
        return len(self._outcomes) + self._under_way + len(self._apart)

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
            self.waiting_since = time.monotonic()
            try:
                await self._write(batch)
            finally:
                self._under_way = 0
            self.waiting_since = None
            self._worker.app.telemetry.emit("jobs.reported", jobs=len(batch))
            self._written()

    def _written(self) -> None:
        if not self.backlog:
            self._empty.set()
        self.on_written()

    async def drain(self) -> None:
        """Return when everything has been written, or, with the database away, when its leases are gone."""
        self._draining = True
        await self._empty.wait()

    async def stop(self) -> None:
        """End what still runs in the background once the loop has ended."""
        await self._apart.stop()

    # -- a batch

    async def _write(self, batch: list[_Report]) -> None:
        """Send until all is answered: whether a lease still holds, the database says.

        Only a worker that wants to stop gives up by its own clock; then nothing is known to count.
        """
        await self._write_lines([report for report in batch if report[2]])
        backoff, began = Backoff(), time.monotonic()
        pending: list[_Report] = batch
        while pending:
            left = await self._round(pending)
            if not left:
                self._outage.over(_PART)
                return
            for error in dict.fromkeys(error for _, error in left):  # successes and failures have one each
                self._outage.met(_PART, error)
            refused_for = time.monotonic() - began
            pending = [after for report, error in left if (after := self._next_try(report, error, refused_for))]
            if pending:
                await asyncio.sleep(backoff.pause())

    def _next_try(self, report: _Report, error: LeaseholdError, refused_for: float) -> _Report | None:
        """What to send for a report that was not taken; None: nothing more."""
        job, outcome, lines = report
        if self._draining and not self._keeper.holds(job):
            return None
        if isinstance(error, DatabaseUnavailable):
            return report
        if refused_for > _HOPELESS:
            logger.error("job %s (%s): left to its lease, no report of it is taken: %s", job.id, job.kind, error)
            self._keeper.let_go([job])
            return None
        if blames_values(error) or refused_for > _STUBBORN:
            logger.error("job %s (%s): failed, for its report is refused: %s", job.id, job.kind, error)
            return job, plainly(outcome, error), lines
        return report

    async def _round(self, reports: list[_Report]) -> list[tuple[_Report, LeaseholdError]]:
        """Send each once; give those that were not taken, and why."""
        done: list[_Report] = []
        failed: list[_Report] = []
        released: list[_Report] = []
        for report in reports:
            if type(report[1]) is Success:
                done.append(report)
            elif isinstance(report[1], Failed | Snoozed | Cancelled):
                failed.append(report)
            else:
                released.append(report)
        left: list[tuple[_Report, LeaseholdError]] = []
        for send, group in ((self._complete, done), (self._fail, failed), (self._release, released)):
            if group:
                left += await self._isolated(send, group)
        return left

    async def _isolated(self, send: _Send, reports: list[_Report]) -> list[tuple[_Report, LeaseholdError]]:
        """All in one statement; if that is refused, one by one, so that the one at fault fails alone."""
        try:
            await send(reports)
        except LeaseholdError as error:
            if not of_one_row(error):
                return [(report, error) for report in reports]
            if blames_values(error):  # the job whose report it is has a line of its own, each time
                logger.warning("%d reports are written one by one: %s", len(reports), error)
            else:
                self._outage.met(_PART, error)
            try:
                await self._apart.write(reports)
            except LeaseholdError as trouble:
                return [(report, trouble) for report in reports]
            self.on_retry()
        else:
            self._keeper.let_go([job for job, _, _ in reports])
        self.waiting_since = time.monotonic()
        return []

    # -- the statements

    async def _complete(self, reports: Sequence[_Report]) -> None:
        jobs = [job for job, _, _ in reports]
        results = [outcome.result if isinstance(outcome, Success) else None for _, outcome, _ in reports]
        _reach("before-complete")
        counted = await self._link.run(self._store.complete(self._worker.id, jobs, results))
        refused: list[ClaimedJob] = []
        if counted != len(jobs):  # which they are is asked only when there are any: they are rare
            ids = await self._link.run(self._store.completed(self._worker.id, jobs, results))
            refused = _missing(jobs, ids)
        self.tally.finished("success", counting(jobs, refused))
        _reach("after-complete")
        self._say_refused(refused)

    async def _fail(self, reports: Sequence[_Report]) -> None:
        jobs = [job for job, _, _ in reports]
        failures = [failure(job, outcome) for job, outcome, _ in reports]
        _reach("before-fail")
        counted = await self._link.run(self._store.fail_many(self._worker.id, json.dumps(failures)))
        _reach("after-fail")
        self.tally.reported(jobs, failures, counted)
        for job, outcome, _ in reports:
            if job.id in counted:
                log.reported(self._worker.id, job, outcome, counted[job.id])
        self.on_retry()
        self._say_refused(_missing(jobs, counted))

    async def _release(self, reports: Sequence[_Report]) -> None:
        jobs = [job for job, _, _ in reports]
        _reach("before-release")
        released = await self._link.run(self._store.release(self._worker.id, jobs))
        missing = _missing(jobs, released)
        self.tally.finished("released", counting(jobs, missing))
        _reach("after-release")
        self._say_refused(missing)

    async def _write_lines(self, said: list[_Report]) -> None:
        """Before the outcomes: afterwards nothing may be written for these attempts. What is refused is lost."""
        if not said:
            return
        lines = [json.dumps(lines) for _, _, lines in said]
        try:
            await self._link.run(self._store.add_logs(self._worker.id, [job for job, _, _ in said], lines))
        except LeaseholdError as error:
            if blames_values(error) and len(said) > 1:
                half = len(said) // 2
                await self._write_lines(said[:half])
                await self._write_lines(said[half:])
            else:
                logger.warning("the log lines of %d job(s) are lost: %s", len(said), error)

    def _say_refused(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            log.refused(self._worker.id, job)


def _reach(point: str) -> None:
    if failpoints.ARMED:
        failpoints.reach(point)


def _missing(jobs: Sequence[ClaimedJob], counted: Collection[str]) -> list[ClaimedJob]:
    return [job for job in jobs if job.id not in counted]
