-- Make jobs runnable whose time has come.  created -> queued (run_at is due), retry -> queued (the backoff is
-- over), retry -> dead (max_attempts was lowered meanwhile). Any number of callers; each job moves once.
-- Gives how many.

-- Move these jobs, which the caller has locked.
create or replace function promote_these(ids uuid[], at timestamptz) returns integer language plpgsql
as $$
declare
  moved integer;
  queues text[];
begin
  with promoted as (
    update jobs j
    set state = case when j.retry_count < j.max_attempts then 'queued'::job_state else 'dead' end, updated_at = at,
        reason = case when j.retry_count >= j.max_attempts then 'exhausted' end,
        finished_at = case when j.retry_count >= j.max_attempts then at end
    where j.id = any(ids) and j.state in ('created', 'retry')
    returning j.queue, j.state)
  select count(*), array_agg(distinct p.queue) filter (where p.state = 'queued') into moved, queues from promoted p;
  perform announce(queues);
  return moved;
end $$;

create or replace function promote_v1(max integer default 1000) returns integer language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  at timestamptz := clock();
  due uuid[];
  id uuid;
  moved integer := 0;
begin
  due := array(
    select j.id from jobs j
    where j.state in ('created', 'retry') and j.accepted and j.run_at <= at
    order by j.run_at limit promote_v1.max for update skip locked);
  if cardinality(due) > 0 then
    begin
      moved := promote_these(due, at);
      due := '{}';
    exception when others then
      if is_passing(sqlstate) then
        raise;
      end if;
    end;
  end if;
  -- Only where a row has raised: it is set aside, and the others move.
  foreach id in array due loop
    begin
      moved := moved + promote_these(array[id], at);
    exception when others then
      if is_passing(sqlstate) then
        raise;
      end if;
      moved := moved + set_aside(id, 'when its time had come', sqlstate, sqlerrm)::integer;
    end;
  end loop;
  perform unpark_again();
  perform look_again();
  return moved;
end $$;

create or replace function promote(max integer default 1000) returns integer language sql
security definer set search_path from current
as $$ select promote_v1(max) $$;

-- Seconds until there is something to promote or to sweep: 0 when there is already, null when there is nothing.
create or replace function next_due_v1() returns double precision language plpgsql stable
security definer set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  at timestamptz := clock();
  due timestamptz;
begin
  -- The first entry of the index, not min(): with old statistics that reads all that wait. And one probe for each queue
  -- that has running jobs.
  due := (select j.run_at from jobs j where j.state in ('created', 'retry') and j.accepted order by j.run_at limit 1);
  due := least(due, (
    with recursive q(queue) as (
      select min(j.queue) from jobs j where j.state = 'running'
      union all
      select (select min(j.queue) from jobs j where j.state = 'running' and j.queue > q.queue) from q where q.queue is not null)
    select min(l.ends) from q cross join lateral (
      select j.lease_expires_at as ends from jobs j
      where j.state = 'running' and j.queue = q.queue order by j.lease_expires_at limit 1) l));
  -- Older releases recorded jobs for infinity: such a one is never due.
  return case when due <= at then 0 when isfinite(due) then extract(epoch from due - at)::double precision end;
end $$;

create or replace function next_due() returns double precision language sql stable
security definer set search_path from current
as $$ select next_due_v1() $$;
