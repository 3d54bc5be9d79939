"""Reports outcomes: many jobs in one fenced statement, kept and repeated until the database has answered.

A report that the database refuses fails alone: the others of its batch are written without it, and its job is failed
with the reason. One whose row is locked waits apart from all others. Whatever the database answers, this loop goes on.
It dies, and its worker with it, where the worker itself is at fault: its leases would keep the jobs from all others.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from leasehold import _failpoints as failpoints
from leasehold._aio import cancel
from leasehold._clock import monotonic
from leasehold._logger import logger_of
from leasehold.context import LogLine
from leasehold.db.connections.link import Backoff
from leasehold.db.sqlstates import blames_values, of_one_row
from leasehold.db.store import ClaimedJob, Reported, Token
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.outcome import Failed, Outcome, Released, Success
from leasehold.upkeep.loop import Loop, Ports
from leasehold.worker import log_lines
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.outcomes import NO_RESULT, failure_of, fields_of, refused, report_of, without_text
from leasehold.worker.statistics import Tally

logger = logger_of(__name__)

_PART = "reporting"
_CUT_OFF = 300.0
"""Seconds for which no connection can be opened for reports, while leases are renewed, after which this loop dies."""

Report = tuple[ClaimedJob, Outcome, Sequence[LogLine]]
_Send = Callable[[Sequence[Report]], Awaitable[None]]


class Outbox:
    """Reports that wait for the finisher, and the number of those that it has not yet written."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._taken: list[Report] = []
        self._arrived = asyncio.Event()
        self.empty = asyncio.Event()
        """Set when every report has been answered by the database, or given up."""
        self.empty.set()
        self.under_way = 0
        """Reports that the finisher has taken and that are not yet answered."""

    @property
    def backlog(self) -> int:
        """Reports not yet answered by the database."""
        return len(self._reports) + self.under_way

    def put(self, job: ClaimedJob, outcome: Outcome, lines: Sequence[LogLine] = ()) -> None:
        """Add a report; it is written within milliseconds, and until then its lease is kept."""
        if not self._reports:
            self.empty.clear()
            self._arrived.set()
        self._reports.append((job, outcome, lines))

    async def take(self) -> list[Report]:
        """Wait for reports, and return all that one statement can write."""
        await self._arrived.wait()
        await asyncio.sleep(0)  # until every job that ends in this turn of the loop has added its own
        batch = self._reports[:1000]
        size = 0
        for place, (_, outcome, lines) in enumerate(batch):
            if outcome is not NO_RESULT or lines:
                size += _size(outcome, lines)
                if size > 4_000_000 and place:  # characters; a single report may have more
                    del batch[place:]
                    break
        del self._reports[: len(batch)]
        if not self._reports:
            self._arrived.clear()
        self.under_way += len(batch)
        self._taken = batch
        return batch

    def has_report_of(self, token: Token) -> bool:
        """Return whether a report of this attempt waits, or is under way: its job is not to be released."""
        known = (*self._taken, *self._reports)
        return any(job.id == token.id and job.attempt == token.attempt for job, _, _ in known)

    def answered(self, reports: int) -> None:
        """Note that so many are written, or need not be."""
        self.under_way -= reports
        if not self.backlog:
            self._taken = []
            self.empty.set()


