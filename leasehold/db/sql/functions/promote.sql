-- Make jobs runnable whose time has come.  created -> queued (run_at has passed), retry -> queued (the backoff is over),
-- retry -> dead (max_attempts was lowered meanwhile). Any number of concurrent callers; each job changes once. Returns how many.

-- Promote these jobs, which the caller has locked.
create or replace function promote_these(ids uuid[]) returns integer language plpgsql as $$
declare
  at constant timestamptz := clock();
  moved integer;
  queues text[];
  dead uuid[];
begin
  with promoted as (
    update jobs j
    set state = case when verdict('failed', false, j.retry_count, j.max_attempts) is null then 'queued'::job_state else 'dead' end,
        updated_at = at, reason = verdict('failed', false, j.retry_count, j.max_attempts),
        finished_at = case when verdict('failed', false, j.retry_count, j.max_attempts) is not null then at end
    where j.id = any(ids) and j.state in ('created', 'retry')
    returning j.id, j.queue, j.state)
  select count(*), array_agg(distinct p.queue) filter (where p.state = 'queued'), array_agg(p.id) filter (where p.state = 'dead')
  into moved, queues, dead from promoted p;
  perform announce(queues);
  perform notice_failures(dead);
  return moved;
end $$;

create or replace function promote_v1(max integer default 1000) returns integer language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
declare
  at constant timestamptz := clock();
  moved integer;
begin
  perform check_most(promote_v1.max);
  moved := isolated('promote', array(
    select j.id from jobs j
    where j.state in ('created', 'retry') and j.accepted and j.run_at <= at
    order by j.run_at limit promote_v1.max for no key update skip locked));
  perform unpark_again();
  perform recheck_limits();
  return moved;
end $$;

-- The queues that have running jobs: one index probe for each.
create or replace function running_queues() returns setof text language sql stable as $$
  with recursive q(queue) as (
    select min(j.queue) from jobs j where j.state = 'running'
    union all
    select (select min(j.queue) from jobs j where j.state = 'running' and j.queue > q.queue) from q where q.queue is not null)
  select q.queue from q where q.queue is not null
$$;

-- Seconds until there is something to promote or to sweep: 0 when there is already, null when there is nothing.
create or replace function next_due_v1() returns double precision language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  at timestamptz := clock();
  due timestamptz;
begin
  -- The first entry of the index, not min(): with old statistics the planner would read all jobs that wait.
  due := (select j.run_at from jobs j where j.state in ('created', 'retry') and j.accepted order by j.run_at limit 1);
  due := least(due, (
    select min(l.ends) from running_queues() q cross join lateral (
      select j.lease_expires_at as ends from jobs j
      where j.state = 'running' and j.queue = q order by j.lease_expires_at limit 1) l));
  -- A job may wait until infinity: it is never due.
  return case when due <= at then 0 when isfinite(due) then extract(epoch from due - at)::double precision end;
end $$;
