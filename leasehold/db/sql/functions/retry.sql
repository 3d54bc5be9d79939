-- An operator makes a job runnable. True: it is queued now. False: it was in another state, nothing was changed.
-- Errors: LH002 job_unknown.

-- The result of retry and run_now: whether a job became runnable in this queue, which is announced then. Null: none did.
create or replace function became_runnable(id uuid, queue text, notify boolean) returns boolean language plpgsql as $$
begin
  if queue is not null and notify then
    perform announce(array[queue]);
  elsif queue is null and not exists (select from jobs j where j.id = became_runnable.id) then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', id));
  end if;
  return queue is not null;
end $$;

-- Run a dead job again.  dead -> queued.  It gets a new budget of max_attempts failures; its attempt number goes on, its attempts stay
-- on record.
create or replace function retry_v1(id uuid, notify boolean default true) returns boolean language plpgsql
set lock_timeout = '3s' as $$
declare
  at constant timestamptz := clock();
  queue_name text;
begin
  update jobs j
  set state = 'queued', retry_count = 0, run_at = at, updated_at = at, accepted = true, reason = null,
      reason_detail = null, finished_at = null, finished_by = null
  where j.id = retry_v1.id and j.state is not distinct from 'dead'
  returning j.queue into queue_name;
  return became_runnable(id, queue_name, notify);
end $$;

-- Run a job now that waits for its time or for the end of its backoff.  created, retry -> queued.
create or replace function run_now_v1(id uuid, notify boolean default true) returns boolean language plpgsql
set lock_timeout = '3s' as $$
declare
  at constant timestamptz := clock();
  queue_name text;
begin
  update jobs j set state = 'queued', run_at = at, updated_at = at
  where j.id = run_now_v1.id and (j.state is not distinct from 'created' or j.state is not distinct from 'retry')
    and j.accepted and j.retry_count < j.max_attempts
  returning j.queue into queue_name;
  return became_runnable(id, queue_name, notify);
end $$;