class Finisher(Loop):
    """The loop that writes outcomes. While a batch is under way, the next one gathers in the outbox."""

    def __init__(
        self, ports: Ports, *, outbox: Outbox, keeper: LeaseKeeper, tally: Tally, written: Callable[[], None],
        retry: Callable[[], None], reported: Callable[[Sequence[ClaimedJob]], None],
    ) -> None:  # fmt: skip
        """`written` is called after reports were answered, `retry` after jobs became due at a later time.

        `reported` is called with the jobs whose reports are answered or given up.
        """
        super().__init__(ports)
        self._outbox = outbox
        self._keeper = keeper
        self._tally = tally
        self._written = written
        self._retry = retry
        self._reported = reported
        self.waiting_since: float | None = None
        """Since when no report of a batch has been accepted; None: no batch is under way."""
        self._locked: set[asyncio.Task[None]] = set()
        """Reports whose row is locked, repeated in the background while their lease lasts."""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            batch = await self._outbox.take()
            self.waiting_since = monotonic()
            await self._write(batch)
            self.waiting_since = None
            if self._telemetry.heard:
                self._telemetry.emit("jobs.reported", jobs=len(batch))
            self._answered(len(batch))

    def _answered(self, reports: int) -> None:
        self._outbox.answered(reports)
        self._written()

    def _let_go(self, jobs: Sequence[ClaimedJob]) -> None:
        self._keeper.let_go(jobs)
        self._reported(jobs)

    async def drain(self) -> None:
        """Return when every report is written or, with the database away, when its lease has expired."""
        self._stopping = True
        await self._outbox.empty.wait()

    async def close(self) -> None:
        """Cancel the reports that wait in the background, once the loop has ended: they are left to their leases."""
        await cancel(*self._locked)

    # -- a batch

    async def _write(self, batch: list[Report]) -> None:
        """Send until all is answered: only the database knows whether a lease still holds."""
        await self._write_lines([report for report in batch if report[2]])
        backoff, began = Backoff(), monotonic()
        pending: list[Report] = batch
        while pending:
            renewed = self._keeper.answered
            left = await self._round(pending)
            if not left:
                if self._outage.noted:
                    self._outage.over(_PART)
                return
            for error in dict.fromkeys(error for _, error in left):  # successes and failures have one each
                self._outage.met(_PART, error)
                if self._is_cut_off(error, renewed):
                    raise error
            refused_for = monotonic() - began
            pending = [after for report, error in left if (after := self._next_try(report, error, refused_for))]
            if pending:
                await asyncio.sleep(backoff.pause())

    def _is_cut_off(self, error: LeaseholdError, renewed: float) -> bool:
        """Return whether this worker alone is at fault; `renewed`: when it last renewed a lease before the call."""
        if (since := self._link.unconnected_since) is None:
            return False
        # A task may have lowered the limit of descriptors, or used them up, for a moment only.
        return monotonic() - since > 10 if getattr(error, "local", False) else renewed - since > _CUT_OFF

    def _next_try(self, report: Report, error: LeaseholdError, refused_for: float) -> Report | None:
        """Return what to send for a report that was not accepted; None: nothing more."""
        job, outcome, lines = report
        if self._stopping and not self._keeper.holds(job):  # by this worker's clock; whether it counts is not known
            return None
        if isinstance(error, DatabaseUnavailable):
            return report
        if refused_for > 300:  # seconds: another worker may have more luck
            logger.error("job %s (%s): left to its lease, no report of it is taken: %s", job.id, job.kind, error)
            self._let_go([job])
            return None
        if blames_values(error) or refused_for > 60:  # seconds of refusals of a kind that may pass
            logger.error("job %s (%s): failed, for its report is refused: %s", job.id, job.kind, error)
            return job, without_text(outcome, error), lines
        return report

    async def _round(self, reports: list[Report]) -> list[tuple[Report, LeaseholdError]]:
        """Send each once; return those that were not accepted, and why."""
        senders: dict[type[Outcome], _Send] = {Success: self._complete, Released: self._release}
        groups: dict[_Send, list[Report]] = {}
        for report in reports:
            groups.setdefault(senders.get(type(report[1]), self._fail), []).append(report)
        return [one for send, group in groups.items() for one in await self._isolated(send, group)]

    async def _isolated(self, send: _Send, reports: list[Report]) -> list[tuple[Report, LeaseholdError]]:
        """Send all in one statement; if that is refused, one by one, so that the one at fault fails alone."""
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
                await self._write_each(reports)
            except LeaseholdError as trouble:
                return [(report, trouble) for report in reports]
            self._retry()
        else:
            self._let_go([job for job, _, _ in reports])
        self.waiting_since = monotonic()
        return []

    # -- the statements

    async def _complete(self, reports: Sequence[Report]) -> None:
        jobs, outcomes, _ = zip(*reports, strict=True)
        results = [outcome.result for outcome in outcomes]
        _reach("before-complete")
        ids: set[str] | None = None
        counted = await self._link.run(self._store.complete(self._worker_id, jobs, results))
        if counted != len(jobs):  # which ones count is queried only when not all do: that is rare
            ids = await self._link.run(self._store.completed(self._worker_id, jobs, results))
        _reach("after-complete")
        late = [] if ids is None else [job for job in jobs if job.id not in ids]
        self._tally.finished("success", [job for job in jobs if job not in late] if late else jobs)
        for job in late:
            log_lines.refused(self._worker_id, job)

    async def _fail(self, reports: Sequence[Report]) -> None:
        failures = [failure_of(job, outcome) for job, outcome, _ in reports]
        _reach("before-fail")
        states = await self._link.run(self._store.fail_many(self._worker_id, json.dumps(failures)))
        completed = await self._completed([job for job, _, _ in reports if job.id not in states])
        _reach("after-fail")
        self._note(reports, states, completed)
        if states:
            self._retry()

    async def _release(self, reports: Sequence[Report]) -> None:
        jobs = [job for job, _, _ in reports]
        _reach("before-release")
        ids = await self._link.run(self._store.release(self._worker_id, jobs))
        completed = await self._completed([job for job in jobs if job.id not in ids])
        _reach("after-release")
        self._note(reports, dict.fromkeys(ids, "queued"), completed)

    async def _completed(self, jobs: Sequence[ClaimedJob]) -> set[str]:
        """Return which of these jobs, whose reports do not count, were completed by their tasks' own transactions."""
        inside = [job for job in jobs if job.completes]
        if not inside:
            return set()
        # Completes none: they are not this worker's any more.
        return await self._link.run(self._store.completed(self._worker_id, inside, [None] * len(inside)))

    def _note(self, reports: Sequence[Report], states: Mapping[str, str], completed: Collection[str]) -> None:
        """Count and log reports: `states` has the new state of each job whose report counts.

        `completed` are jobs that their tasks' own transactions have completed, whatever the tasks did afterwards.
        """
        self._tally.reported([job for job, _, _ in reports], [fields_of(outcome) for _, outcome, _ in reports], states)
        for job, outcome, _ in reports:
            if job.id in states:
                log_lines.reported(self._worker_id, job, outcome, states[job.id])
            elif job.id in completed:
                self._tally.finished("success", [job])
                log_lines.completed(self._worker_id, job, outcome)
            else:
                log_lines.refused(self._worker_id, job)

    async def _write_lines(self, reports: list[Report]) -> None:
        """Write log lines, before the outcomes: afterwards none may be written. What is refused is lost."""
        if not reports:
            return
        lines = [json.dumps(lines) for _, _, lines in reports]
        try:
            jobs = [job for job, _, _ in reports]
            log_lines.stored(jobs, await self._link.run(self._store.add_logs(self._worker_id, jobs, lines)))
        except LeaseholdError as error:
            if blames_values(error) and len(reports) > 1:
                half = len(reports) // 2
                await self._write_lines(reports[:half])
                await self._write_lines(reports[half:])
            else:
                logger.warning("the log lines of %d job(s) are lost: %s", len(reports), error)

    # -- one by one

    async def _write_each(self, reports: Sequence[Report]) -> None:
        """Write each, or have it wait in the background. Raises what is no report's own fault."""
        for first in range(0, len(reports), 100):
            some = reports[first : first + 100]
            for report, answer in zip(some, await self._send_each(some), strict=True):
                if answer.answer == "busy":
                    waiting = asyncio.create_task(self._write_locked(report))
                    self._locked.add(waiting)
                    self._outbox.under_way += 1
                    waiting.add_done_callback(self._locked_ended)
                else:
                    self._settle(report, answer)

    async def _send_each(self, reports: Sequence[Report]) -> list[Reported]:
        texts = [report_of(outcome) for _, outcome, _ in reports]
        answers = await self._link.run(self._store.report_each(self._worker_id, [r[0] for r in reports], texts))
        by_id = {answer.id: answer for answer in answers}
        for id_ in await self._completed([job for job, _, _ in reports if by_id[job.id].answer == "lost"]):
            by_id[id_] = Reported(id_, "done", "success", None)
        return [by_id[job.id] for job, _, _ in reports]

    async def _write_locked(self, report: Report) -> None:
        job = report[0]
        logger.warning("job %s (%s): its report waits, another session has locked its row", job.id, job.kind)
        backoff = Backoff(first=0.1, longest=1.0)
        while self._keeper.holds(job):
            await asyncio.sleep(backoff.pause())
            try:
                (answer,) = await self._send_each([report])
            except DatabaseUnavailable:
                continue
            except LeaseholdError as error:
                logger.warning("job %s (%s): left to its lease, its report is refused: %s", job.id, job.kind, error)
                break
            if answer.answer != "busy":
                self._settle(report, answer)
                return
        else:
            logger.warning("job %s (%s): its row was locked for longer than its lease", job.id, job.kind)
        self._let_go([job])

    def _locked_ended(self, task: "asyncio.Task[None]") -> None:
        self._locked.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a report that waited is lost", exc_info=task.exception())
        self._answered(1)

    def _settle(self, report: Report, answer: Reported) -> None:
        job, outcome, _ = report
        self._let_go([job])
        if answer.answer == "refused":
            logger.error("job %s (%s): its report cannot be written: %s", job.id, job.kind, answer.detail)
            if answer.state is None:
                return
            outcome = Failed(error=refused(answer.detail or ""), retry_after=None)
        completed = job.completes and answer.state == "success"
        states = {} if completed or answer.answer == "lost" else {job.id: answer.state or "retry"}
        self._note([(job, outcome, ())], states, [job.id] if completed else [])


def _size(outcome: Outcome, lines: Sequence[LogLine]) -> int:
    """Return how many characters a report has that are the task's own."""
    size = sum([len(text) for _, _, text in lines])
    match outcome:
        case Success(str() as result):
            return size + len(result)
        case Failed(error=error):
            return size + len(error.message) + len(error.traceback)
    return size


def _reach(point: str) -> None:
    if failpoints.ARMED:
        failpoints.reach(point)
