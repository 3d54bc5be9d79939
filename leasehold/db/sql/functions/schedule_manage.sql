-- Look at schedules, switch them on and off, take them away.
-- Error: LH002 job_unknown.

-- What can be claimed now (0 seconds) and when the others can, soonest first; nothing about those that are disabled or
-- over. The scheduler sleeps until the first that is not 0.
create or replace function schedule_due_v1(max integer default 100)
returns table (key text, seconds double precision) language plpgsql stable
security definer set search_path from current
as $$
declare
  at timestamptz := clock();
begin
  return query
    select s.key, coalesce(greatest(0, extract(epoch from greatest(s.next_run_at, s.locked_until) - at)), 0)::double precision
    from schedules s where s.enabled and not s.over
    order by greatest(s.next_run_at, s.locked_until) nulls first limit schedule_due_v1.max;
end $$;

create or replace function schedule_due(max integer default 100)
returns table (key text, seconds double precision) language sql stable
security definer set search_path from current
as $$ select * from schedule_due_v1(max) $$;

-- Switch it on. What came due while it was off is missed, and its policy for missed runs says what becomes of it;
-- `from_now` forgets it. False: it was on already, and nothing was changed.
create or replace function schedule_enable_v1(key text, from_now boolean default false, notify boolean default true)
returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
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
  if notify then
    perform announce(array['@schedule']);
  end if;
  return true;
end $$;

create or replace function schedule_enable(key text, from_now boolean default false, notify boolean default true)
returns boolean language sql
security definer set search_path from current
as $$ select schedule_enable_v1(key, from_now, notify) $$;

-- Switch it off: no more jobs, not even from a claim under way. False: it was off already.
create or replace function schedule_disable_v1(key text) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  update schedules t
  set enabled = false, updated_at = at, locked_by = null, locked_until = null, claim_id = null, claimed_at = null
  where t.key = schedule_disable_v1.key and t.enabled;
  if not found and not exists (select from schedules t where t.key = schedule_disable_v1.key) then
    perform refuse_schedule(schedule_disable_v1.key);
  end if;
  return found;
end $$;

create or replace function schedule_disable(key text) returns boolean language sql
security definer set search_path from current
as $$ select schedule_disable_v1(key) $$;

-- Take it away; its jobs stay. Code that declares it makes it anew when a worker starts. False: there is none.
create or replace function schedule_remove_v1(key text) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
begin
  delete from schedules t where t.key = schedule_remove_v1.key;
  return found;
end $$;

create or replace function schedule_remove(key text) returns boolean language sql
security definer set search_path from current
as $$ select schedule_remove_v1(key) $$;

-- One schedule, or all of them, by key.
create or replace function schedule_list_v1(key text default null)
returns table (
  name text, kind text, queue text, payload jsonb, priority smallint, max_attempts smallint, exclusive_key text,
  tags text[], due_argument text, every interval, cron text, time_zone text, starts_at timestamptz, ends_at timestamptz,
  jitter interval, missed text, grace interval, max_missed integer, overlap text, enabled boolean, is_declared boolean,
  created_at timestamptz, updated_at timestamptz, due_after timestamptz, next_run_at timestamptz, over boolean,
  locked_by text, locked_until timestamptz, last_run_at timestamptz, last_job uuid, fired bigint, missed_runs bigint,
  overlapped bigint, problem text
) language sql stable
security definer set search_path from current
as $$
  select s.key, s.kind, s.queue, s.payload, s.priority, s.max_attempts, s.exclusive_key, s.tags, s.due_argument,
    s.every, s.cron, s.time_zone, s.starts_at, s.ends_at, s.jitter, s.missed, s.grace, s.max_missed, s.overlap,
    s.enabled, s.declared is not null, s.created_at, s.updated_at, s.due_after, s.next_run_at, s.over, s.locked_by,
    s.locked_until, s.last_run_at, s.last_job, s.fired, s.missed_runs, s.overlapped, s.problem
  from schedules s where schedule_list_v1.key is null or s.key = schedule_list_v1.key order by s.key
$$;

create or replace function schedule_list(key text default null)
returns table (
  name text, kind text, queue text, payload jsonb, priority smallint, max_attempts smallint, exclusive_key text,
  tags text[], due_argument text, every interval, cron text, time_zone text, starts_at timestamptz, ends_at timestamptz,
  jitter interval, missed text, grace interval, max_missed integer, overlap text, enabled boolean, is_declared boolean,
  created_at timestamptz, updated_at timestamptz, due_after timestamptz, next_run_at timestamptz, over boolean,
  locked_by text, locked_until timestamptz, last_run_at timestamptz, last_job uuid, fired bigint, missed_runs bigint,
  overlapped bigint, problem text
) language sql stable
security definer set search_path from current
as $$ select * from schedule_list_v1(key) $$;

-- For people who look and must not see what the jobs carry: no payload, no keys, no tags.
create or replace view schedule_overview as
select key, kind, queue, priority, max_attempts, every, cron, time_zone, starts_at, ends_at, jitter, missed, grace,
  max_missed, overlap, enabled, declared is not null as is_declared, next_run_at, over, locked_by, locked_until,
  last_run_at, last_job, fired, missed_runs, overlapped, updated_at
from schedules;
