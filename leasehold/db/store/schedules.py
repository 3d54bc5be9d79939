"""The calls about schedules: to define them, and to fire them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from leasehold.cron import Rule
from leasehold.db.call import Call
from leasehold.db.store.calls import Calls, column, columns_of, filled, scalar
from leasehold.db.store.producer import uuid
from leasehold.schedule import Schedule


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """What is needed to compute what is due."""

    key: str
    every: timedelta | None
    cron: str | None
    time_zone: str
    starts_at: datetime | None
    ends_at: datetime | None
    missed: str
    grace: timedelta
    max_missed: int
    due_after: datetime
    next_run_at: Annotated[datetime | None, "The next due time. None: not computed yet, or there is none any more."]

    @property
    def rule(self) -> Rule:
        """The sequence of its due times; ConfigError if its rule makes no sense."""
        return Rule.of(self)


@dataclass(frozen=True, slots=True)
class StoredSchedule(_Scheduled):
    """A schedule as it is stored. Its rule may be one that SQL accepted and Python cannot read."""

    kind: str
    queue: str
    priority: int
    max_attempts: int
    exclusive_key: str | None
    tags: list[str] | None
    payload: Annotated[str | None, "As JSON; None: the caller may not see it."]
    metadata: dict[str, Any] | None
    due_argument: str | None
    jitter: timedelta
    overlap: str
    enabled: bool
    is_declared: Annotated[bool, "Code has declared it."]
    created_at: datetime
    updated_at: datetime
    over: Annotated[bool, "There is no next due time."]
    locked_by: str | None
    locked_until: datetime | None
    last_run_at: Annotated[datetime | None, "The latest due time that was fired."]
    last_job: UUID | None
    fired: Annotated[int, "Jobs enqueued at due times."]
    missed_runs: Annotated[int, "Due times skipped because no scheduler was running."]
    overlapped: Annotated[int, "Due times skipped because a job of it was unfinished."]
    problem: Annotated[str | None, "Why it cannot be fired."]

    def upcoming(self, count: int) -> list[datetime]:
        """Return the next due times, none if it is switched off."""
        if not self.enabled or self.over or count < 1:
            return []
        if self.next_run_at is None:
            return self.rule.upcoming(self.due_after, count)
        return [self.next_run_at, *self.rule.upcoming(self.next_run_at, count - 1)]


@dataclass(frozen=True, slots=True)
class ClaimedSchedule(_Scheduled):
    """A schedule as a claim returns it."""

    judged_at: datetime  # which runs are due, and which are missed, is judged as of this moment
    claim_id: UUID


class ScheduleCalls(Calls):
    """Define schedules, list them, fire them."""

    def schedule_put(self, s: Schedule) -> Call[bool]:
        """Make a schedule or change it; False: it was like that already."""
        text = filled("select {}.schedule_put_v1(%s, definition => %s::jsonb)", self._prefix)
        return Call(text, (s.key, s.definition()), scalar, repeatable=True)

    def schedule_sync(self, schedules: Sequence[Schedule]) -> Call[list[str]]:
        """Store what the application declares; returns the keys of what was made or changed."""
        text = f"[{','.join(schedule.definition() for schedule in schedules)}]"
        return self._ask("schedule_sync_v1", text, columns="*", read=column)

    def schedule_enable(self, key: str, *, from_now: bool = False) -> Call[bool]:
        """Switch a schedule on; False: it was on."""
        return self._ask("schedule_enable_v1", key, from_now)

    def schedule_disable(self, key: str) -> Call[bool]:
        """Switch a schedule off; False: it was off."""
        return self._ask("schedule_disable_v1", key)

    def schedule_run_now(self, key: str, id: str, idempotency_key: str | None = None) -> Call[UUID]:  # noqa: A002
        """Enqueue one job of a schedule now, with an id of ours, or return the job that has the idempotency key."""
        return self._ask("schedule_run_now_v1", key, id, idempotency_key, read=uuid)

    def schedule_remove(self, key: str) -> Call[bool]:
        """Remove a schedule; False: there was none."""
        return self._ask("schedule_remove_v1", key)

    def schedule_list(self, key: str | None = None) -> Call[list[StoredSchedule]]:
        """One schedule, or all of them."""
        columns = columns_of(StoredSchedule, payload="payload::text", is_declared="declared is not null")
        return self._list(StoredSchedule, "schedule_list_v1", key, columns=columns)

    def schedule_due(self, limit: int = 100) -> Call[list[tuple[str, float]]]:
        """Which schedules can be claimed, and in how many seconds; soonest first."""
        return self._list(lambda *pair: pair, "schedule_due_v1", limit, columns="key, seconds")

    def schedule_claim(self, key: str, worker: str, claim_id: UUID) -> Call[ClaimedSchedule]:
        """Claim a schedule that is due; NotClaimable and JobUnknown are ordinary answers."""
        columns = columns_of(ClaimedSchedule).removeprefix("key, ").removesuffix(", claim_id")
        row = lambda *values: ClaimedSchedule(*(key, *values, claim_id))  # noqa: E731
        return self._row(row, "schedule_claim_v1", key, worker, claim_id, columns=columns)

    def schedule_fire(
        self, worker: str, claim: ClaimedSchedule, due: Sequence[datetime], next_run_at: datetime | None, missed: int
    ) -> Call[list[tuple[datetime, UUID | None]]]:
        """Enqueue a claimed schedule's jobs and advance it; returns each due time with its job."""
        args = (claim.key, worker, claim.claim_id, claim.next_run_at, list(due), next_run_at, missed)
        return self._list(lambda *pair: pair, "schedule_fire_v1", *args, columns="due_at, job_id")

    def schedule_problem(self, worker: str, claim: ClaimedSchedule, problem: str) -> Call[bool]:
        """Record why a claimed schedule cannot be fired."""
        return self._ask("schedule_problem_v1", claim.key, worker, claim.claim_id, problem)
