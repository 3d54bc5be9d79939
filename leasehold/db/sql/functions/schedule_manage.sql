-- List schedules, switch them on and off, remove them.
-- Error: LH002 job_unknown.

-- What can be claimed now (0 seconds) and when the others can, soonest first; nothing about those that are disabled or
-- over. The scheduler sleeps until the first that is not 0.
create or replace function schedule_due_v1(max integer default 100)
returns table (key text, seconds double precision) language sql stable as $$
  select s.key, coalesce(greatest(0, extract(epoch from greatest(s.next_run_at, s.locked_until) - now.at)), 0)::double precision
  from schedules s cross join (select clock() as at) now where s.enabled and not s.over
  order by greatest(s.next_run_at, s.locked_until) nulls first limit schedule_due_v1.max
$$;

-- Switch it on. What came due while it was off is missed, and its policy for missed runs says what becomes of it;
-- `from_now` forgets it. False: it was on already, and nothing was changed.
create or replace function schedule_enable_v1(key text, from_now boolean default false, notify boolean default true)
returns boolean language plpgsql set lock_timeout = '3s' as $$
declare
  at timestamptz := clock();
begin
  update schedules t set enabled = true, updated_at = at where t.key = schedule_enable_v1.key and not t.enabled;
  if not found then
    if not exists (select from schedules t where t.key = schedule_enable_v1.key) then
      perform refuse_schedule(schedule_enable_v1.key);
    end if;
    return false;
  end if;
  if from_now then
    perform plan_schedule_anew(schedule_enable_v1.key, at);
  end if;
  perform announce(array['@schedule']) where notify;
  return true;
end $$;

-- Switch it off: no more jobs, not even from a claim under way. False: it was off already.
create or replace function schedule_disable_v1(key text) returns boolean language plpgsql set lock_timeout = '3s' as $$
begin
  update schedules t
  set enabled = false, updated_at = clock(), locked_by = null, locked_until = null, claim_id = null, claimed_at = null
  where t.key = schedule_disable_v1.key and t.enabled;
  if not found and not exists (select from schedules t where t.key = schedule_disable_v1.key) then
    perform refuse_schedule(schedule_disable_v1.key);
  end if;
  return found;
end $$;

-- Remove it; its jobs stay. An application that declares it makes it again when a worker starts. False: there is none.
create or replace function schedule_remove_v1(key text) returns boolean language plpgsql set lock_timeout = '3s' as $$
begin
  delete from schedules t where t.key = schedule_remove_v1.key;
  return found;
end $$;

-- One schedule, or all of them, by key.
create or replace function schedule_list_v1(key text default null) returns setof schedules language sql stable
as $$ select * from schedules s where schedule_list_v1.key is null or s.key = schedule_list_v1.key order by s.key $$;

-- For monitoring, without what the jobs carry: no payload, no keys, no tags.
create or replace view schedule_overview as
select key, kind, queue, priority, max_attempts, every, cron, time_zone, starts_at, ends_at, jitter, missed, grace,
  max_missed, overlap, enabled, declared is not null as is_declared, next_run_at, over, locked_by, locked_until,
  last_run_at, last_job, fired, missed_runs, overlapped, updated_at
from schedules;
