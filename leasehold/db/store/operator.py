"""The calls by which operators read and change jobs, queues, limits and workers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, columns_of, filled, from_json, nothing
from leasehold.db.store.producer import uuid
from leasehold.tokens import shown_key


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as operators see it in a list."""

    id: UUID
    kind: str
    queue: str
    state: str
    status: str
    priority: int
    attempt: Annotated[int, "How often it was claimed."]
    retry_count: Annotated[int, "How often it failed since an operator last retried it."]
    max_attempts: int
    exclusive_key: str | None
    tags: list[str] | None
    parked: Annotated[bool, "It waits for a job of its exclusive key, or for a limit on keys."]
    accepted: Annotated[bool, "False: submitted, and the answer was never given."]
    reason: Annotated[str | None, "Why it is dead: cancelled, exhausted, fatal, lease_expired, set_aside."]
    error_class: Annotated[str | None, "Of its latest recorded attempt. None: none, or the job has succeeded since."]
    progress: float | None
    progress_note: str | None
    lease_owner: Annotated[str | None, "The worker that runs it."]
    lease_expires_at: datetime | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    metadata: Annotated[dict[str, Any] | None, "Headers, a trace context. None, too, if the caller may not see it."]


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and where to go on. A page may be short, even empty, and yet not be the last."""

    jobs: list[JobRow]
    cursor: str | None  # for the next page, with the same filter; None: that was all


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt that did not end in success."""

    attempt: int
    worker: str
    outcome: str
    claimed_at: datetime
    ended_at: datetime
    error_class: str | None
    error_message: str | None
    error_traceback: str | None


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Everything about one job."""

    job: JobRow
    idempotency_key: str | None
    reason_detail: str | None
    payload: str | None  # as JSON; None: the caller may not see it
    result: str | None  # as JSON
    attempts: list[AttemptRow]  # the latest hundred that did not end in success, oldest first


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Recent failures of one kind with one error class."""

    kind: str
    error_class: str | None
    attempts: int
    jobs: int
    first_seen: datetime
    last_seen: datetime
    last_message: str | None
    last_job: UUID


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as operators see it. A count that is capped says: so many, and more."""

    queue: str
    ready: int
    ready_capped: bool
    running: int
    running_capped: bool
    oldest_ready_at: Annotated[datetime | None, "Since when the longest waiting of its next jobs has been ready."]
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    max_running: Annotated[int | None, "Its limit, if it has one."]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as operators see it."""

    id: str
    host: str | None
    pid: int | None
    queues: Annotated[list[str] | None, "null: all."]
    kinds: Annotated[list[str] | None, "null: all."]
    slots: int | None
    running: int
    live: Annotated[bool, "Seen within the last minute and not stopped."]
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit, and what runs under it."""

    scope: str
    name: str
    max_running: int
    running: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class LogRow:
    """What one attempt said: lines of when, level and text."""

    attempt: int
    lines: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a job is not running."""

    reason: Annotated[str, "`not_accepted`, `paused`, … : a key of `leasehold.operate.reasons.REASONS`."]
    detail: Annotated[str, "The same in words."]
    blocker: Annotated[UUID | None, "The job that stands in the way."]
    until: Annotated[datetime | None, "When it will be over, where that is known."]


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a change of many jobs."""

    matched: Annotated[int, "How many fit, counted no further than `limit`."]
    changed: Annotated[int, "How many were changed; 0 in a dry run."]
    capped: Annotated[bool, "There may be more that fit: send it again, with the cursor if there is one."]
    cursor: Annotated[str | None, "Where the search was cut. Null: it came to its end."]


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary retry of the dead jobs of one kind and error class: ten, then a tenth, then all."""

    id: UUID
    kind: str
    error_class: str | None
    queues: Annotated[list[str] | None, "Only jobs of these; None: all."]
    state: Annotated[str, "`running`, `stopped` (`reason` says why), `done`."]
    stage: Annotated[int, "1: the first ten; 2: a tenth of them; 3: all the rest."]
    total: Annotated[int, "Dead jobs found at the start, counted up to 10,000."]
    total_capped: bool
    retried: int
    succeeded: int
    failed: Annotated[int, "That failed again."]
    pending: Annotated[int, "Retried, with no outcome yet."]
    reason: Annotated[str | None, "Why it was stopped."]
    started_by: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class OperatorCalls(Calls):
    """Read jobs, queues, limits and workers, and change them. `filter`, as in SQL: which jobs."""

    def list_jobs(self, filter: Mapping[str, Any], cursor: str | None = None, count: int = 50) -> Call[JobPage]:  # noqa: A002
        """A page of the jobs that match, after reading at most 10,000."""
        args = (json.dumps(dict(filter)), cursor, count, 10_000)
        columns = f"{columns_of(JobRow)}, cursor_here"
        return self._ask("list_jobs_v1", *args, columns=columns, read=_page)

    def job_detail(self, job_id: UUID) -> Call[JobDetail | None]:
        """Everything about one job; None if there is none."""
        columns = f"{columns_of(JobRow)}, idempotency_key, reason_detail, payload::text, result::text, attempts"
        return self._ask("job_detail_v1", job_id, columns=columns, read=_detail)

    def logs(self, job_id: UUID) -> Call[list[LogRow]]:
        """What the job's attempts logged, oldest first."""
        return self._list(LogRow, "logs_v1", job_id)

    def explain(self, job_id: UUID) -> Call[list[Obstacle]]:
        """Why the job is not running: nothing, if it may be claimed at any moment."""
        return self._list(Obstacle, "explain_v1", job_id)

    def cancel(self, job_id: UUID, why: str | None = None) -> Call[bool]:
        """Cancel a job; False: it had finished before."""
        return self._ask("cancel_v1", job_id, why)

    def retry(self, job_id: UUID) -> Call[bool]:
        """Let a dead job run again."""
        return self._ask("retry_v1", job_id, repeatable=False)

    def run_now(self, job_id: UUID) -> Call[bool]:
        """Let a job that waits for its time wait no longer; False: it does not wait."""
        return self._ask("run_now_v1", job_id, repeatable=False)

    def retry_many(
        self, filter: Mapping[str, Any], limit: int = 1000, cursor: str | None = None, *, dry_run: bool = False  # noqa: A002
    ) -> Call[Changed]:  # fmt: skip
        """Let the dead jobs that match run again, at most `limit` of them."""
        args, columns = (json.dumps(dict(filter)), limit, dry_run, cursor), columns_of(Changed, cursor="cursor_here")
        return self._row(Changed, "retry_many_v1", *args, columns=columns, repeatable=dry_run)

    def cancel_many(
        self, filter: Mapping[str, Any], limit: int = 1000, cursor: str | None = None, *, dry_run: bool = False,  # noqa: A002
        why: str | None = None,
    ) -> Call[Changed]:  # fmt: skip
        """Cancel the jobs that match and have not ended, at most `limit` of them."""
        args, columns = (
            (json.dumps(dict(filter)), limit, dry_run, why, cursor),
            columns_of(Changed, cursor="cursor_here"),
        )
        return self._row(Changed, "cancel_many_v1", *args, columns=columns, repeatable=dry_run)

    def canary_start(
        self, kind: str, error_class: str | None, by: str | None = None, *, queues: list[str] | None = None
    ) -> Call[UUID]:
        """Start one; returns its id, or that of the one running for the group. JobUnknown: nothing to retry."""
        return self._ask("canary_start_v1", kind, error_class, by, queues, read=uuid)

    def canary_stop(self, canary: UUID, by: str | None = None) -> Call[bool]:
        """Retry no more of it; False: it had ended already, or there is none."""
        return self._ask("canary_stop_v1", canary, by)

    def canaries(self, count: int = 50, canary: UUID | None = None) -> Call[list[Canary]]:
        """The latest first; or one."""
        columns = columns_of(Canary, pending="retried - succeeded - failed - other")
        return self._list(Canary, "canary_list_v1", count, canary, columns=columns)

    def pause(self, queue: str, reason: str | None = None, by: str | None = None) -> Call[None]:
        """Let no job of the queue be claimed; those that run go on."""
        return self._ask("pause_v1", queue, reason, by, read=nothing)

    def resume(self, queue: str) -> Call[bool]:
        """Let the queue's jobs be claimed again; False: it was not paused."""
        return self._ask("resume_v1", queue)

    def queues(
        self, cap: int = 10_000, *, queues: list[str] | None = None, kinds: list[str] | None = None
    ) -> Call[list[QueueRow]]:
        """Every queue that has to do with anything now, counted up to `cap`."""
        return self._list(QueueRow, "queue_list_v1", cap, queues, kinds)

    def workers(self, count: int = 200) -> Call[list[WorkerRow]]:
        """The workers that were seen last."""
        return self._list(WorkerRow, "worker_list_v1", count)

    def errors(
        self, *, queues: list[str] | None = None, kinds: list[str] | None = None, scan: int = 10_000
    ) -> Call[list[ErrorGroup]]:
        """The latest `scan` recorded attempts' errors, grouped by kind and error class."""
        return self._list(ErrorGroup, "errors_v1", queues, kinds, scan)

    def limits(self) -> Call[list[LimitRow]]:
        """The limits, at most 1000, and what runs under each."""
        sql = "select scope, name, max_running, running, updated_at from {}.limit_overview order by 1, 2 limit 1000"
        return Call(filled(sql, self._prefix), (), lambda rows: [LimitRow(*row) for row in rows], repeatable=True)

    def set_limit(self, scope: str, name: str, max_running: int) -> Call[None]:
        """Let at most `max_running` jobs run: in all, of a queue, of a kind, of the keys that begin with a prefix."""
        return self._ask("set_limit_v1", scope, name, max_running, read=nothing)

    def drop_limit(self, scope: str, name: str) -> Call[bool]:
        """Remove a limit; False: there was none."""
        return self._ask("drop_limit_v1", scope, name)


def _page(rows: Sequence[Row]) -> JobPage:
    return JobPage([JobRow(*row[:-1]) for row in rows if row[0] is not None], rows[-1][-1] if rows else None)


def _detail(rows: Sequence[Row]) -> JobDetail | None:
    if not rows:
        return None
    *job, key, reason_detail, payload, result, attempts = rows[0]
    ended = [from_json(AttemptRow, one, "claimed_at", "ended_at") for one in attempts]
    return JobDetail(JobRow(*job), shown_key(key), reason_detail, payload, result, ended)
