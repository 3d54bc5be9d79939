-- Stop a job for good.  created, queued, retry, running -> dead, reason cancelled.  True: it is cancelled, now or
-- before. False: it had already ended otherwise. The worker of a running job gets a notification, and stops its task.
-- Errors: LH002 job_unknown.

create or replace function cancel_v1(id uuid, why text default null) returns boolean language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz;
  before jobs;
  words text := shortened(cancel_v1.why, 1000);
begin
  select * into before from jobs j where j.id = cancel_v1.id for no key update;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', cancel_v1.id));
  end if;
  if before.state in ('success', 'dead') then
    return before.reason is not distinct from 'cancelled' and before.state = 'dead';
  end if;
  at := clock();
  if before.state = 'running' then
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_message)
    values (before.id, before.attempt, before.lease_owner, 'cancelled', before.claimed_at, at, words);
  end if;
  update jobs j
  set state = 'dead', reason = 'cancelled', reason_detail = words, finished_at = at, updated_at = at, parked = false,
      lease_owner = null, lease_expires_at = null
  where j.id = before.id and j.state in ('created', 'queued', 'retry', 'running');
  if before.exclusive_key is not null and before.state = 'running' then
    perform unpark_ended(array[before.exclusive_key], true);
  elsif before.exclusive_key is not null then
    perform unpark(array[before.exclusive_key]);
  end if;
  if before.state = 'running' then
    perform announce_room(array[before.id]);
    perform announce(array['@cancel:' || before.id]);
  end if;
  return true;
end $$;

create or replace function cancel(id uuid, why text default null) returns boolean language sql
security definer set search_path from current
as $$ select cancel_v1(id, why) $$;
