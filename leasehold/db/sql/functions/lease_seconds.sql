-- How long a lease of a kind lasts. The only source of lease durations, for jobs and for schedules.

-- For our own functions: a single expression, so that it is inlined.
create or replace function lease_of(kind text) returns double precision language sql stable
return coalesce((select k.lease_seconds from kinds k where k.kind = lease_of.kind), 15);

create or replace function lease_seconds_v1(kind text) returns double precision language sql stable
security definer set search_path from current
as $$ select lease_of(kind) $$;

create or replace function lease_seconds(kind text) returns double precision language sql stable
security definer set search_path from current
as $$ select lease_seconds_v1(kind) $$;

-- The leases of many kinds at once, as {kind: seconds}: one look-up a kind, not one a job.
create or replace function leases_of(kinds text[]) returns jsonb language sql stable
as $$ select jsonb_object_agg(k, lease_of(k)) from unnest(kinds) k $$;

-- The argument of declare_tasks as rows.
create or replace function tasks_of(tasks jsonb) returns table (
  kind text, lease_seconds double precision, queue text, priority integer, max_attempts integer
) language sql immutable
as $$
  select * from jsonb_to_recordset(tasks) as t(kind text, lease_seconds double precision, queue text, priority integer,
    max_attempts integer)
$$;

-- A worker, or anybody who may operate, declares what its tasks need. The last word wins.
-- Error: LH003 invalid_argument.
create or replace function declare_kinds_v1(kinds text[], lease_seconds double precision[]) returns void language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
declare
  bad record;
begin
  select * into bad from unnest(kinds, lease_seconds) t(kind, lease)
  where t.kind is null or t.kind = '' or t.lease is null or t.lease not between 0.1 and 86400 limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('kind %L with a lease of %s s', left(bad.kind, 300), bad.lease),
      'a lease lasts between 0.1 s and 86400 s');
  end if;
  perform check_names('kinds', kinds);
  -- In one order everywhere, or two workers that start together deadlock.
  insert into kinds as k (kind, lease_seconds, updated_at)
  select t.kind, t.lease, clock() from unnest(kinds, lease_seconds) t(kind, lease)
  where not exists (select from kinds o where o.kind = t.kind and o.lease_seconds = t.lease)  -- locks nothing that stays
  order by t.kind
  on conflict (kind) do update set lease_seconds = excluded.lease_seconds, updated_at = excluded.updated_at
  where k.lease_seconds <> excluded.lease_seconds;
end $$;

create or replace function declare_kinds(kinds text[], lease_seconds double precision[]) returns void language sql
security definer set search_path from current
as $$ select declare_kinds_v1(kinds, lease_seconds) $$;

-- The same with everything that a task declares about its jobs: `tasks` is an array of objects with kind, lease_seconds,
-- queue, priority and max_attempts. A job that is recorded without a queue, priority or max_attempts gets these.
-- What is declared already is only read, so that workers which start wait for no one who declares something.
-- Error: LH003 invalid_argument.
create or replace function declare_tasks_v1(tasks jsonb) returns void language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
declare
  bad record;
begin
  if jsonb_typeof(tasks) is distinct from 'array' then
    perform refuse('LH003', 'invalid_argument', 'tasks is not a JSON array', 'send an array of objects');
  end if;
  select t.kind, p.problem into bad
  from tasks_of(tasks) t
  cross join lateral (select coalesce(
    intent_problem(t.kind, t.queue, t.priority, t.max_attempts, '{}', null, null, null),
    case when t.lease_seconds is null or t.lease_seconds not between 0.1 and 86400
      then format('a lease of %s s', t.lease_seconds) end) as problem) p
  where p.problem is not null limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('kind %L: %s', bad.kind, bad.problem),
      'nothing was changed; a lease lasts between 0.1 s and 86400 s');
  end if;
  -- In one order everywhere, or two workers that start together deadlock.
  insert into kinds (kind, lease_seconds, queue, priority, max_attempts, updated_at)
  select t.kind, t.lease_seconds, t.queue, t.priority, t.max_attempts, clock()
  from tasks_of(tasks) t
  where not exists (
    select from kinds k where k.kind = t.kind and (k.lease_seconds, k.queue, k.priority, k.max_attempts)
      is not distinct from (t.lease_seconds, t.queue, t.priority, t.max_attempts))
  order by t.kind
  on conflict (kind) do update
  set lease_seconds = excluded.lease_seconds, queue = excluded.queue, priority = excluded.priority,
      max_attempts = excluded.max_attempts, updated_at = excluded.updated_at;
end $$;

create or replace function declare_tasks(tasks jsonb) returns void language sql
security definer set search_path from current
as $$ select declare_tasks_v1(tasks) $$;
