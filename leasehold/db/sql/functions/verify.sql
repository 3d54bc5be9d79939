-- What must hold in a live database, checked through indexes and never beyond a cap: cheap enough for every minute,
-- however many jobs there are. One snapshot for all checks. Nothing of what jobs carry is shown.
-- Errors: LH003 invalid_argument.
--
-- Each check returns the violations, `most` at most, and what they mean. What workers correct in time (an expired lease, a due schedule)
-- is a violation when it is late by more than `slack`.

-- What is on record of jobs: the latest attempts and transitions are compared with the jobs.
create or replace function verify_records(most integer, latest integer)
returns table (name text, found text[], detail text) language sql stable as $$
  -- Only prune removes jobs, and with them their attempts and transitions.
  select 'lost_jobs', array(
    select distinct t.job_id::text from (
      (select a.job_id from attempts a order by a.ended_at desc limit latest)
      union all
      (select e.job_id from events e order by e.xid desc, e.seq desc limit latest)) t
    left join jobs j on j.id = t.job_id where j.id is null limit most), 'recorded attempts or transitions whose job is gone'
  union all
  select 'double_owners', array(
    select min(j.id::text) from (
      (select j.exclusive_key, j.id from jobs j
       where j.exclusive_key is not null and j.state is not distinct from 'running' limit 100000)
      union
      (select j.exclusive_key, j.id from jobs j where j.is_current limit 100000)) j
    group by j.exclusive_key having count(*) > 1
    union
    select e.job_id::text from (
      select e.job_id, e.attempt, e.from_state, e.to_state from events e order by e.xid desc, e.seq desc limit latest) e
    where e.to_state = 'running' and e.from_state is distinct from 'running'
    group by e.job_id, e.attempt having count(*) > 1
    limit most), 'two jobs run under one exclusive key, or one attempt was given out twice'
  union all
  -- Every claim but the one that runs, or succeeded, has its row; failures do not exceed them.
  select 'attempt_gaps', array(
    select j.id::text from (
      select distinct a.job_id from (select a.job_id from attempts a order by a.ended_at desc limit latest) a) t
    join jobs j on j.id = t.job_id
    cross join lateral (
      select count(*) as rows, max(a.attempt) as highest,
        count(*) filter (where a.outcome in ('failed', 'lease_expired')) as failures
      from (select a.attempt, a.outcome from attempts a where a.job_id = j.id limit 10000) a) a
    where a.rows < 10000 and (a.rows <> j.attempt - (j.state in ('running', 'success'))::integer or a.highest > j.attempt
      or j.retry_count > a.failures)
    limit most), 'claims and failures do not agree with the recorded attempts'
$$;

create or replace function leases_between(most integer, after timestamptz, before timestamptz) returns text[]
language sql stable as $$
  select array(
    select t.id::text from running_queues() q cross join lateral (
      select j.id from jobs j
      where j.state = 'running' and j.queue = q and j.lease_expires_at between after and before
      limit most) t
    limit most)
$$;

-- What runs: leases, their owners, limits.
create or replace function verify_running(most integer, at timestamptz, slack interval)
returns table (name text, found text[], detail text) language sql stable as $$
  -- A limit that was lowered while more jobs were running is not broken: none was claimed since.
  select 'broken_limits', array(
    select l.scope || case l.scope when 'global' then '' else ' ' || l.name end from limits l cross join lateral (
      select count(*) as jobs, max(j.claimed_at) as latest
      from (select j.claimed_at, j.lease_expires_at from running_jobs(l) j limit l.max_running + 100000) j
      where j.lease_expires_at > at) r
    where r.jobs > l.max_running and r.latest > l.updated_at
    order by 1 limit most), 'more jobs run than a limit allows'
  union all
  select 'overdue_leases', leases_between(most, '-infinity', at - slack), 'the lease expired and no worker swept it: none is up, or none can'
  union all
  select 'endless_leases', leases_between(most, at + max_lease() * interval '1 second' + slack, 'infinity'),
    'leased for longer than a lease can last: not swept before; release it by hand'
  union all
  select 'orphaned_jobs', array(
    select j.id::text from (select j.id, j.lease_owner, j.lease_expires_at from jobs j where j.state = 'running' limit 100000) j
    where j.lease_expires_at >= at - slack
      and j.lease_owner = any(array(select w.id from workers w where w.stopped_at < at - slack))
    limit most), 'leased by a worker that has stopped; runs again when the lease expires'
$$;

-- What waits: for its time, for a worker, for its acceptance.
create or replace function verify_waiting(most integer, latest integer, at timestamptz, slack interval)
returns table (name text, found text[], detail text) language sql stable as $$
  select 'overdue_jobs', array(
    select j.id::text from jobs j
    where j.state in ('created', 'retry') and j.accepted and j.run_at < at - slack order by j.run_at limit most),
    'the time has come and no worker promoted it: none is up, or none can'
  union all
  -- The clock was set back, or a person wrote the row. They stay where claims begin, at the head of their queue and kind.
  select 'early_jobs', array(
    select t.id::text from lanes_queued(1000) l cross join lateral (
      select j.id, j.run_at from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
      order by -j.priority, j.id limit 100) t
    where t.run_at > at + slack limit most),
    'queued although their time has not come, so not claimed: was the clock set back? run_now() is for jobs that wait'
  union all
  -- Their key is used, and nothing runs. Searched among the oldest jobs, where they stay when what has finished is pruned, and among the
  -- latest of their age.
  select 'unaccepted_jobs', array(
    select t.id::text from (
      (select j.id, j.state, j.accepted, j.created_at from jobs j order by j.id limit 5 * latest)
      union
      (select j.id, j.state, j.accepted, j.created_at from jobs j
       where j.id < id_at(at - interval '1 day' - slack) order by j.id desc limit 5 * latest)) t
    where t.state = 'created' and not t.accepted and t.created_at < at - interval '1 day' - slack limit most),
    'submitted a day ago and never accepted: accept() or cancel() them'
  union all
  select 'late_schedules', array(
    select s.key from schedules s
    where s.enabled and not s.over and greatest(s.next_run_at, s.locked_until) < at - slack
    order by greatest(s.next_run_at, s.locked_until) limit most), 'due and not fired: no scheduler is up, or it has a problem'
