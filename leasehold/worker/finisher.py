"""Reports outcomes: many jobs in one fenced statement, kept and repeated until the database has answered."""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.context import LogLine
from leasehold.db.call import Call
from leasehold.db.link import Backoff, Link
from leasehold.db.store import ClaimedJob, Store, Token
from leasehold.errors import DatabaseUnavailable, LeaseholdError
from leasehold.outcome import Cancelled, Error, Failed, Lost, Outcome, Released, Snoozed, Success

if TYPE_CHECKING:
    from uuid import UUID

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
        self.on_retry: Callable[[], None] = lambda: None
        """Called when a job will be due again: upkeep should look when."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when outcomes have been written, or need not be: there is room again."""

    @property
    def backlog(self) -> int:
        """Outcomes not yet answered by the database. They take up room: no claiming ahead of reporting."""
        return len(self._outcomes) + self._under_way

    def report(self, job: ClaimedJob, outcome: Outcome, lines: Sequence[LogLine] = ()) -> None:
        """Take an outcome; it is written within milliseconds, and until then its lease is kept."""
        if isinstance(outcome, Lost):
            self._keeper.let_go(job.token)
            self.on_written()
            return
        self._outcomes.append((job, outcome, lines))
        self._empty.clear()
        self._reported.set()

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
        done: list[tuple[Token, str | None]] = []
        failed: list[dict[str, Any]] = []
        released: list[Token] = []
        for job, outcome, _ in batch:
            match outcome:
                case Success(result):
                    done.append((job.token, result))
                case Released():
                    released.append(job.token)
                case Failed() | Snoozed() | Cancelled():
                    failed.append(_failure(job, outcome))
        taken: set[UUID] = set()
        if done:
            tokens, results = [token for token, _ in done], [result for _, result in done]
            taken |= await self._insist(self._store.complete(self._worker.id, tokens, results), tokens)
        if failed:
            tokens = [job.token for job, outcome, _ in batch if isinstance(outcome, Failed | Snoozed | Cancelled)]
            call = self._store.fail_many(self._worker.id, json.dumps(failed))
            taken |= set(await self._insist(call, tokens))
            self.on_retry()
        if released:
            taken |= await self._insist(self._store.release(self._worker.id, released), released)
        for job, outcome, _ in batch:
            self._keeper.let_go(job.token)
            if job.id not in taken:
                logger.warning(
                    "job %s (%s): %s refused, the job is no longer this attempt's",
                    job.id,
                    job.kind,
                    type(outcome).__name__,
                )

    async def _write_lines(self, batch: list[_Report]) -> None:
        """Before the outcomes: afterwards nothing may be written for these attempts."""
        said = [(job.token, json.dumps(lines)) for job, _, lines in batch if lines]
        if said:
            tokens, lines = [token for token, _ in said], [text for _, text in said]
            try:
                await self._link.run(self._store.add_logs(self._worker.id, tokens, lines))
            except LeaseholdError as error:
                logger.warning("what %d jobs said is lost: %s", len(said), error)

    async def _insist(self, call: Call[T], tokens: Collection[Token]) -> Any:
        """Repeat the report identically until it is answered: whether the lease still holds, the database says.

        Only a worker that wants to stop gives up by its own clock.
        """
        backoff = Backoff()
        while True:
            try:
                return await self._link.run(call)
            except DatabaseUnavailable as error:
                logger.warning("reporting waits for the database: %s", error)
                if self._draining and not any(self._keeper.holds(token) for token in tokens):
                    return set()
                await asyncio.sleep(backoff.pause())


def _failure(job: ClaimedJob, outcome: Failed | Snoozed | Cancelled) -> dict[str, Any]:
    """An outcome as the SQL function fail_many takes it."""
    report: dict[str, Any] = {"id": str(job.id), "attempt": job.attempt, "claim_id": str(job.claim_id)}
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
