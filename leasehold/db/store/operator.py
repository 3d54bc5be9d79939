"""The calls of people who look after jobs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, nothing, scalar

_TEXTS = {
    "explain": "select reason, detail, blocker, until from {}.explain_v1(%s)",
    "cancel": "select {}.cancel_v1(%s, %s)",
    "retry": "select {}.retry_v1(%s)",
    "set_limit": "select {}.set_limit_v1(%s, %s, %s)",
    "drop_limit": "select {}.drop_limit_v1(%s, %s)",
    "pause": "select {}.pause_v1(%s, %s, %s)",
    "resume": "select {}.resume_v1(%s)",
    "run_now": "select {}.run_now_v1(%s)",
    "retry_many": "select matched, changed, capped from {}.retry_many_v1(%s::jsonb, %s, %s)",
    "cancel_many": "select matched, changed, capped from {}.cancel_many_v1(%s::jsonb, %s, %s, %s)",
    "counts": "select state, jobs, capped from {}.counts_v1(%s)",
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a job is not running."""

    reason: str
    """`not_accepted`, `paused`, `run_at`, `backoff`, `exclusive_key`, `limit`, `no_worker_for_kind`, …"""

    detail: str
    """The same in words."""

    blocker: UUID | None
    """The job that stands in the way."""

    until: datetime | None
    """When it will be over, where that is known."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a change of many jobs."""

    matched: int
    """Jobs that fit, counted no further than was asked for."""

    changed: int
    """Those that were changed; 0 in a dry run."""

    capped: bool
    """There may be more that fit: call again."""


class OperatorCalls(Calls):
    """Look after jobs."""

    texts = _TEXTS

    def explain(self, job_id: UUID) -> Call[list[Obstacle]]:
        """Why the job is not running: nothing, if it may be taken any moment."""
        return Call(self._sql["explain"], (job_id,), lambda rows: [Obstacle(*row) for row in rows], repeatable=True)

    def cancel(self, job_id: UUID, why: str | None = None) -> Call[bool]:
        """Stop a job for good."""
        return Call(self._sql["cancel"], (job_id, why), scalar, repeatable=True)

    def retry(self, job_id: UUID) -> Call[bool]:
        """Give a dead job another chance."""
        return Call(self._sql["retry"], (job_id,), scalar)

    def run_now(self, job_id: UUID) -> Call[bool]:
        """Let a job that waits for its time wait no longer; False: it does not wait."""
        return Call(self._sql["run_now"], (job_id,), scalar)

    def retry_many(self, filter: Mapping[str, Any], limit: int = 1000, *, dry_run: bool = False) -> Call[Changed]:  # noqa: A002
        """Give the dead jobs that fit another chance, at most `limit` of them."""
        return Call(self._sql["retry_many"], (json.dumps(dict(filter)), limit, dry_run), _changed, repeatable=dry_run)

    def cancel_many(
        self,
        filter: Mapping[str, Any],  # noqa: A002
        limit: int = 1000,
        *,
        dry_run: bool = False,
        why: str | None = None,
    ) -> Call[Changed]:
        """Stop the jobs that fit and have not ended, at most `limit` of them."""
        args = (json.dumps(dict(filter)), limit, dry_run, why)
        return Call(self._sql["cancel_many"], args, _changed, repeatable=dry_run)

    def pause(self, queue: str, reason: str | None = None, by: str | None = None) -> Call[None]:
        """Let no job of the queue be claimed; what runs goes on."""
        return Call(self._sql["pause"], (queue, reason, by), nothing, repeatable=True)

    def resume(self, queue: str) -> Call[bool]:
        """Let the queue's jobs be claimed again; False: it was not paused."""
        return Call(self._sql["resume"], (queue,), scalar, repeatable=True)

    def set_limit(self, scope: str, name: str, max_running: int) -> Call[None]:
        """Let at most `max_running` jobs run: in all, of a queue, of a kind, of the keys that begin with a prefix."""
        return Call(self._sql["set_limit"], (scope, name, max_running), nothing, repeatable=True)

    def drop_limit(self, scope: str, name: str) -> Call[bool]:
        """Take a limit away; False: there was none."""
        return Call(self._sql["drop_limit"], (scope, name), scalar, repeatable=True)

    def counts(self, cap: int = 10_000) -> Call[dict[str, tuple[int, bool]]]:
        """Jobs by state, counted up to `cap`; True: there are more."""
        return Call(self._sql["counts"], (cap,), _counts, repeatable=True)


def _changed(rows: Sequence[Row]) -> Changed:
    matched, changed, capped = rows[0]
    return Changed(matched, changed, capped)


def _counts(rows: Sequence[Row]) -> dict[str, tuple[int, bool]]:
    return {state: (jobs, capped) for state, jobs, capped in rows}
