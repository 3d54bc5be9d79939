"""The calls of people who look after jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, nothing, scalar

_TEXTS = {
    "explain": "select reason, detail, blocker, until from {}.explain_v1(%s)",
    "cancel": "select {}.cancel_v1(%s, %s)",
    "retry": "select {}.retry_v1(%s)",
    "set_limit": "select {}.set_limit_v1(%s, %s, %s)",
    "drop_limit": "select {}.drop_limit_v1(%s, %s)",
    "counts": "select state, jobs, capped from {}.counts_v1(%s)",
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a job is not running."""

    reason: str
    """`run_at`, `backoff`, `exclusive_key`, `limit`, `no_worker_for_kind`, `no_worker_for_queue`, …"""

    detail: str
    """The same in words."""

    blocker: UUID | None
    """The job that stands in the way."""

    until: datetime | None
    """When it will be over, where that is known."""


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

    def set_limit(self, scope: str, name: str, max_running: int) -> Call[None]:
        """Let at most `max_running` jobs run: in all, of a queue, of a kind, of the keys that begin with a prefix."""
        return Call(self._sql["set_limit"], (scope, name, max_running), nothing, repeatable=True)

    def drop_limit(self, scope: str, name: str) -> Call[bool]:
        """Take a limit away; False: there was none."""
        return Call(self._sql["drop_limit"], (scope, name), scalar, repeatable=True)

    def counts(self, cap: int = 10_000) -> Call[dict[str, tuple[int, bool]]]:
        """Jobs by state, counted up to `cap`; True: there are more."""
        return Call(self._sql["counts"], (cap,), _counts, repeatable=True)


def _counts(rows: Sequence[Row]) -> dict[str, tuple[int, bool]]:
    return {state: (jobs, capped) for state, jobs, capped in rows}
