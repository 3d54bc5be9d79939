"""Functions as one would write them at first. Alone each does what it should; a second session shows the difference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.sql.conftest import Session


def _replace(text: str) -> Callable[[Session], None]:
    def change(session: Session) -> None:
        session.execute(f"create or replace function {text}")

    return change


def _edit(function: str, old: str, new: str) -> Callable[[Session], None]:
    return lambda session: session.mutate(function, old, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Naive:
    """A variant, and where it goes wrong."""

    change: Callable[[Session], None]
    first: str
    second: str
    start: str


_COMPLETE: Final = """complete_v1(
  worker text, ids uuid[], attempts integer[], results jsonb[] default null, claim_ids uuid[] default null
) returns setof uuid language plpgsql set search_path to leasehold as $$
declare
  at timestamptz := clock();
  found_ids uuid[];
begin
  found_ids := array(
    select j.id from unnest(ids, attempts) t(id, attempt) join jobs j on j.id = t.id
    where j.attempt = t.attempt and j.lease_owner = worker and j.state = 'running');
  update jobs j set state = 'success', finished_at = at, finished_by = worker, updated_at = at, lease_owner = null,
    lease_expires_at = null
  where j.id = any(found_ids) {guard};
  return query select unnest(found_ids);
end $$"""

_SWEEP: Final = """sweep_v1(max integer default 1000) returns integer language plpgsql
set search_path to leasehold as $$
declare
  at timestamptz := clock();
  expired uuid[];
begin
  expired := array(select j.id from jobs j where j.state = 'running' and j.lease_expires_at <= at);
  insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at)
  select j.id, j.attempt, j.lease_owner, 'lease_expired', j.claimed_at, at from jobs j where j.id = any(expired);
  update jobs j set state = 'queued', retry_count = j.retry_count + 1, updated_at = at, lease_owner = null,
    lease_expires_at = null
  where j.id = any(expired);
  return cardinality(expired);
end $$"""

_CLAIM_JOB: Final = """claim_job_v1(job_id uuid, worker text, claim_id uuid default null) returns boolean
language plpgsql set search_path to leasehold as $$
declare
  at timestamptz := clock();
begin
  perform from jobs j where j.id = job_id and j.state = 'queued';
  if not found then
    return false;
  end if;
  update jobs j set state = 'running', attempt = j.attempt + 1, claimed_at = at, updated_at = at, lease_owner = worker,
    lease_expires_at = at + interval '15 seconds', claim_id = claim_job_v1.claim_id
  where j.id = job_id;
  return true;
end $$"""

_CANCEL: Final = """cancel_v1(id uuid, why text default null) returns boolean language plpgsql
set search_path to leasehold as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  before jobs;
begin
  select * into before from jobs j where j.id = cancel_v1.id;
  if before.state in ('success', 'dead') then
    return before.reason is not distinct from 'cancelled';
  end if;
  if before.state = 'running' then
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at)
    values (before.id, before.attempt, before.lease_owner, 'cancelled', before.claimed_at, at);
  end if;
  update jobs j set state = 'dead', reason = 'cancelled', finished_at = at, updated_at = at, lease_owner = null,
    lease_expires_at = null
  where j.id = before.id and j.state in ('created', 'queued', 'retry', 'running');
  return true;
end $$"""

NAIVE: Final[dict[str, Naive]] = {
    "complete by select, then update": Naive(
        change=_replace(_COMPLETE.format(guard="")), first="complete", second="release", start="running"
    ),
    # What was read had the right attempt. What is written need not have it any more.
    "complete guarded by owner and state, without the attempt": Naive(
        change=_replace(_COMPLETE.format(guard="and j.lease_owner = worker and j.state = 'running'")),
        first="complete",
        second="take over",
        start="expired",
    ),
    "sweep by reading, then writing": Naive(
        change=_replace(_SWEEP), first="sweep", second="take over", start="expired"
    ),
    "claim without a lock": Naive(change=_replace(_CLAIM_JOB), first="claim_job", second="claim", start="queued"),
    "cancel without a lock": Naive(change=_replace(_CANCEL), first="cancel", second="claim", start="queued"),
    "a limit that is counted without its lock": Naive(
        change=_edit("take_limits", " for no key update skip locked", ""),
        first="claim",
        second="claim",
        start="under a limit",
    ),
    # The holder ends between the read of its row and the parking: no end puts the parked job back.
    "an end that does not take the lock of its key": Naive(
        change=_edit("unpark_ended", "pg_try_advisory_xact_lock(exclusive_lock(t.key)) end", "true end"),
        first="claim",
        second="complete",
        start="behind a key, not parked",
    ),
}
