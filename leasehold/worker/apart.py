"""Reports that were not taken in one statement: one by one, and those whose row is locked apart from all others."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from leasehold.context import LogLine
from leasehold.db.link import Backoff, Link
from leasehold.db.store import ClaimedJob, Reported, Store
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.outcome import Cancelled, Error, Failed, Outcome, Snoozed, Success
from leasehold.worker import lines as log
from leasehold.worker.reports import failure

if TYPE_CHECKING:
    from leasehold.worker.lease import LeaseKeeper
    from leasehold.worker.statistics import Tally

logger = logging.getLogger(__name__)

_AT_ONCE = 100

Report = tuple[ClaimedJob, Outcome, Sequence[LogLine]]


class Apart:
    """Writes reports one by one. Those whose row is locked are repeated in the background while their lease lasts."""

    def __init__(self, worker_id: str, link: Link, store: Store, keeper: "LeaseKeeper", tally: "Tally") -> None:
        self._worker_id = worker_id
        self._link = link
        self._store = store
        self._keeper = keeper
        self._tally = tally
        self._waiting: set[asyncio.Task[None]] = set()
        self.on_done: Callable[[], None] = lambda: None
        """Called when one that had to wait is written, or given up."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def write(self, reports: Sequence[Report]) -> None:
        """Write each, or have it wait in the background. Raises what is no report's own fault."""
        for first in range(0, len(reports), _AT_ONCE):
            some = reports[first : first + _AT_ONCE]
            for report, answer in zip(some, await self._send(some), strict=True):
                if answer.answer == "busy":
                    waiting = asyncio.create_task(self._insist(report))
                    self._waiting.add(waiting)
                    waiting.add_done_callback(self._ended)
                else:
                    self._settle(report, answer)

    async def stop(self) -> None:
        """Give up those that wait: the worker ends, and they are left to their leases."""
        waiting = list(self._waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _send(self, reports: Sequence[Report]) -> list[Reported]:
        texts = [text_of(job, outcome) for job, outcome, _ in reports]
        answers = await self._link.run(self._store.report_each(self._worker_id, [r[0] for r in reports], texts))
        by_id = {answer.id: answer for answer in answers}
        return [by_id[job.id] for job, _, _ in reports]

    async def _insist(self, report: Report) -> None:
        job = report[0]
        logger.warning("job %s (%s): its report waits, another session has locked its row", job.id, job.kind)
        backoff = Backoff(first=0.1, longest=1.0)
        while self._keeper.holds(job):
            await asyncio.sleep(backoff.pause())
            try:
                (answer,) = await self._send([report])
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
        self._keeper.let_go([job])

    def _settle(self, report: Report, answer: Reported) -> None:
        job, outcome, _ = report
        self._keeper.let_go([job])
        if answer.answer == "lost":
            log.refused(self._worker_id, job)
        elif answer.answer == "refused":
            logger.error("job %s (%s): its report cannot be written: %s", job.id, job.kind, answer.detail)
            if answer.state is not None:
                self._failed(job, refused_as(answer), answer.state)
        elif isinstance(outcome, Success):
            self._tally.finished("success", [job])
        elif isinstance(outcome, Failed | Snoozed | Cancelled):
            self._failed(job, outcome, answer.state or "retry")
        else:
            self._tally.finished("released", [job])

    def _failed(self, job: ClaimedJob, outcome: Outcome, state: str) -> None:
        self._tally.reported([job], [failure(job, outcome)], {job.id: state})
        log.reported(self._worker_id, job, outcome, state)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._waiting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a report that waited is lost", exc_info=task.exception())
        self.on_done()


def refused_as(answer: Reported) -> Failed:
    """What is on record of an attempt whose report could not be written."""
    error = Error(type="leasehold.ReportRefused", message=answer.detail or "", traceback="")
    return Failed(error=error, retry_after=None)


def text_of(job: ClaimedJob, outcome: Outcome) -> str:
    """An outcome as the SQL function report_each takes it. Whatever is in it can be sent; PostgreSQL judges it."""
    if isinstance(outcome, Success):
        text = f'{{"outcome": "success", "result": {outcome.result}}}' if outcome.result is not None else _SUCCESS
    elif isinstance(outcome, Failed | Snoozed | Cancelled):
        report: dict[str, Any] = failure(job, outcome)
        text = json.dumps(report)
    else:
        text = '{"outcome": "released"}'
    return text.replace("\0", "\\u0000").encode("utf-8", "backslashreplace").decode()


_SUCCESS = '{"outcome": "success"}'
