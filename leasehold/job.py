"""A job that was recorded: a handle to look at it and to wait for it."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from leasehold.errors import JobCancelled, JobFailed, JobUnknown, ResultTimeout
from leasehold.importing import refuse_waiting

if TYPE_CHECKING:
    from leasehold.app import App
    from leasehold.db.store import JobStatus, Obstacle

R = TypeVar("R")


class Job(Generic[R]):
    """A handle: it holds the id and asks the database for everything else."""

    def __init__(self, app: "App", job_id: UUID | str, kind: str | None = None, *, created: bool | None = None) -> None:
        self._app = app
        self._id = job_id
        self.created = created
        """Whether this call has recorded it. False: its idempotency key had this job before. None: that is not known,
        of a job that was looked up, or that was enqueued with a key on a connection of yours."""
        self.kind = kind
        """None until the database was asked, if only the id was given."""

    @property
    def id(self) -> UUID:
        """The job's id."""
        if isinstance(self._id, str):  # of a batch, where most are never looked at
            self._id = UUID(self._id)
        return self._id

    def __repr__(self) -> str:
        return f"<Job {self.kind or '?'} {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def status(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED or CANCELLED, as the database has it now."""
        return self.refresh().status

    async def astatus(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED or CANCELLED, as the database has it now."""
        return (await self.arefresh()).status

    def refresh(self) -> "JobStatus":
        """All that a client may know of the job now."""
        database = self._app.database
        return self._known(database.run(database.store.status(self.id)))

    async def arefresh(self) -> "JobStatus":
        """All that a client may know of the job now."""
        database = await self._app.adatabase()
        return self._known(await database.arun(database.store.status(self.id)))

    def result(self, timeout: float | None = None) -> R:
        """Wait until the job has ended, and give what its task returned.

        Raises JobFailed if it is dead (JobCancelled, which is one too, if it was cancelled), ResultTimeout after
        `timeout` seconds.
        """
        refuse_waiting(self)
        for pause in _pauses(timeout):
            now = self.refresh()
            if now.finished_at is not None:
                return self._outcome(now)
            time.sleep(pause)
        raise self._late(timeout)

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 (says what came of the job, not of the call)
        """Wait until the job has ended, and give what its task returned.

        Raises JobFailed if it is dead (JobCancelled, which is one too, if it was cancelled), ResultTimeout after
        `timeout` seconds.
        """
        refuse_waiting(self)
        for pause in _pauses(timeout):
            now = await self.arefresh()
            if now.finished_at is not None:
                return self._outcome(now)
            await asyncio.sleep(pause)
        raise self._late(timeout)

    def explain(self) -> "list[Obstacle]":
        """Why the job is not running: nothing, if it may be taken any moment."""
        return self._app.database.run(self._app.database.store.explain(self.id))

    async def aexplain(self) -> "list[Obstacle]":
        """Why the job is not running: nothing, if it may be taken any moment."""
        database = await self._app.adatabase()
        return await database.arun(database.store.explain(self.id))

    def cancel(self, why: str | None = None) -> bool:
        """Stop the job for good; False if it has already ended otherwise."""
        database = self._app.database
        return database.run(database.store.cancel(self.id, why))

    async def acancel(self, why: str | None = None) -> bool:
        """Stop the job for good; False if it has already ended otherwise."""
        database = await self._app.adatabase()
        return await database.arun(database.store.cancel(self.id, why))

    def retry(self) -> bool:
        """Give a dead job another chance; False if it is not dead."""
        database = self._app.database
        return database.run(database.store.retry(self.id))

    async def aretry(self) -> bool:
        """Give a dead job another chance; False if it is not dead."""
        database = await self._app.adatabase()
        return await database.arun(database.store.retry(self.id))

    def _known(self, now: "JobStatus | None") -> "JobStatus":
        if now is None:
            raise JobUnknown(f"no job has the id {self.id}", hint="was its transaction rolled back, or was it pruned?")
        self.kind = now.kind
        task = self._app.tasks.get(now.kind)
        return now if task is None else replace(now, decoder=task.result.decode)

    def _outcome(self, now: "JobStatus") -> R:
        if now.state == "success":
            return now.result  # type: ignore[no-any-return]
        error = JobCancelled if now.reason == "cancelled" else JobFailed
        words = f": {now.reason_detail}" if now.reason_detail else ""
        cause = f" ({now.error_class})" if now.error_class else ""
        message = f"job {self.id} ({now.kind}) is dead, {now.reason}{words}{cause}"
        raise error(message, reason=now.reason or "", error_class=now.error_class)

    def _late(self, timeout: float | None) -> ResultTimeout:
        return ResultTimeout(f"job {self.id} ({self.kind}) had not ended after {timeout} s", hint="it goes on")


def _pauses(timeout: float | None) -> Iterator[float]:
    """How long to wait between looks: short at first, then half a second; none beyond the deadline."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = 0.02
    while True:
        left = pause if deadline is None else deadline - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(pause * 1.5, 0.5)
