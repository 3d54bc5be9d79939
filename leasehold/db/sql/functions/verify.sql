-- What must hold in a live database, looked at through indexes and never beyond a cap: cheap enough for every minute,
-- however many jobs there are. One snapshot for all of it. Nothing of what jobs carry is shown.
-- Errors: LH003 invalid_argument.
--
-- Each helper gives the culprits, `most` at most. What only time can cure (a lease nobody sweeps, a schedule nobody
-- fires) is a violation when it is late by more than `slack`.

-- Attempts and transitions, the latest ones, whose job is gone. prune removes a job with all of them; nobody else removes.
create or replace function lost_jobs(most integer, latest integer) returns text[] language sql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select array(
    select distinct t.job_id::text from (
      (select a.job_id from attempts a order by a.ended_at desc limit latest)
      union all
      (select e.job_id from events e order by e.xid desc, e.seq desc limit latest)) t
    left join jobs j on j.id = t.job_id where j.id is null limit most)
$$;

-- Exclusive keys under which two jobs run or are current, and attempts of a job that were given out twice.
create or replace function double_owners(most integer, latest integer) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select array(
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
    limit most)
$$;

-- Leases that expired and that nobody swept.
create or replace function overdue_leases(most integer, before timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  with recursive q(queue) as (
    select min(j.queue) from jobs j where j.state = 'running'
    union all
    select (select min(j.queue) from jobs j where j.state = 'running' and j.queue > q.queue) from q where q.queue is not null)
  select array(
    select t.id::text from q cross join lateral (
      select j.id from jobs j where j.state = 'running' and j.queue = q.queue and j.lease_expires_at < before limit most) t
    limit most)
$$;

-- Live leases of workers that have said that they stopped.
create or replace function orphaned_jobs(most integer, before timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select array(
    select j.id::text from (
      select j.id, j.lease_owner, j.lease_expires_at from jobs j where j.state = 'running' limit 100000) j
    where j.lease_expires_at >= before
      and j.lease_owner = any(array(select w.id from workers w where w.stopped_at < before))
    limit most)
$$;

-- Limits under which more jobs run than they allow. One that was lowered while more were running is not broken: none
-- was claimed since.
create or replace function broken_limits(most integer, at timestamptz) returns text[] language sql stable
set enable_seqscan = off set jit = off
as $$
  select array(
    select l.scope || case l.scope when 'global' then '' else ' ' || l.name end from limits l cross join lateral (
      select count(*) as jobs, max(j.claimed_at) as latest from (
        (select j.claimed_at, j.lease_expires_at from jobs j
         where l.scope = 'global' and j.state = 'running' limit l.max_running + 100000)
        union all
        (select j.claimed_at, j.lease_expires_at from jobs j
         where l.scope = 'queue' and j.state = 'running' and j.queue = l.name limit l.max_running + 100000)
        union all
        (select j.claimed_at, j.lease_expires_at from jobs j
         where l.scope = 'kind' and j.state = 'running' and j.kind = l.name limit l.max_running + 100000)
        union all
        (select j.claimed_at, j.lease_expires_at from jobs j
         where l.scope = 'key' and j.state is not distinct from 'running' and j.exclusive_key >= l.name
           and j.exclusive_key < l.ends_before limit l.max_running + 100000)) j
      where j.lease_expires_at > at) r
    where r.jobs > l.max_running and r.latest > l.updated_at
    order by 1 limit most)
$$;

-- Parked jobs that nobody will wake: no job of their key runs or may run, or no limit keeps them. Looked for among the
-- first `most` keys that have waiting jobs and the first `most` limits that have parked ones.
create or replace function forgotten_jobs(most integer) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  with recursive waiting(key, nth) as (
    select min(j.exclusive_key), 1 from jobs j where j.state = 'queued' and j.exclusive_key is not null
    union all
    select (select min(j.exclusive_key) from jobs j
      where j.state = 'queued' and j.exclusive_key is not null and j.exclusive_key > w.key), w.nth + 1
    from waiting w where w.key is not null and w.nth < most
  ), under(name) as (
    select min(j.parked_under) from jobs j where j.exclusive_key is not null and j.parked and j.parked_under is not null
    union all
    select (select min(j.parked_under) from jobs j
      where j.exclusive_key is not null and j.parked and j.parked_under is not null and j.parked_under > u.name)
    from under u where u.name is not null)
  select array(
    select t.id::text from (
      -- The cheap questions first: almost every key has one that runs or may run. OFFSET keeps it so.
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
      select p.id from under u cross join lateral (
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

-- Jobs whose time came, or whose backoff was over, and that nobody promoted.
create or replace function overdue_jobs(most integer, before timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select array(
    select j.id::text from jobs j
    where j.state in ('created', 'retry') and j.accepted and j.run_at < before order by j.run_at limit most)
$$;

-- Of the jobs that failed last: every claim but the one that runs, or succeeded, has its row; failures do not exceed them.
create or replace function attempt_gaps(most integer, latest integer) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select array(
    select j.id::text from (
      select distinct a.job_id from (select a.job_id from attempts a order by a.ended_at desc limit latest) a) t
    join jobs j on j.id = t.job_id
    cross join lateral (
      select count(*) as rows, max(a.attempt) as highest,
        count(*) filter (where a.outcome in ('failed', 'lease_expired')) as failures
      from (select a.attempt, a.outcome from attempts a where a.job_id = j.id limit 10000) a) a
    where a.rows < 10000 and (a.rows <> j.attempt - (j.state in ('running', 'success'))::integer or a.highest > j.attempt
      or j.retry_count > a.failures)
    limit most)
$$;

-- Leases that end later than any lease can last: written by hand, or the clock was set back.
create or replace function endless_leases(most integer, after timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  with recursive q(queue) as (
    select min(j.queue) from jobs j where j.state = 'running'
    union all
    select (select min(j.queue) from jobs j where j.state = 'running' and j.queue > q.queue) from q where q.queue is not null)
  select array(
    select t.id::text from q cross join lateral (
      select j.id from jobs j where j.state = 'running' and j.queue = q.queue and j.lease_expires_at > after limit most) t
    limit most)
$$;

-- Jobs that are queued and whose time has not come, so that no claim takes them: the clock was set back, or a person
-- wrote the row. They stay where claims begin, at the head of their queue and kind.
create or replace function early_jobs(most integer, after timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select array(
    select t.id::text from lanes_queued(1000) l cross join lateral (
      select j.id, j.run_at from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
      order by -j.priority, j.id limit 100) t
    where t.run_at > after limit most)
$$;

-- Jobs that were submitted before that and never accepted: their key is used, and nothing runs. Looked for among the
-- oldest jobs, where they stay when what has finished is pruned, and among the latest of their age.
create or replace function unaccepted_jobs(most integer, latest integer, before timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select array(
    select t.id::text from (
      (select j.id, j.state, j.accepted, j.created_at from jobs j order by j.id limit 5 * latest)
      union
      (select j.id, j.state, j.accepted, j.created_at from jobs j
       where j.id < id_at(before) order by j.id desc limit 5 * latest)) t
    where t.state = 'created' and not t.accepted and t.created_at < before limit most)
$$;

-- Schedules that are due and that nobody fires.
create or replace function late_schedules(most integer, before timestamptz) returns text[] language sql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select array(
    select s.key from schedules s
    where s.enabled and not s.over and greatest(s.next_run_at, s.locked_until) < before
    order by greatest(s.next_run_at, s.locked_until) limit most)
$$;

-- What stands behind the functions and is missing or out of force: unique indexes, constraints, the guard of transitions.
create or replace function missing_guards() returns text[] language sql stable
as $$
  select array(
    select 'index ' || w.name
    from (values ('jobs_pkey', true), ('jobs_idempotency_key', true), ('jobs_current', true), ('attempts_pkey', true),
      ('jobs_runnable', false), ('jobs_lease', false), ('jobs_due', false), ('jobs_finished', false),
      ('jobs_exclusive_waiting', false), ('jobs_exclusive_running', false), ('jobs_exclusive_runnable', false),
      ('jobs_parked_under', false)) w(name, is_unique)
    where not exists (
      select from pg_index i join pg_class c on c.oid = i.indexrelid
      where c.relnamespace = current_schema()::regnamespace and c.relname = w.name and i.indisvalid and i.indisready
        and i.indislive and i.indisunique >= w.is_unique)
    union all
    select 'constraint ' || w.name
    from unnest(array['jobs_lease_iff_running', 'jobs_finished_iff_over', 'jobs_within_budget', 'jobs_exclusive']) w(name)
    where not exists (
      select from pg_constraint c where c.conrelid = 'jobs'::regclass and c.conname = w.name and c.convalidated)
    union all
    select 'trigger jobs_transition'
    -- Where triggers are not allowed (Citus) the guard was never there.
    where not exists (select from pg_extension x where x.extname = 'citus')
      and not exists (
        select from pg_trigger t where t.tgrelid = 'jobs'::regclass and t.tgname = 'jobs_transition' and t.tgenabled in ('O', 'A')))
$$;

-- One row for each law. `violations` counts up to `cap` (`capped`: there are more); `sample` names the first ten.
-- `latest`: how many of the newest attempts and events are looked at.
create or replace function verify_v1(
  cap integer default 1000, slack interval default '1 minute', latest integer default 1000
) returns table (
  name text, ok boolean, violations bigint, capped boolean, sample text[], detail text, checked_at timestamptz
) language plpgsql stable
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  before timestamptz;
begin
  if cap is null or cap not between 1 and 10000 or latest is null or latest not between 1 and 100000
     or slack is null or slack not between interval '0' and interval '1000 years' then
    perform refuse('LH003', 'invalid_argument', format('cap %s, slack %s, latest %s', cap, slack, latest),
      'count 1 to 10000 violations, look at 1 to 100000 of the latest, allow no negative time');
  end if;
  before := at - slack;
  return query
    select v.name, cardinality(v.found) = 0, least(cardinality(v.found), cap)::bigint, cardinality(v.found) > cap,
      v.found[:10], v.detail, at
    from (values
      ('lost_jobs', lost_jobs(cap + 1, latest), 'recorded attempts or transitions whose job is gone'),
      ('double_owners', double_owners(cap + 1, latest), 'two jobs run under one exclusive key, or one attempt was given out twice'),
      ('broken_limits', broken_limits(cap + 1, at), 'more jobs run than a limit allows'),
      ('forgotten_jobs', forgotten_jobs(cap + 1), 'parked behind a key or limit, and nobody left to wake them'),
      ('overdue_leases', overdue_leases(cap + 1, before), 'the lease expired and nobody swept it: no worker is up, or none can'),
      ('overdue_jobs', overdue_jobs(cap + 1, before), 'the time has come and nobody promoted it: no worker is up, or none can'),
      ('orphaned_jobs', orphaned_jobs(cap + 1, before), 'leased by a worker that has stopped; runs again when the lease expires'),
      ('attempt_gaps', attempt_gaps(cap + 1, latest), 'claims and failures do not agree with the recorded attempts'),
      ('endless_leases', endless_leases(cap + 1, at + interval '86400 seconds' + slack),
        'leased for longer than a lease can last: not swept before; release it by hand'),
      ('early_jobs', early_jobs(cap + 1, at + slack),
        'queued although their time has not come, so not claimed: was the clock set back? run_now() is for jobs that wait'),
      ('unaccepted_jobs', unaccepted_jobs(cap + 1, latest, at - interval '1 day' - slack),
        'submitted a day ago and never accepted: accept() or cancel() them'),
      ('late_schedules', late_schedules(cap + 1, before), 'due and not fired: no scheduler is up, or it has a problem'),
      ('missing_guards', missing_guards(), 'an index, a constraint or the transition guard is missing or not in force')
    ) v(name, found, detail);
end $$;

create or replace function verify(
  cap integer default 1000, slack interval default '1 minute', latest integer default 1000
) returns table (
  name text, ok boolean, violations bigint, capped boolean, sample text[], detail text, checked_at timestamptz
) language sql stable
security definer set search_path from current
as $$ select * from verify_v1(cap, slack, latest) $$;
