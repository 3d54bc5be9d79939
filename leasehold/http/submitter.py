"""Many requests, few statements: items that arrive while a statement is under way go together in the next one.

When nothing is under way an item is sent at once. So a statement serves the more items the busier the server is, and
no item waits for a timer. A submission takes two statements, each a transaction of its own: it is recorded as
`created`, then accepted; and it has its own outcome, whatever becomes of the others in its statement.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar, cast
from uuid import UUID

from leasehold import _failpoints as failpoints
from leasehold._logger import logger_of
from leasehold.db.call import Call
from leasehold.db.database import Database
from leasehold.db.sqlstates import of_one_row
from leasehold.db.store import Refused, Seen, Submitted
from leasehold.errors import DatabaseUnavailable, LeaseholdError, LockTimeout
from leasehold.http.problems import Problem, invalid, problem_of
from leasehold.http.settings import ApiSettings
from leasehold.operate.caller import Caller

logger = logger_of(__name__)

T = TypeVar("T")
R = TypeVar("R")

LEAST_SECONDS = 0.3
"""What a statement gets even if its oldest item has waited for long."""


@dataclass(slots=True, eq=False)
class Waiter(Generic[T, R]):
    """An item, and the future that its request waits for."""

    item: T
    answer: "asyncio.Future[R]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    at: float = field(default_factory=time.monotonic)

    def resolve(self, outcome: R | Problem) -> None:
        """Set the outcome, unless the request is gone."""
        if self.answer.done():
            return
        if isinstance(outcome, Problem):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Coalescer(Generic[T, R]):
    """Sends items in batches, for one event loop."""

    def __init__(
        self, send: Callable[[list[Waiter[T, R]]], Awaitable[None]], *, senders: int, most: int, stopped: Problem
    ) -> None:
        self._send = send
        """Sets the outcome of each waiter. What it raises is the outcome of all."""
        self._senders = senders
        """How many batches may be under way at a time."""
        self._most = most
        self._stopped = stopped
        """The outcome of a batch that is cancelled."""
        self._waiting: deque[Waiter[T, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, item: T) -> R:
        """Return the outcome of the item, or raise a Problem."""
        waiter: Waiter[T, R] = Waiter(item)
        self._waiting.append(waiter)
        if len(self._tasks) < self._senders:
            self._tasks.add(asyncio.create_task(self._drive()))
        return await waiter.answer

    async def close(self, seconds: float) -> None:
        """Wait until the batches under way have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _drive(self) -> None:
        try:
            while self._waiting:
                if batch := self._take():
                    await self._send_batch(batch)
        finally:
            # Not in a callback of the task: that runs later, and an item that came before would wait for this task.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _send_batch(self, batch: list[Waiter[T, R]]) -> None:
        outcome = self._stopped
        self._sending += 1
        try:
            await self._send(batch)
        except Exception as error:  # noqa: BLE001 (the next batch is sent all the same)
            outcome = problem_of(error, f"{len(batch)} requests")
        finally:
            self._sending -= 1
            for waiter in batch:
                waiter.resolve(outcome)

    def _take(self) -> list[Waiter[T, R]]:
        """Return all that wait, or a share of many: while one batch is in the database, another is prepared."""
        waiting = len(self._waiting)
        free = max(1, self._senders - self._sending)
        share = waiting if waiting <= 32 else -(-waiting // free)  # few are not worth two statements
        batch = [self._waiting.popleft() for _ in range(min(share, self._most))]
        return [waiter for waiter in batch if not waiter.answer.done()]


# -- submissions

_GONE: Final = Refused("55P03", "the job was pruned meanwhile, or another transaction is changing it")

_UNKNOWN: Final = "%d submissions are answered with 503, their outcome is unknown: %s"


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid request for a job, ready for the database."""

    key: str
    element: str  # the element of submit_many's array, as JSON text without its opening brace and id

    caller: Caller  # sees the job that has the key only if it may


_Waiting = Waiter[Submission, Seen]


class Submitter:
    """Submits the jobs of all requests of one event loop."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self._database = database
        self._most_waiting = settings.waiting
        stopped = Problem("outcome-unknown", "this server is stopping; repeat the request", retry_after=1)
        self._together: Coalescer[Submission, Seen] = Coalescer(
            self._send, senders=settings.senders, most=settings.coalesced, stopped=stopped
        )
        self._apart: Coalescer[Submission, Seen] = Coalescer(
            partial(self._send, each=True), senders=1, most=32, stopped=stopped
        )
        self._busy: dict[str, float] = {}
        """Keys that an open transaction was using, and until when their submissions are sent apart from all others."""
        self.statements = 0
        """How many statements were sent for how many submissions."""
        self.submissions = 0

    @property
    def waiting(self) -> int:
        """How many submissions wait to be sent."""
        return len(self._together) + len(self._apart)

    async def submit(self, submission: Submission) -> Seen:
        """Return the job that the submission is now, a new one or the one that has its key; or raise a Problem."""
        if self.waiting >= self._most_waiting:
            raise Problem("overloaded", f"{self.waiting:,} submissions wait already", retry_after=1)
        if self._busy:
            now = time.monotonic()
            self._busy = {key: until for key, until in self._busy.items() if until > now}
        return await (self._apart if submission.key in self._busy else self._together).ask(submission)

    async def submit_all(self, submissions: Sequence[Submission]) -> list[Seen]:
        """Return the jobs of one batch, all or none."""
        deadline = time.monotonic() + self._database.wait
        jobs = _array(await self._database.anew_ids(len(submissions)), submissions)
        narrow = submissions[0].caller.narrow()
        call = self._database.store.submit_many(jobs, all_or_none=True, **narrow, durable=False)
        recorded = False
        try:
            rows = await self._database.arun(call, deadline)
            recorded = True
            accepted = await self._accept([row.id for row in rows if isinstance(row, Submitted)], deadline)
        except LockTimeout as error:
            detail = "another transaction is using an idempotency key of this batch, nothing was recorded; repeat it"
            raise Problem("database-unavailable", detail, retry_after=1) from error
        except DatabaseUnavailable as error:
            if not error.sent and not recorded:
                raise
            logger.warning(_UNKNOWN, len(submissions), error)
            detail = "repeat the request with the same idempotency keys"
            raise Problem("outcome-unknown", detail, retry_after=1) from error
        if len(accepted) < len(submissions):
            raise refusal(_GONE)
        return accepted

    async def close(self) -> None:
        """Wait until the statements under way have ended."""
        for each in (self._together, self._apart):
            await each.close(self._database.wait + 1)

    # -- one statement

    async def _run(self, many: Call[list[T]], each: Callable[[], Call[list[T]]], deadline: float) -> list[T]:
        """Run the statement for all; if it fails because of one row, the statement that treats each on its own."""
        try:
            return await self._database.arun(many, deadline)
        except LeaseholdError as error:
            if not of_one_row(error):
                raise
            logger.info("one by one, because one of many is at fault: %s", error)
        return await self._database.arun(each(), max(deadline, time.monotonic() + LEAST_SECONDS))

    async def _send(self, batch: list[_Waiting], *, each: bool = False) -> None:
        deadline = max(batch[0].at + self._database.wait, time.monotonic() + LEAST_SECONDS)
        ids = await self._database.anew_ids(len(batch))
        if failpoints.ARMED:
            failpoints.reach("before-submit")
        self.statements += 1
        self.submissions += len(batch)
        jobs = _array(ids, [waiter.item for waiter in batch])
        store = self._database.store
        submit_each = partial(store.submit_each, jobs, durable=False)
        try:
            call = submit_each() if each else store.submit_many(jobs, durable=False)
            rows = await self._run(call, submit_each, deadline)
        except DatabaseUnavailable as error:
            if not error.sent:
                raise
            _resolve_unknown(list(zip(batch, ids, strict=True)), error)
            return
        if failpoints.ARMED:
            failpoints.reach("after-submit")
        recorded: list[tuple[_Waiting, Submitted]] = []
        for waiter, row in zip(batch, rows, strict=True):
            if isinstance(row, Refused):
                if row.code == "55P03" and len(self._busy) < 1000:  # an open transaction is using its key
                    self._busy[waiter.item.key] = time.monotonic() + 5
                waiter.resolve(refusal(row))
            elif (caller := waiter.item.caller).restricted and not caller.may(queue=row.queue, kind=row.kind):
                waiter.resolve(refusal(Refused("LH004", "")))
            else:
                recorded.append((waiter, row))
        await self._settle(recorded, deadline)

    async def _settle(self, recorded: list[tuple[_Waiting, Submitted]], deadline: float) -> None:
        try:
            jobs = await self._accept([row.id for _, row in recorded], deadline)
        except DatabaseUnavailable as error:
            # Recorded, but whether it may run is unknown: the client's repetition finds it by its key and accepts it.
            _resolve_unknown([(waiter, row.id) for waiter, row in recorded], error)
            return
        if failpoints.ARMED:
            failpoints.reach("after-accept")
        found = {job.id: job for job in jobs}
        for waiter, row in recorded:
            job = found.get(row.id)
            if job is not None and row.differs is not None:
                job = job._replace(differs=row.differs.replace("kind", "jobType"))
            waiter.resolve(job or refusal(_GONE))

    async def _accept(self, ids: list[UUID], deadline: float) -> list[Seen]:
        """Accept jobs, the second step; return those that were accepted before as they are now."""
        if not ids:
            return []
        store = self._database.store
        return await self._run(store.accept_many(ids), partial(store.accept_each, ids), deadline)


def _array(ids: Sequence[str], submissions: Sequence[Submission]) -> str:
    pairs = zip(ids, submissions, strict=True)
    return "[" + ",".join(f'{{"id":"{job_id}",{submission.element}' for job_id, submission in pairs) + "]"


_COMPARED: Final = {"payload": "payload", "queue": "queue", "priority": "priority", "kind": "jobType"}
"""What the database compares, with the API's names."""


def conflict(detail: str) -> str:
    """Return what is wrong with a used key. Where the caller may see the job, the database has compared the two."""
    differing = detail.rpartition(" with another ")[2].split(", ")
    if _COMPARED.keys() >= set(differing):
        return f"the key was used before, for a job with another {', '.join(_COMPARED[name] for name in differing)}"
    return "the key belongs to another job"


def refusal(row: Refused) -> Problem:
    """Return the problem for the client of a submission that was not recorded."""
    match row.code:
        case "LH003":
            return invalid(("", row.detail))
        case "LH004":
            return Problem("idempotency-conflict", conflict(row.detail))
        case "LH008":  # it may not use the queue that the kind's task declares, nor know its name
            return Problem("forbidden", "this token is not good for the queue that jobs of that jobType wait in")
        case "40001":
            return Problem("database-unavailable", "the job was pruned meanwhile; repeat the request", retry_after=1)
        case "55P03":
            return Problem("database-unavailable", f"{row.detail}; repeat the request", retry_after=1)
        case _:
            return invalid(("", f"the database refuses it: {row.detail}"))


def _resolve_unknown(submitted: Sequence[tuple[_Waiting, UUID | str]], error: DatabaseUnavailable) -> None:
    logger.warning(_UNKNOWN, len(submitted), error)
    detail = "repeat the request with the same idempotency key; the job has this id unless the key was in use before"
    for waiter, job_id in submitted:
        key = waiter.item.key
        waiter.resolve(Problem("outcome-unknown", detail, retry_after=1, jobId=str(job_id), idempotencyKey=key))
