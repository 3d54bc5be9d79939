"""The calls of people who look: pages of jobs, one job, errors, queues, workers, figures. None of them writes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls
from leasehold.tokens import shown_key

_JOB = (
    "id, kind, queue, state, status, priority, attempt, retry_count, max_attempts, exclusive_key, tags, parked,"
    " accepted, reason, error_class, progress, progress_note, lease_owner, lease_expires_at, run_at, created_at,"
    " updated_at, claimed_at, finished_at"
)

_TEXTS = {
    "list_jobs": f"select {_JOB}, cursor_here from {{}}.list_jobs_v1(%s::jsonb, %s, %s, %s)",  # noqa: S608 (constants)
    "job_detail": f"select {_JOB}, idempotency_key, reason_detail, payload::text, result::text,"  # noqa: S608
    " attempts from {}.job_detail_v1(%s)",
    "logs": "select attempt, lines from {}.logs_v1(%s)",
    "errors": "select kind, error_class, attempts, jobs, first_seen, last_seen, last_message, last_job"
    " from {}.errors_v1(%s::text[], %s::text[], %s)",
    "queues": "select queue, ready, ready_capped, running, running_capped, oldest_ready_at, paused_at, paused_by,"
    " reason, max_running from {}.queue_list_v1(%s, %s::text[], %s::text[])",
    "workers": "select id, host, pid, queues, kinds, slots, running, live, started_at, seen_at, stopped_at"
    " from {}.worker_list_v1(%s)",
    "limits": "select scope, name, max_running, running, updated_at from {}.limit_overview"
    " order by scope, name limit %s",
    "stats": "select name, value, capped from {}.stats_v1(%s)",
}

FILTER_FIELDS = frozenset(
    {
        "state",
        "kind",
        "queue",
        "tag",
        "exclusive_key",
        "error_class",
        "created_after",
        "created_before",
        "queues",
        "kinds",
        "payload",
    }
)
"""What a filter may name; the database refuses anything else."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as operators see it in a list: nothing of what it carries."""

    id: UUID
    kind: str
    queue: str
    state: str
    status: str
    priority: int
    attempt: int
    retry_count: int
    max_attempts: int
    exclusive_key: str | None
    tags: list[str] | None
    parked: bool
    accepted: bool
    reason: str | None
    error_class: str | None
    """Of its latest recorded attempt."""
    progress: float | None
    progress_note: str | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and where to go on. A page may be short, even empty, and yet not be the last."""

    jobs: list[JobRow]
    cursor: str | None
    """For the next page, with the same filter; None: that was all."""


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
    payload: str
    """As JSON."""
    result: str | None
    """As JSON."""
    attempts: list[AttemptRow]
    """The latest hundred that did not end in success, oldest first."""


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
    oldest_ready_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    max_running: int | None
    """Its limit, where it has one."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as operators see it."""

    id: str
    host: str | None
    pid: int | None
    queues: list[str] | None
    kinds: list[str] | None
    slots: int | None
    running: int
    live: bool
    """Seen within the last minute and not stopped."""
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


class OverviewCalls(Calls):
    """Look, and change nothing."""

    texts = _TEXTS

    def list_jobs(
        self,
        filter: Mapping[str, Any],  # noqa: A002 (the SQL argument's name)
        cursor: str | None = None,
        count: int = 50,
        *,
        scan: int = 10_000,
    ) -> Call[JobPage]:
        """A page of the jobs that fit, after looking at no more than `scan`."""
        return Call(
            self._sql["list_jobs"],
            (json.dumps(dict(filter)), cursor, count, scan),
            lambda rows: _page(rows, count),
            repeatable=True,
        )

    def job_detail(self, job_id: UUID) -> Call[JobDetail | None]:
        """Everything about one job; None if there is none."""
        return Call(self._sql["job_detail"], (job_id,), _detail, repeatable=True)

    def logs(self, job_id: UUID) -> Call[list[LogRow]]:
        """What the job's attempts said, oldest first."""
        return Call(self._sql["logs"], (job_id,), lambda rows: [LogRow(*row) for row in rows], repeatable=True)

    def errors(
        self, *, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None, scan: int = 10_000
    ) -> Call[list[ErrorGroup]]:
        """The latest `scan` recorded attempts' errors, grouped by kind and error class."""
        args = (_listed(queues), _listed(kinds), scan)
        return Call(self._sql["errors"], args, lambda rows: [ErrorGroup(*row) for row in rows], repeatable=True)

    def queues(
        self, cap: int = 10_000, *, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None
    ) -> Call[list[QueueRow]]:
        """Every queue that has to do with anything now, counted up to `cap`."""
        args = (cap, _listed(queues), _listed(kinds))
        return Call(self._sql["queues"], args, lambda rows: [QueueRow(*row) for row in rows], repeatable=True)

    def workers(self, count: int = 200) -> Call[list[WorkerRow]]:
        """The workers that were seen last."""
        return Call(self._sql["workers"], (count,), lambda rows: [WorkerRow(*row) for row in rows], repeatable=True)

    def limits(self, count: int = 1000) -> Call[list[LimitRow]]:
        """The limits, and what runs under each."""
        return Call(self._sql["limits"], (count,), lambda rows: [LimitRow(*row) for row in rows], repeatable=True)

    def stats(self, cap: int = 10_000) -> Call[dict[str, tuple[int, bool]]]:
        """A few figures, counted up to `cap`; True: there are more."""
        return Call(self._sql["stats"], (cap,), _stats, repeatable=True)


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _page(rows: Sequence[Row], count: int) -> JobPage:
    jobs = [JobRow(*row[:-1]) for row in rows if row[0] is not None]
    # A full page goes on behind its last job; a look that was cut short, behind the last job that it looked at.
    unfinished = bool(rows) and (rows[-1][0] is None or len(jobs) == count)
    return JobPage(jobs, rows[-1][-1] if unfinished else None)


def _detail(rows: Sequence[Row]) -> JobDetail | None:
    if not rows:
        return None
    *job, idempotency_key, reason_detail, payload, result, attempts = rows[0]
    return JobDetail(
        JobRow(*job),
        shown_key(idempotency_key),
        reason_detail,
        payload,
        result,
        [_attempt(attempt) for attempt in attempts],
    )


def _attempt(value: dict[str, Any]) -> AttemptRow:
    times = {name: datetime.fromisoformat(value[name]) for name in ("claimed_at", "ended_at")}
    return AttemptRow(**value | times)


def _stats(rows: Sequence[Row]) -> dict[str, tuple[int, bool]]:
    return {name: (int(value), capped) for name, value, capped in rows}