$$;

-- Parked jobs that will not be unparked: no job of their key runs or may run, or no limit holds them. Searched among the
-- first `most` keys that have waiting jobs and the limits that have parked ones.
create or replace function forgotten_jobs(most integer) returns text[] language sql stable as $$
  with recursive waiting(key, nth) as (
    select min(j.exclusive_key), 1 from jobs j where j.state = 'queued' and j.exclusive_key is not null
    union all
    select (select min(j.exclusive_key) from jobs j
      where j.state = 'queued' and j.exclusive_key is not null and j.exclusive_key > w.key), w.nth + 1
    from waiting w where w.key is not null and w.nth < most)
  select array(
    select t.id::text from (
      -- The cheap conditions first: almost every key has a job that runs or may run. OFFSET keeps this order.
      select p.id from (
        select w.key from waiting w
        where w.key is not null
          and not exists (select from jobs j where j.exclusive_key = w.key and j.state is not distinct from 'queued'
            and j.parked is distinct from true)
          and not exists (select from jobs j where j.exclusive_key = w.key and j.state is not distinct from 'running')
          and not exists (select from unpark_later u where u.exclusive_key = w.key)
        offset 0) w
      cross join lateral (
        select min(b.id::text)::uuid as id, bool_or(b.parked_under is not null) as limited from (
          select j.id, j.parked_under from jobs j
          where j.exclusive_key = w.key and j.state = 'queued' limit 1000) b) p
      where not p.limited
      union all
      select p.id from parked_limits() u(name) cross join lateral (
        select j.id from jobs j
        where j.exclusive_key is not null and j.parked and j.parked_under = u.name limit 1) p
      left join limits l on l.scope = 'key' and l.name = u.name
      where l.max_running is distinct from 0 and not exists (
        select from jobs j where j.exclusive_key is not null and j.exclusive_key >= l.name
          and j.exclusive_key < l.ends_before and j.state is not distinct from 'running')
        and not exists (
        select from jobs j where j.exclusive_key is not null and j.exclusive_key >= l.name
          and j.exclusive_key < l.ends_before and j.state is not distinct from 'queued' and j.parked is distinct from true)) t
    limit most)
$$;

-- Return the objects that the functions rely on and that are missing or disabled: unique indexes, constraints, the guard of transitions.
create or replace function missing_guards() returns text[] language sql stable as $$
  select array(
    select 'index ' || w.name
    from (values ('jobs_pkey', true), ('jobs_idempotency_key', true), ('jobs_current', true), ('attempts_pkey', true),
      ('jobs_runnable', false), ('jobs_lease', false), ('jobs_due', false), ('jobs_finished', false),
      ('jobs_exclusive_waiting', false), ('jobs_parked', false), ('jobs_exclusive_running', false), ('jobs_exclusive_runnable', false),
      ('jobs_parked_under', false)) w(name, is_unique)
    where not exists (
      select from pg_index i join pg_class c on c.oid = i.indexrelid
      where c.relnamespace = current_schema()::regnamespace and c.relname = w.name and i.indisvalid and i.indisready
        and i.indislive and i.indisunique >= w.is_unique)
    union all
    select 'constraint ' || w.name
    from unnest(array['jobs_lease_iff_running', 'jobs_finished_iff_over', 'jobs_within_budget', 'jobs_exclusive']) w(name)
    where not exists (select from pg_constraint c where c.conrelid = 'jobs'::regclass and c.conname = w.name and c.convalidated)
    union all
    select 'trigger jobs_transition'
    -- Where triggers are not allowed (Citus) the guard was never there.
    where not exists (select from pg_extension x where x.extname = 'citus')
      and not exists (
        select from pg_trigger t where t.tgrelid = 'jobs'::regclass and t.tgname = 'jobs_transition' and t.tgenabled in ('O', 'A')))
$$;

-- One row for each law. `violations` counts up to `cap` (`capped`: there are more); `sample` names the first ten.
-- `latest`: how many of the newest attempts and events are checked.
create or replace function verify_v1(cap integer default 1000, slack interval default '1 minute', latest integer default 1000)
returns table (name text, ok boolean, violations bigint, capped boolean, sample text[], detail text, checked_at timestamptz)
language plpgsql stable
-- For the checks, too.
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  at timestamptz := clock();
begin
  perform require(cap between 1 and 10000 and latest between 1 and 100000 and slack between interval '0' and interval '1000 years',
    format('cap %s, slack %s, latest %s', cap, slack, latest),
    'count 1 to 10000 violations, read 1 to 100000 of the latest, allow no negative time');
  return query
    select v.name, cardinality(v.found) = 0, least(cardinality(v.found), cap)::bigint, cardinality(v.found) > cap,
      v.found[:10], v.detail, at
    from (
      select * from verify_records(cap + 1, latest)
      union all select * from verify_running(cap + 1, at, slack)
      union all select * from verify_waiting(cap + 1, latest, at, slack)
      union all select 'forgotten_jobs', forgotten_jobs(cap + 1), 'parked behind a key or limit, and nothing left to unpark them'
      union all select 'missing_guards', missing_guards(), 'an index, a constraint or the transition guard is missing or not in force') v;
end $$;
