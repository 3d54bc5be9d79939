-- What operators read: errors, queues, workers, a few figures. No cost depends on the length of the history: what may be
-- many is counted up to a cap, and marked as capped.
-- Error: LH003 invalid_argument.

-- The latest `scan` recorded failures, grouped by kind and error class, the latest group first. Null queues or kinds: all.
create or replace function errors_v1(queues text[] default null, kinds text[] default null, scan integer default 10000)
returns table (
  kind text, error_class text, attempts bigint, jobs bigint, first_seen timestamptz, last_seen timestamptz,
  last_message text, last_job uuid
) language sql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
  with latest as materialized (
    select a.job_id, a.error_class, a.error_message, a.outcome, a.ended_at from attempts a
    order by a.ended_at desc limit least(greatest(scan, 1), 100000)
  ), failed as (
    select j.kind, l.* from latest l join jobs j on j.id = l.job_id
    where l.outcome in ('failed', 'lease_expired')
      and (errors_v1.queues is null or j.queue = any(errors_v1.queues))
      and (errors_v1.kinds is null or j.kind = any(errors_v1.kinds)))
  select f.kind, f.error_class, count(*), count(distinct f.job_id), min(f.ended_at), max(f.ended_at),
    (array_agg(f.error_message order by f.ended_at desc))[1], (array_agg(f.job_id order by f.ended_at desc))[1]
  from failed f group by f.kind, f.error_class order by max(f.ended_at) desc, f.kind, f.error_class limit 1000
$$;

-- The queues of which anything was tallied in the last hour, with two probes of an index for each queue of the last two
-- weeks: of no more than 2000.
create or replace function lately_queues(at timestamptz) returns setof text language sql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
  with recursive tallied(queue, nth) as (
    (select s.queue, 1 from statistics s where s.step = 600 and s.queue > '' order by s.queue limit 1)
    union all
    select n.queue, t.nth + 1 from tallied t cross join lateral (
      select s.queue from statistics s where s.step = 600 and s.queue > t.queue order by s.queue limit 1) n
    where t.nth < 2000)
  select t.queue from tallied t where exists (
    select from statistics s where s.step = 600 and s.queue = t.queue and s.kind = ''
      and s.at > lately_queues.at - interval '70 minutes')
$$;

-- Every queue that has something to run, runs something, did so in the last hour, is declared by a task, is paused, is
-- limited, or is served by a live worker; the first 1000 by name. `ready` and `running` are counted up to the cap, or to less where there are many queues. The oldest
-- ready job is searched among the first ten of each kind and priority. Null queues or kinds: all.
create or replace function queue_list_v1(cap integer default 10000, queues text[] default null, kinds text[] default null)
returns table (
  queue text, ready integer, ready_capped boolean, running integer, running_capped boolean,
  oldest_ready_at timestamptz, paused_at timestamptz, paused_by text, reason text, max_running integer
) language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  names text[];
  most integer;
begin
  select array_agg(n.queue) into names from (
    select t.queue from (
      select r as queue from ready_queues() r union select r from running_queues() r union select p.queue from queues p
      union select l.name from limits l where l.scope = 'queue'
      union select k.queue from kinds k union select r from lately_queues(at) r
      union select unnest(w.queues) from workers w where is_live(w, at)) t
    where t.queue is not null and (queue_list_v1.queues is null or t.queue = any(queue_list_v1.queues))
    order by t.queue limit 1000) n;
  most := least(greatest(cap, 1), greatest(100, 200000 / greatest(1, cardinality(names))));
  return query
    select n, least(ready.jobs, most)::integer, ready.jobs > most, least(running.jobs, most)::integer, running.jobs > most,
      case when ready.jobs > 0 then oldest_ready(n, queue_list_v1.kinds) end, p.paused_at, p.paused_by, p.reason, l.max_running
    from unnest(names) n
    cross join lateral (select count(*) as jobs from (
      select from jobs j where j.queue = n and j.state = 'queued' and not j.parked and queue_list_v1.kinds is null
      union all
      select from unnest(queue_list_v1.kinds) k cross join lateral (
        select from jobs j where j.queue = n and j.kind = k and j.state = 'queued' and not j.parked limit most + 1) j
      limit most + 1) t) ready
    cross join lateral (select count(*) as jobs from (
      select j.kind from jobs j where j.queue = n and j.state = 'running' limit most + 1) t
      where queue_list_v1.kinds is null or t.kind = any(queue_list_v1.kinds)) running
    left join queues p on p.queue = n
    left join limits l on l.scope = 'queue' and l.name = n
    -- A caller restricted to some kinds but no queues gets the queues that have jobs of these kinds.
    where queue_list_v1.kinds is null or queue_list_v1.queues is not null or ready.jobs > 0 or running.jobs > 0
    order by n;
