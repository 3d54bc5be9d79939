-- Whether this attempt owns the job at this moment. Every update by an owner asks here, and only here: heartbeat,
-- progress, log lines, complete, fail, snooze, release. Ownership ends with the lease: `at` is the clock of the call, and
-- what has expired by then is not owned any more, swept or not. The claim_id is optional.
-- A single expression without settings, so that it is inlined.
create or replace function owns(j jobs, worker text, attempt integer, claim_id uuid, at timestamptz) returns boolean
language sql immutable parallel safe
as $$
  select j.attempt = owns.attempt and j.lease_owner = owns.worker and j.state is not distinct from 'running'
    and (owns.claim_id is null or j.claim_id = owns.claim_id) and j.lease_expires_at > owns.at
$$;

-- Note that a worker was heard of, unless its row or the table is in use: renewal and upkeep wait for no claim, nor for an
-- index that is created.
create or replace function seen(worker text, at timestamptz) returns void language plpgsql
set lock_timeout = '10ms'
as $$
begin
  update workers w set seen_at = seen.at
  from (select f.id from workers f where f.id = seen.worker for no key update skip locked) f where w.id = f.id;
exception when lock_not_available then
  null;
end $$;
