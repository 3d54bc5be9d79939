"""The calls about schedules: of those who make them, and of the scheduler that fires them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from leasehold.cron import Rule
from leasehold.db.call import Call
from leasehold.db.store.calls import Calls, scalar, uuid
from leasehold.schedule import Schedule

_TEXTS = {
    "schedule_put": "select {}.schedule_put_v1(key => %s, kind => %s, every => %s, cron => %s, time_zone => %s,"
    " payload => %s::jsonb, queue => %s, priority => %s, max_attempts => %s, exclusive_key => %s, tags => %s::text[],"
    " due_argument => %s, starts_at => %s, ends_at => %s, jitter => %s, missed => %s, grace => %s, max_missed => %s,"
    " overlap => %s, enabled => %s)",
    "schedule_sync": "select * from {}.schedule_sync_v1(%s::jsonb)",
    "schedule_enable": "select {}.schedule_enable_v1(%s, %s)",
    "schedule_disable": "select {}.schedule_disable_v1(%s)",
    "schedule_run_now": "select {}.schedule_run_now_v2(%s, %s::uuid, %s)",
    "schedule_remove": "select {}.schedule_remove_v1(%s)",
    "schedule_list": "select name, kind, queue, payload::text, priority, max_attempts, exclusive_key, tags,"
    " due_argument, every, cron, time_zone, starts_at, ends_at, jitter, missed, grace, max_missed, overlap, enabled,"
    " is_declared, created_at, updated_at, due_after, next_run_at, over, locked_by, locked_until, last_run_at,"
    " last_job, fired, missed_runs, overlapped, problem from {}.schedule_list_v1(%s)",
    "schedule_due": "select key, seconds from {}.schedule_due_v1(%s)",
    "schedule_claim": "select every, cron, time_zone, starts_at, ends_at, missed, grace, max_missed, due_after,"
    " next_run_at, judged_at from {}.schedule_claim_v1(%s, %s, %s)",
    "schedule_fire": "select due_at, job_id from {}.schedule_fire_v1(%s, %s, %s, %s::timestamptz, %s::timestamptz[],"
    " %s::timestamptz, %s)",
    "schedule_problem": "select {}.schedule_problem_v1(%s, %s, %s, %s)",
}


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it stands in the database. Its rule may be one that SQL took and nobody can make sense of."""

    key: str
    kind: str
    queue: str
    payload: str
    priority: int
    max_attempts: int
    exclusive_key: str | None
    tags: list[str] | None
    due_argument: str | None
    every: timedelta | None
    cron: str | None
    time_zone: str
    starts_at: datetime | None
    ends_at: datetime | None
    jitter: timedelta
    missed: str
    grace: timedelta
    max_missed: int
    overlap: str
    enabled: bool
    is_declared: bool
    """Whether code has declared it."""
    created_at: datetime
    updated_at: datetime
    due_after: datetime
    next_run_at: datetime | None
    """The next due time. None: not found yet, or there is none any more."""
    over: bool
    """There is no next due time."""
    locked_by: str | None
    locked_until: datetime | None
    last_run_at: datetime | None
    """The latest due time that was fired."""
    last_job: UUID | None
    fired: int
    """Jobs enqueued at due times."""
    missed_runs: int
    """Due times passed over because nobody was there."""
    overlapped: int
    """Due times passed over because a job of it was unfinished."""
    problem: str | None
    """Why it cannot be fired."""

    @property
    def rule(self) -> Rule:
        """Its sequence of due times; ConfigError if its rule makes no sense."""
        return Rule(
            every=self.every,
            cron=self.cron,
            time_zone=self.time_zone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )

    def upcoming(self, count: int) -> list[datetime]:
        """The next due times, none if it is switched off."""
        if not self.enabled or self.over or count < 1:
            return []
        if self.next_run_at is None:
            return self.rule.upcoming(self.due_after, count)
        return [self.next_run_at, *self.rule.upcoming(self.next_run_at, count - 1)]


