-- A person gives a dead job another chance.  dead -> queued.  It gets a fresh budget of max_attempts failures;
-- its attempt number goes on, its attempts stay on record. False: it is not dead, nothing was changed.
-- Errors: LH002 job_unknown.

create or replace function retry_v1(id uuid, notify boolean default true) returns boolean language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  queue_name text;
begin
  update jobs j
  set state = 'queued', retry_count = 0, run_at = at, updated_at = at, accepted = true, reason = null,
      reason_detail = null, finished_at = null, finished_by = null
  where j.id = retry_v1.id and j.state is not distinct from 'dead'
  returning j.queue into queue_name;
  if found then
    if notify then
      perform announce(array[queue_name]);
    end if;
    return true;
  end if;
  if not exists (select from jobs j where j.id = retry_v1.id) then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', retry_v1.id));
  end if;
  return false;
end $$;

create or replace function retry(id uuid, notify boolean default true) returns boolean language sql
security definer set search_path from current
as $$ select retry_v1(id, notify) $$;
