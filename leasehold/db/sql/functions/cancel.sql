-- Cancel a job.  created, queued, retry, running -> dead, reason cancelled.  True: it is cancelled, now or before.
-- False: it had already ended in another way. The worker of a running job gets a notification, and stops its task.
-- Errors: LH002 job_unknown.

-- End a job, which the caller has locked, from outside of its attempt, for cancel and set_aside. If it runs, the attempt is recorded with
-- this outcome. `brief` as in unpark_ended; a caller for whom it is true waits for no key.
create or replace function end_job(before jobs, reason text, detail text, outcome text, brief boolean) returns void language plpgsql as $$
declare
  at constant timestamptz := clock();
  ran constant boolean := before.state = 'running';
  expired constant boolean := outcome = 'lease_expired';
begin
  if ran then
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class, error_message)
    values (before.id, before.attempt, before.lease_owner, end_job.outcome, before.claimed_at, at,
      case when expired then 'LeaseExpired' end, detail);
  end if;
  update jobs j
  set state = 'dead', reason = end_job.reason, reason_detail = detail, finished_at = at, updated_at = at, parked = false,
      is_current = false, lease_owner = null, lease_expires_at = null, retry_count = j.retry_count + (ran and expired)::integer
  where j.id = before.id and j.state in ('created', 'queued', 'retry', 'running');
  if before.exclusive_key is not null and ran then
    perform unpark_ended(array[before.exclusive_key], not brief, brief);
  -- Else it has kept others parked only if it could have run next. They could run before the caller's transaction ends, but for its
  -- locks: upkeep puts them back.
  elsif before.exclusive_key is not null and before.state = 'queued' and not before.parked and not exists (
      select from jobs j where j.exclusive_key = before.exclusive_key and j.is_current and j.state is not distinct from 'running')
    and (exists (select from jobs j where j.exclusive_key = before.exclusive_key and j.state = 'queued' and j.parked)
      or exists (select from key_limits(array[before.exclusive_key]))) then
    perform unpark_at_commit(array[before.exclusive_key]);
  end if;
end $$;

create or replace function cancel_v1(id uuid, why text default null) returns boolean language plpgsql set lock_timeout = '3s' as $$
declare
  before jobs;
begin
  select * into before from jobs j where j.id = cancel_v1.id for no key update;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', cancel_v1.id));
  end if;
  if before.state in ('success', 'dead') then
    return before.reason is not distinct from 'cancelled' and before.state = 'dead';
  end if;
  perform end_job(before, 'cancelled', shortened(why, 1000), 'cancelled', false);
  if before.state = 'running' then
    perform announce_room(array[before.id]) where exists (select from limits);
    perform announce(array['@cancel:' || before.id]);
  end if;
  return true;
end $$;