end $$;

-- Since when the longest waiting of the next jobs has been ready. At most 200 kinds and priorities are searched.
create or replace function oldest_ready(queue text, kinds text[]) returns timestamptz language sql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
  with recursive lane(kind, rank, nth) as (
    (select j.kind, -j.priority, 1 from jobs j
     where j.queue = oldest_ready.queue and j.state = 'queued' and not j.parked order by j.kind, -j.priority limit 1)
    union all
    select n.kind, n.rank, l.nth + 1 from lane l cross join lateral (
      select j.kind, -j.priority as rank from jobs j
      where j.queue = oldest_ready.queue and j.state = 'queued' and not j.parked
        and (j.kind, -j.priority) > (l.kind, l.rank)
      order by j.kind, -j.priority limit 1) n
    where l.nth < 200)
  select min(h.updated_at) from lane l cross join lateral (
    select j.updated_at from jobs j
    where j.queue = oldest_ready.queue and j.kind = l.kind and -j.priority = l.rank and j.state = 'queued' and not j.parked
    order by j.id limit 10) h
  where oldest_ready.kinds is null or l.kind = any(oldest_ready.kinds)
$$;

-- Workers, those seen last first, with how many jobs each runs (of the first 10000 that run at all).
create or replace function worker_list_v1(max integer default 200) returns table (
  id text, host text, pid integer, queues text[], kinds text[], slots integer, running bigint, live boolean,
  started_at timestamptz, seen_at timestamptz, stopped_at timestamptz
) language sql stable as $$
  with busy as materialized (
    select t.lease_owner, count(*) as jobs
    from (select j.lease_owner from jobs j where j.state = 'running' limit 10000) t group by t.lease_owner)
  select w.id, w.host, w.pid, w.queues, w.kinds, w.slots, coalesce(b.jobs, 0), is_live(w, clock()), w.started_at, w.seen_at, w.stopped_at
  from workers w left join busy b on b.lease_owner = w.id
  order by w.seen_at desc, w.id limit least(greatest(worker_list_v1.max, 1), 10000)
$$;

-- The jobs that ended in this state after a moment. A plain query, so that it is inlined.
create or replace function finished_since(state job_state, since timestamptz) returns setof jobs language sql stable
as $$ select j.* from jobs j where j.state in ('success', 'dead') and j.state = finished_since.state and j.finished_at > since $$;

-- How many jobs are in each state, counted up to a cap. `parked` and what finished lately are counted the same way.
create or replace function counts_v1(cap integer default 10000)
returns table (state text, jobs bigint, capped boolean) language sql stable set enable_seqscan = off as $$
  with counted(state, jobs) as (
    select 'created', count(*) from (select from jobs j
      where j.state in ('created', 'retry') and j.accepted and j.state = 'created' limit cap + 1) t
    union all
    select 'queued', count(*) from (select from jobs j where j.state = 'queued' and not j.parked limit cap + 1) t
    union all
    select 'parked', count(*) from (select from jobs j
      where j.state = 'queued' and j.exclusive_key is not null and j.parked limit cap + 1) t
    union all
    select 'running', count(*) from (select from jobs j where j.state = 'running' limit cap + 1) t
    union all
    select 'retry', count(*) from (select from jobs j
      where j.state in ('created', 'retry') and j.accepted and j.state = 'retry' limit cap + 1) t
    union all
    select f.name, n.jobs from (values ('success', job_state 'success', timestamptz '-infinity'), ('dead', 'dead', '-infinity'),
      ('success in 10 s', 'success', statement_timestamp() - interval '10 seconds')) f(name, state, since)
    cross join lateral (select count(*) as jobs from (select from finished_since(f.state, f.since) limit cap + 1) t) n)
  select c.state, least(c.jobs, cap), c.jobs > cap from counted c
$$;

-- A few figures, each counted up to the cap: jobs by state, and what ended in the last minute.
create or replace function stats_v1(cap integer default 10000)
returns table (name text, value bigint, capped boolean) language sql stable set enable_seqscan = off as $$
  select c.state, c.jobs, c.capped from counts_v1(cap) c where c.state <> 'success in 10 s'
  union all
  select s || '_last_minute', least(n.jobs, cap), n.jobs > cap
  from unnest(array[job_state 'success', 'dead']) s cross join (select clock() - interval '1 minute' as since) m
  cross join lateral (select count(*) as jobs from (select from finished_since(s, m.since) limit cap + 1) t) n
  union all select 'queues_paused', count(*), false from queues
  union all
  select t.name, t.value, false from (
    select count(*) as workers, coalesce(sum(w.slots), 0) as slots from workers w where is_live(w, clock())) w
  cross join lateral (values ('workers_live', w.workers), ('slots', w.slots)) t(name, value)
$$;
