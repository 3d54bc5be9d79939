"""Takes submissions to the database: those that come at about the same time in one statement, each with its own fate.

When nothing is under way a submission is sent at once. What arrives meanwhile is gathered and goes together, so that
a statement and a commit serve the more submissions the busier the server is, without a timer that a lone one would
wait for. Two steps, each a transaction of its own: recorded as `created`, then accepted.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from leasehold import failpoints
from leasehold.db.pool import Database
from leasehold.db.sqlstates import of_one_row
from leasehold.db.store import Refused, Seen, Submitted
from leasehold.errors import DatabaseUnavailable, LeaseholdError, LockTimeout
from leasehold.http.problems import Problem, invalid, problem_of
from leasehold.http.schemas import Submission, hint_of
from leasehold.http.settings import ApiSettings

logger = logging.getLogger(__name__)

_LEAST_SECONDS = 0.3
"""What a statement gets even if its oldest submission has waited for long."""


_GONE = Refused("55P03", "the job was pruned meanwhile, or another transaction is changing it")

_IN_USE = "55P03"
"""The code of a submission whose key an open transaction is using."""

_APART_FOR = 5.0
"""Seconds for which submissions with such a key go apart from all others."""

_MOST_BUSY = 1000

_FEW = 32
"""So many are not worth two statements."""


class _Waiter:
    """A submission and whoever waits for what becomes of it."""

    __slots__ = ("answer", "at", "submission")

    def __init__(self, submission: Submission, answer: "asyncio.Future[Seen]") -> None:
        self.submission = submission
        self.answer = answer
        self.at = time.monotonic()

    def tell(self, outcome: "Seen | Problem") -> None:
        """Say what became of it, unless nobody waits any more."""
        if self.answer.done():
            return
        if isinstance(outcome, Problem):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Submitter:
    """The coalescer of one event loop."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self._database = database
        self._settings = settings
        self._waiting: deque[_Waiter] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._sending = 0
        self._busy: dict[str, float] = {}
        """Keys that an open transaction was using, and until when their submissions go apart from all others."""
        self._apart: deque[_Waiter] = deque()
        self._apart_lane: asyncio.Task[None] | None = None
        self.statements = 0
        """How many statements were sent for how many submissions."""
        self.submissions = 0

    @property
    def waiting(self) -> int:
        """How many submissions wait for a lane."""
        return len(self._waiting) + len(self._apart)

    async def submit(self, submission: Submission) -> Seen:
        """The job that the submission is now, its own or the one that has its key. Or a Problem."""
        if self.waiting >= self._settings.waiting:
            raise Problem("overloaded", f"{self.waiting:,} submissions wait already", retry_after=1)
        waiter = _Waiter(submission, asyncio.get_running_loop().create_future())
        if self._busy and self._is_busy(submission.key):
            self._apart.append(waiter)
            if self._apart_lane is None or self._apart_lane.done():
                self._apart_lane = asyncio.create_task(self._drive_apart())
            return await waiter.answer
        self._waiting.append(waiter)
        if len(self._lanes) < self._settings.lanes:
            self._lanes.add(asyncio.create_task(self._drive()))
        return await waiter.answer

    async def submit_all(self, submissions: Sequence[Submission]) -> list[Seen]:
        """The jobs of one batch, all or none."""
        deadline = time.monotonic() + self._database.wait
        first = submissions[0]
        ids = await self._database.anew_ids(len(submissions))
        call = self._database.store.submit_many(
            _array(ids, submissions),
            all_or_none=True,
            queues=_listed(first.queues),
            kinds=_listed(first.kinds),
            durable=False,
        )
        recorded = False
        try:
            rows = await self._database.arun(call, deadline)
            recorded = True
            jobs = await self._accept([row.id for row in rows if isinstance(row, Submitted)], deadline)
        except LockTimeout as error:
            raise Problem(
                "database-unavailable",
                "another transaction is using an idempotency key of this batch, nothing was recorded; repeat it",
                retry_after=1,
            ) from error
        except DatabaseUnavailable as error:
            if not error.sent and not recorded:
                raise
            _log_unknown(len(submissions), error)
            raise Problem(
                "outcome-unknown", "repeat the request with the same idempotency keys", retry_after=1
            ) from error
        if len(jobs) < len(submissions):
            raise _refusal(_GONE)
        return jobs

    async def close(self) -> None:
        """Wait until what is under way has ended."""
        lanes = self._lanes | ({self._apart_lane} if self._apart_lane is not None else set())
        if lanes:
            await asyncio.wait(lanes, timeout=self._database.wait + 1)

    # -- lanes

    async def _drive(self) -> None:
        """Send what waits, batch after batch, until nothing does."""
        try:
            while self._waiting:
                await self._send_some()
        finally:
            # Here, not in a callback of the task: that comes later, and a submission in between would count on us.
            self._lanes.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _drive_apart(self) -> None:
        """Send those whose key was in use a moment ago: no other submission waits for them."""
        while self._apart:
            batch = [self._apart.popleft() for _ in range(min(len(self._apart), _FEW))]
            await self._send_these([waiter for waiter in batch if not waiter.answer.done()], each=True)

    def _is_busy(self, key: str | None) -> bool:
        now = time.monotonic()
        self._busy = {busy: until for busy, until in self._busy.items() if until > now}
        return key in self._busy

    def _note_busy(self, waiter: _Waiter, row: Refused) -> None:
        if row.code == _IN_USE and len(self._busy) < _MOST_BUSY:
            self._busy[waiter.submission.key] = time.monotonic() + _APART_FOR

    async def _send_some(self) -> None:
        await self._send_these(self._take())

    async def _send_these(self, batch: list[_Waiter], *, each: bool = False) -> None:
        self._sending += 1
        try:
            await self._send(batch, each=each)
        except LeaseholdError as error:
            _tell_all(batch, problem_of(error))
        except asyncio.CancelledError:
            _tell_all(batch, Problem("outcome-unknown", "this server is stopping; repeat the request", retry_after=1))
            raise
        except Exception:
            # The lane goes on: others wait for it.
            logger.exception("a defect while submitting")
            _tell_all(batch, Problem("internal", "the server's log has more"))
        finally:
            self._sending -= 1

    def _take(self) -> list[_Waiter]:
        """What one lane sends: all that waits, or its share of many if another lane is free as well.

        Shares keep the lanes out of step: while one batch is in the database, this process works on another.
        """
        waiting = len(self._waiting)
        free = max(1, self._settings.lanes - self._sending)
        share = waiting if waiting <= _FEW else -(-waiting // free)
        batch = [self._waiting.popleft() for _ in range(min(share, self._settings.coalesced))]
        return [waiter for waiter in batch if not waiter.answer.done()]

    async def _record(self, jobs: str, deadline: float, *, each: bool) -> list[Submitted | Refused]:
        """The first step for all in one statement, or one by one if that is refused: each has its own fate."""
        store = self._database.store
        if not each:
            try:
                return await self._database.arun(store.submit_many(jobs, durable=False), deadline)
            except LeaseholdError as error:
                if not of_one_row(error):
                    raise
                logger.info("submitting one by one, to find the one at fault: %s", error)
        return await self._database.arun(
            store.submit_each(jobs, durable=False), max(deadline, time.monotonic() + _LEAST_SECONDS)
        )

    async def _send(self, batch: list[_Waiter], *, each: bool = False) -> None:
        if not batch:
            return
        deadline = max(batch[0].at + self._database.wait, time.monotonic() + _LEAST_SECONDS)
        ids = await self._database.anew_ids(len(batch))
        if failpoints.ARMED:
            failpoints.reach("before-submit")
        self.statements += 1
        self.submissions += len(batch)
        submissions = [waiter.submission for waiter in batch]
        try:
            rows = await self._record(_array(ids, submissions), deadline, each=each)
        except DatabaseUnavailable as error:
            if not error.sent:
                raise
            _log_unknown(len(batch), error)
            for waiter, job_id in zip(batch, ids, strict=True):
                waiter.tell(_unknown(waiter, job_id))
            return
        if failpoints.ARMED:
            failpoints.reach("after-submit")
        recorded: list[tuple[_Waiter, Submitted]] = []
        for waiter, row in zip(batch, rows, strict=True):
            if isinstance(row, Refused):
                self._note_busy(waiter, row)
                waiter.tell(_refusal(row))
            elif not waiter.submission.shows(row):
                waiter.tell(_conflict())
            else:
                recorded.append((waiter, row))
        await self._settle(recorded, deadline)

    async def _settle(self, recorded: list[tuple[_Waiter, Submitted]], deadline: float) -> None:
        try:
            jobs = await self._accept([row.id for _, row in recorded], deadline)
        except DatabaseUnavailable as error:
            _log_unknown(len(recorded), error)
            # Recorded, but whether it may run is unknown: the client's repetition finds it by its key and accepts it.
            for waiter, row in recorded:
                waiter.tell(_unknown(waiter, row.id))
            return
        if failpoints.ARMED:
            failpoints.reach("after-accept")
        found = {job.id: job for job in jobs}
        for waiter, row in recorded:
            job = found.get(row.id)
            if job is not None and row.differs is not None:
                job = job._replace(differs=row.differs)
            waiter.tell(job or _refusal(_GONE))

    async def _accept(self, ids: list[UUID], deadline: float) -> list[Seen]:
        """The second step; of those that were accepted before it only tells what they are now."""
        if not ids:
            return []
        store = self._database.store
        try:
            rows = await self._database.arun(store.accept_many(ids, notify=False), deadline)
        except LeaseholdError as error:
            if not of_one_row(error):
                raise
            logger.info("accepting one by one, to find the one at fault: %s", error)
            deadline = max(deadline, time.monotonic() + _LEAST_SECONDS)
            rows = await self._database.arun(store.accept_each(ids, notify=False), deadline)
        if hints := {hint_of(job) for job in rows if job.state in {"created", "queued"}}:
            self._database.hints.hint(*hints)
        return rows


def _array(ids: Sequence[str], submissions: Sequence[Submission]) -> str:
    pairs = zip(ids, submissions, strict=True)
    return "[" + ",".join(f'{{"id":"{job_id}",{submission.element}' for job_id, submission in pairs) + "]"


def _listed(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _tell_all(batch: list[_Waiter], problem: Problem) -> None:
    for waiter in batch:
        waiter.tell(problem)


def _refusal(row: Refused) -> Problem:
    match row.code:
        case "LH003":
            return invalid(("", row.detail))
        case "LH004":
            return _conflict()
        case "LH008":
            return not_allowed()
        case "40001":
            return Problem("database-unavailable", "the job was pruned meanwhile; repeat the request", retry_after=1)
        case "55P03":
            return Problem("database-unavailable", f"{row.detail}; repeat the request", retry_after=1)
        case _:
            return invalid(("", f"the database refuses it: {row.detail}"))


def not_allowed() -> Problem:
    """The caller may not use the queue that the kind's task declares, and is not to know which one that is."""
    return Problem("forbidden", "this token is not good for the queue that jobs of that jobType wait in")


def _conflict() -> Problem:
    return Problem("idempotency-conflict", "the key belongs to another job")


def _log_unknown(count: int, error: DatabaseUnavailable) -> None:
    logger.warning("%d submissions are answered with 503, their outcome is unknown: %s", count, error)


def _unknown(waiter: _Waiter, job_id: UUID | str) -> Problem:
    return Problem(
        "outcome-unknown",
        "repeat the request with the same idempotency key; the job has this id unless the key was in use before",
        retry_after=1,
        jobId=str(job_id),
        idempotencyKey=waiter.submission.key,
    )
