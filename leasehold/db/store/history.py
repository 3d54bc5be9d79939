"""The calls of people who check and tidy up: the history, what must hold, what may go."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, scalar

_TEXTS = {
    "history": "select {}.history_v1(%s)",
    "history_enabled": "select {}.history_enabled_v1()",
    "events": "select xid, seq, at, job_id, kind, queue, from_state, to_state, attempt, owner, claim_id,"
    " lease_expires_at, retry_count, max_attempts, reason, run_at from {}.events_v1(%s, %s, %s, %s)",
    "verify": "select name, ok, violations, capped, sample, detail, checked_at from {}.verify_v1(%s, %s, %s)",
    "prune": "select kind, state, jobs, capped from {}.prune_v1(%s, %s::text[], %s, %s)",
    "prune_workers": "select prune_workers_v1 from {}.prune_workers_v1(%s, %s, %s)",
}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One transition, as it was recorded: nothing of what the job carries."""

    xid: int
    seq: int
    """With `xid` the place in the history: go on after the last one's."""
    at: datetime
    job_id: UUID
    kind: str
    queue: str
    from_state: str | None
    """None: the job was recorded."""
    to_state: str
    """`running` from `running`: the lease was renewed."""
    attempt: int
    owner: str | None
    """Who holds the lease, or held it until now."""
    claim_id: UUID | None
    lease_expires_at: datetime | None
    retry_count: int
    max_attempts: int
    reason: str | None
    run_at: datetime


@dataclass(frozen=True, slots=True)
class Law:
    """Something that must hold, and whether it does."""

    name: str
    """`lost_jobs`, `double_owners`, `broken_limits`, …"""
    ok: bool
    violations: int
    capped: bool
    """There are more than were counted."""
    sample: list[str]
    """The first ten: ids of jobs, names of limits, keys of schedules."""
    detail: str
    """What a violation means, in words."""
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many jobs of one kind and state were removed, or would be."""

    kind: str
    state: str
    jobs: int
    capped: bool
    """There may be more: call again."""


class HistoryCalls(Calls):
    """Check, and tidy up."""

    texts = _TEXTS

    def history(self, *, enabled: bool) -> Call[bool]:
        """Record every transition from now on, or no longer; False: nothing had to change."""
        return Call(self._sql["history"], (enabled,), scalar, repeatable=True)

    def history_enabled(self) -> Call[bool]:
        """Whether transitions are being recorded."""
        return Call(self._sql["history_enabled"], (), scalar, repeatable=True)

    def events(
        self, after: tuple[int, int] = (0, 0), count: int = 1000, *, job_id: UUID | None = None
    ) -> Call[list[EventRow]]:
        """A page of the history, after the (xid, seq) of the last event that was read."""
        return Call(self._sql["events"], (*after, count, job_id), _events, repeatable=True)

    def verify(
        self, cap: int = 1000, *, slack: timedelta = timedelta(minutes=1), latest: int = 1000
    ) -> Call[list[Law]]:
        """Whether everything holds that must: one row a law, each of bounded cost."""
        return Call(self._sql["verify"], (cap, slack, latest), _laws, repeatable=True)

    def prune(
        self,
        older_than: timedelta,
        states: Sequence[str] = ("success",),
        count: int = 1000,
        *,
        dry_run: bool = False,
    ) -> Call[list[Pruned]]:
        """Remove up to `count` jobs that finished longer ago than that, with all that is recorded of them."""
        args = (older_than, list(states), count, dry_run)
        return Call(self._sql["prune"], args, _pruned, repeatable=dry_run)

    def prune_workers(
        self, older_than: timedelta = timedelta(days=7), count: int = 1000, *, dry_run: bool = False
    ) -> Call[list[str]]:
        """Forget workers that are long gone; gives their names."""
        args = (older_than, count, dry_run)
        return Call(self._sql["prune_workers"], args, lambda rows: [row[0] for row in rows], repeatable=dry_run)


def _events(rows: Sequence[Row]) -> list[EventRow]:
    return [EventRow(*row) for row in rows]


def _laws(rows: Sequence[Row]) -> list[Law]:
    return [Law(*row) for row in rows]


def _pruned(rows: Sequence[Row]) -> list[Pruned]:
    return [Pruned(*row) for row in rows]
