-- Workers, and what their tasks declare. Operators see here which workers are alive and which kinds no worker handles; ownership never
-- depends on it: leases decide that.
-- Errors: LH003 invalid_argument.

create or replace function start_worker_v1(
  worker text, host text default null, pid integer default null, queues text[] default null, kinds text[] default null,
  lease_seconds double precision[] default null, slots integer default null
) returns void language plpgsql set lock_timeout = '3s' as $$
declare
  at timestamptz := clock();
begin
  perform check_worker(worker), check_names('queues', queues), check_names('kinds', kinds);
  if lease_seconds is not null then
    perform declare_kinds_v1(kinds, lease_seconds);
  end if;
  insert into workers as w (id, host, pid, queues, kinds, slots, started_at, seen_at)
  values (worker, shortened(host, 255), pid, queues, kinds, slots, at, at)
  on conflict (id) do update
  set host = excluded.host, pid = excluded.pid, queues = excluded.queues, kinds = excluded.kinds,
      slots = excluded.slots, seen_at = at, stopped_at = null;
end $$;

create or replace function stop_worker_v1(worker text) returns void language sql set lock_timeout = '3s'
as $$ update workers w set stopped_at = now.at, seen_at = now.at from (select clock() as at) now where w.id = worker $$;

-- Record that a worker is alive, unless its row or the table is locked: renewal and upkeep wait for no claim, nor for an index that is
-- being created.
create or replace function seen(worker text, at timestamptz) returns void language plpgsql set lock_timeout = '10ms' as $$
begin
  update workers w set seen_at = seen.at
  from (select f.id from workers f where f.id = seen.worker for no key update skip locked) f where w.id = f.id;
exception when lock_not_available then
  null;
end $$;

create or replace function lease_seconds_v1(kind text) returns double precision language sql stable
as $$ select lease_of(kind) $$;

create or replace function tasks_of(tasks jsonb) returns table (
  kind text, lease_seconds double precision, queue text, priority integer, max_attempts integer
) language sql immutable as $$
  select * from jsonb_to_recordset(tasks) as t(kind text, lease_seconds double precision, queue text, priority integer,
    max_attempts integer)
$$;

-- Store declarations. What is declared already is only read: a worker that starts waits for no other declaration.
create or replace function write_kinds(tasks jsonb, leases_only boolean) returns void language plpgsql set lock_timeout = '3s' as $$
begin
  perform require(jsonb_typeof(tasks) = 'array', 'tasks is not a JSON array', 'send an array of objects');
  perform require(false, format('kind %L: %s', left(t.kind, 300), p.problem),
    format('nothing was changed; a lease lasts between %s s and %s s', min_lease(), max_lease()))
  from tasks_of(tasks) t
  cross join lateral (select coalesce(
    intent_problem(case when leases_only then make_intent(t.kind, '{}', 'default', 0, max_attempts => 1)
      else make_intent(t.kind, '{}', t.queue, t.priority, max_attempts => t.max_attempts) end),
    case when t.lease_seconds is null or t.lease_seconds not between min_lease() and max_lease()
      then format('a lease of %s s', t.lease_seconds) end) as problem) p
  where p.problem is not null;
  -- In one order everywhere, or two workers that start together deadlock.
  insert into kinds as k (kind, lease_seconds, queue, priority, max_attempts, updated_at)
  select t.kind, t.lease_seconds, t.queue, t.priority, t.max_attempts, clock()
  from tasks_of(tasks) t
  where not exists (
    select from kinds o where o.kind = t.kind and o.lease_seconds = t.lease_seconds
      and (leases_only or (o.queue, o.priority, o.max_attempts) is not distinct from (t.queue, t.priority, t.max_attempts)))
  order by t.kind
  on conflict (kind) do update
  set lease_seconds = excluded.lease_seconds, updated_at = excluded.updated_at,
      queue = case when leases_only then k.queue else excluded.queue end,
      priority = case when leases_only then k.priority else excluded.priority end,
      max_attempts = case when leases_only then k.max_attempts else excluded.max_attempts end;
end $$;

-- Store what tasks declare about their jobs: `tasks` is an array of objects with kind, lease_seconds, queue, priority and max_attempts.
-- A job that is recorded without a queue, priority or max_attempts gets these. The last declaration wins.
create or replace function declare_tasks_v1(tasks jsonb) returns void language sql
as $$ select write_kinds(tasks, false) $$;

-- Declare the leases of kinds, and leave what else is declared of them.
create or replace function declare_kinds_v1(kinds text[], lease_seconds double precision[]) returns void language sql as $$
  select write_kinds(coalesce(jsonb_agg(jsonb_build_object('kind', t.kind, 'lease_seconds', t.lease)), '[]'), true)
  from unnest(kinds, lease_seconds) t(kind, lease)
$$;
