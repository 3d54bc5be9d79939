"""A recorded job: a handle to read its state and to wait for its end."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from leasehold._aio import run_blocking, sleep
from leasehold._importing import refuse_waiting
from leasehold.errors import JobCancelled, JobFailed, JobUnknown, ResultTimeout

if TYPE_CHECKING:
    from leasehold.app import App
    from leasehold.db.store import JobStatus, Obstacle

R = TypeVar("R")


@dataclass(eq=False, repr=False)
class Job(Generic[R]):
    """A handle: it holds the id and asks the database for everything else."""

    _app: "App"
    _id: UUID | str
    kind: str | None = None
    """None until the first query, if only the id was given."""
    created: bool | None = field(default=None, kw_only=True)
    """Whether this call has recorded it. False: its idempotency key had this job before. None: not known, for a job
    that was looked up, or that was enqueued with a key on a connection of yours."""

    @property
    def id(self) -> UUID:
        """The job's id."""
        if isinstance(self._id, str):  # of a batch, where most are never read
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
        """Return the status from a coroutine; like `status`."""
        return (await self.arefresh()).status

    def refresh(self) -> "JobStatus":
        """Return all that a client may know of the job now."""
        return self._known(self._app.call(self._app.store.status(self.id)))

    async def arefresh(self) -> "JobStatus":
        """Return all that a client may know of the job now; like `refresh`."""
        return self._known(await self._app.acall(self._app.store.status(self.id)))

    def result(self, timeout: float | None = None) -> R:
        """Wait until the job has ended, and return what its task returned.

        Raises JobFailed if it is dead (JobCancelled, which is one too, if it was cancelled), ResultTimeout after
        `timeout` seconds.
        """
        return run_blocking(self._result(timeout, blocking=True))

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 (ends the wait, not the job)
        """Wait from a coroutine until the job has ended, and return what its task returned; like `result`."""
        return await self._result(timeout, blocking=False)

    async def _result(self, timeout: float | None, *, blocking: bool) -> R:  # noqa: ASYNC109
        refuse_waiting(self)
        for pause in _pauses(timeout):
            now = self.refresh() if blocking else await self.arefresh()
            if now.finished_at is not None:
                return self._outcome(now)
            await sleep(pause, blocking=blocking)
        raise ResultTimeout(f"job {self.id} ({self.kind}) had not ended after {timeout} s", hint="it goes on")

    def explain(self) -> "list[Obstacle]":
        """Return why the job is not running: nothing, if a worker may claim it at any moment."""
        return self._app.call(self._app.store.explain(self.id))

    async def aexplain(self) -> "list[Obstacle]":
        """Return why the job is not running; like `explain`."""
        return await self._app.acall(self._app.store.explain(self.id))

    def cancel(self, why: str | None = None) -> bool:
        """Stop the job, without a retry; False if it had finished before."""
        return self._app.call(self._app.store.cancel(self.id, why))

    async def acancel(self, why: str | None = None) -> bool:
        """Stop the job from a coroutine; like `cancel`."""
        return await self._app.acall(self._app.store.cancel(self.id, why))

    def retry(self) -> bool:
        """Let a dead job run again; False if it is not dead."""
        return self._app.call(self._app.store.retry(self.id))

    async def aretry(self) -> bool:
        """Let a dead job run again; like `retry`."""
        return await self._app.acall(self._app.store.retry(self.id))

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


def _pauses(timeout: float | None) -> Iterator[float]:
    """Yield the pauses between queries: short at first, then half a second; none beyond the deadline."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = 0.02
    while True:
        left = pause if deadline is None else deadline - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(pause * 1.5, 0.5)