@dataclass(frozen=True, slots=True)
class ClaimedSchedule:
    """A schedule as a claim gives it: what is needed to find out what is due."""

    key: str
    claim_id: UUID
    every: timedelta | None
    cron: str | None
    time_zone: str
    starts_at: datetime | None
    ends_at: datetime | None
    missed: str
    grace: timedelta
    max_missed: int
    due_after: datetime
    next_run_at: datetime | None
    judged_at: datetime
    """Which runs are due, and which are missed, is judged as of this moment."""

    @property
    def rule(self) -> Rule:
        """Its sequence of due times; ConfigError if its rule makes no sense."""
        return Rule(
            every=self.every,
            cron=self.cron,
            time_zone=self.time_zone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )


class ScheduleCalls(Calls):
    """Make schedules, look at them, fire them."""

    texts = _TEXTS

    def schedule_put(self, s: Schedule) -> Call[bool]:
        """Make a schedule or change it; False: it was like that already."""
        args = (
            s.key, s.kind, s.every, s.cron, s.time_zone, s.payload, s.queue, s.priority, s.max_attempts,
            s.exclusive_key, list(s.tags) or None, s.due_argument, s.starts_at, s.ends_at, s.jitter, s.missed, s.grace,
            s.max_missed, s.overlap, s.enabled,
        )  # fmt: skip
        return Call(self._sql["schedule_put"], args, scalar, repeatable=True)

    def schedule_sync(self, schedules: Sequence[Schedule]) -> Call[list[str]]:
        """Bring what code declares into the database; gives the keys of what was made or changed."""
        text = f"[{','.join(schedule.definition() for schedule in schedules)}]"
        return Call(self._sql["schedule_sync"], (text,), lambda rows: [row[0] for row in rows], repeatable=True)

    def schedule_enable(self, key: str, *, from_now: bool = False) -> Call[bool]:
        """Switch a schedule on; False: it was on."""
        return Call(self._sql["schedule_enable"], (key, from_now), scalar, repeatable=True)

    def schedule_disable(self, key: str) -> Call[bool]:
        """Switch a schedule off; False: it was off."""
        return Call(self._sql["schedule_disable"], (key,), scalar, repeatable=True)

    def schedule_run_now(
        self,
        key: str,
        id: str,  # noqa: A002 (the SQL argument's name)
        idempotency_key: str | None = None,
    ) -> Call[UUID]:
        """Enqueue one job of a schedule now, under an id of ours, or give the job that has the idempotency key."""
        return Call(self._sql["schedule_run_now"], (key, id, idempotency_key), uuid, repeatable=True)

    def schedule_remove(self, key: str) -> Call[bool]:
        """Take a schedule away; False: there was none."""
        return Call(self._sql["schedule_remove"], (key,), scalar, repeatable=True)

    def schedule_list(self, key: str | None = None) -> Call[list[StoredSchedule]]:
        """One schedule, or all of them."""
        return Call(
            self._sql["schedule_list"], (key,), lambda rows: [StoredSchedule(*row) for row in rows], repeatable=True
        )

    def schedule_due(self, limit: int = 100) -> Call[list[tuple[str, float]]]:
        """Which schedules can be claimed, and in how many seconds; soonest first."""
        return Call(
            self._sql["schedule_due"], (limit,), lambda rows: [(row[0], row[1]) for row in rows], repeatable=True
        )

    def schedule_claim(self, key: str, worker: str, claim_id: UUID) -> Call[ClaimedSchedule]:
        """Take a schedule that is due; NotClaimable and JobUnknown are ordinary answers."""
        return Call(
            self._sql["schedule_claim"],
            (key, worker, claim_id),
            lambda rows: ClaimedSchedule(key, claim_id, *rows[0]),
            repeatable=True,
        )

    def schedule_fire(
        self, worker: str, claim: ClaimedSchedule, due: Sequence[datetime], next_run_at: datetime | None, missed: int
    ) -> Call[list[tuple[datetime, UUID | None]]]:
        """Enqueue a claimed schedule's jobs and move it on; gives each due time with its job."""
        args = (claim.key, worker, claim.claim_id, claim.next_run_at, list(due), next_run_at, missed)
        return Call(self._sql["schedule_fire"], args, lambda rows: [(row[0], row[1]) for row in rows], repeatable=True)

    def schedule_problem(self, worker: str, claim: ClaimedSchedule, problem: str) -> Call[bool]:
        """Say why a claimed schedule cannot be fired."""
        args = (claim.key, worker, claim.claim_id, problem)
        return Call(self._sql["schedule_problem"], args, scalar, repeatable=True)
