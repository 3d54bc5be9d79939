-- Canary retry: the dead jobs of one kind and error class get another chance, ten first, then a tenth of them, then all.
-- Each stage waits for what came of the one before, and too many that fail again stop it. There is no leader: any
-- worker's upkeep takes the next step, whoever dies in one leaves nothing of it.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- Whether any is running. Stands in every round of upkeep.
create or replace function canaries_run() returns boolean language plpgsql stable
set enable_seqscan = off
as $$
begin
  return exists (select from canaries c where c.state = 'running');
end $$;

-- How many jobs a stage retries; null: all that are left.
create or replace function canary_size(stage integer, total integer) returns integer language sql immutable parallel safe
return case stage when 1 then 10 when 2 then greatest(10, total / 10) end;

create or replace function canary_filter(kind text, error_class text, queues text[]) returns jsonb
language sql immutable parallel safe
return jsonb_build_object('state', jsonb_build_array('dead'), 'kind', kind, 'error_class', error_class)
  || case when queues is null then '{}' else jsonb_build_object('queues', queues) end;

-- Start one, by a person. The dead jobs of the group so far are its jobs, those that died last first; one that dies
-- later is not. Where one is running for the group already, it is that one's id that comes back.
create or replace function canary_start_v1(
  kind text, error_class text default null, by text default null, queues text[] default null, notify boolean default true
) returns uuid language plpgsql
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  made uuid := uuidv7();
  number bigint;
  cut boolean;
begin
  if canary_start_v1.kind is null or canary_start_v1.kind = '' then
    perform refuse('LH003', 'invalid_argument', 'kind is empty', 'name the kind of the jobs');
  end if;
  perform check_names('kind', array[canary_start_v1.kind]);
  perform check_names('queues', canary_start_v1.queues);
  select count(f.id), coalesce(bool_or(f.id is null), false) or count(f.id) > 10000 into number, cut
  from find_jobs(canary_filter(canary_start_v1.kind, canary_start_v1.error_class, canary_start_v1.queues), null, 10001, 20000) f;
  if number = 0 and not exists (select from canaries c where c.state = 'running' and c.kind = canary_start_v1.kind
       and coalesce(c.error_class, '') = coalesce(canary_start_v1.error_class, '')) then
    perform refuse('LH002', 'job_unknown',
      format('no dead job of kind %L has the error class %L%s', left(canary_start_v1.kind, 100), left(canary_start_v1.error_class, 100),
        case when cut then ', among the latest 20000 dead ones' else '' end),
      'errors() lists the groups; only dead jobs are retried');
  end if;
  if number > 0 then
    insert into canaries (id, kind, error_class, queues, state, total, total_capped, place, started_by, created_at, updated_at)
    values (made, canary_start_v1.kind, canary_start_v1.error_class, canary_start_v1.queues, 'running', least(number, 10000), cut,
      jsonb_build_array('finished', at, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), left(canary_start_v1.by, 200), at, at)
    on conflict do nothing;
    if found then
      perform canary_retry(made, 10, notify);
      return made;
    end if;
  end if;
  select c.id into made from canaries c where c.state = 'running' and c.kind = canary_start_v1.kind
    and coalesce(c.error_class, '') = coalesce(canary_start_v1.error_class, '');
  if made is null then
    perform refuse('LH003', 'invalid_argument', 'a canary of this group ended at this moment', 'look at it, then start another');
  end if;
  return made;
end $$;

create or replace function canary_start(
  kind text, error_class text default null, by text default null, queues text[] default null, notify boolean default true
) returns uuid language sql
security definer set search_path from current
as $$ select canary_start_v1(kind, error_class, by, queues, notify) $$;

-- Retry the canary's next jobs, at most `wanted`; its row is locked. One that somebody is writing at this moment, or that
-- is dead no longer, is left to whoever did that.
create or replace function canary_retry(canary uuid, wanted integer, notify boolean) returns integer language plpgsql
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  it canaries;
  found_ids uuid[];
  cut boolean;
  until jsonb;
  mine uuid[];
  names text[];
begin
  select * into it from canaries c where c.id = canary_retry.canary;
  select coalesce(array_agg(f.id) filter (where f.id is not null), '{}'), coalesce(bool_or(f.id is null), false),
         (array_agg(f.place))[count(*)]
  into found_ids, cut, until
  from find_jobs(canary_filter(it.kind, it.error_class, it.queues), it.place, wanted, 20000) f;
  found_ids := array(select j.id from jobs j where j.id = any(found_ids) and j.state is not distinct from 'dead'
    order by j.id for update skip locked);
  mine := array(select t.id from unnest(found_ids) t(id) where retry_v1(t.id, false));
  insert into canary_jobs (canary, job_id, stage, retried_at)
  select canary_retry.canary, r, it.stage, at from unnest(mine) r on conflict do nothing;
  update canaries c set place = coalesce(until, c.place), retried = c.retried + cardinality(mine),
    here = c.here + cardinality(mine), exhausted = until is null, updated_at = at
  where c.id = canary_retry.canary;
  if notify and cardinality(mine) > 0 then
    names := array(select distinct j.queue from jobs j where j.id = any(mine));
    perform announce(names);
  end if;
  return cardinality(mine);
end $$;

-- Note what has become of the jobs that were retried. One that failed once is not waited for: it has failed again.
create or replace function canary_settle(canary uuid, at timestamptz) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  with settled as (
    update canary_jobs o set outcome = s.outcome
    from (
      select o.job_id, case when j.id is null then 'gone'
               when j.state = 'success' then 'success'
               when j.state = 'dead' and j.reason = 'cancelled' then 'cancelled'
               when j.state = 'dead' or j.retry_count > 0 then 'failed' end as outcome
      from canary_jobs o left join jobs j on j.id = o.job_id
      where o.canary = canary_settle.canary and o.outcome is null) s
    where o.canary = canary_settle.canary and o.job_id = s.job_id and s.outcome is not null and o.outcome is null
    returning s.outcome
  ), counted as (
    select count(*) filter (where s.outcome = 'success') as succeeded, count(*) filter (where s.outcome = 'failed') as failed,
      count(*) filter (where s.outcome in ('cancelled', 'gone')) as other
    from settled s)
  update canaries c set succeeded = c.succeeded + n.succeeded, failed = c.failed + n.failed, other = c.other + n.other,
    here_well = c.here_well + n.succeeded, here_ill = c.here_ill + n.failed, updated_at = at
  from counted n where c.id = canary_settle.canary and n.succeeded + n.failed + n.other > 0;
end $$;

-- Why the present stage is reason to stop, or null. Of the first ten, more than two; of any stage's finished jobs, once
-- ten have finished or the stage is over, more than a fifth.
create or replace function canary_alarm(stage integer, well integer, ill integer, over boolean) returns text
language sql immutable parallel safe
return case
  when ill > 2 and stage = 1 or ill * 4 > well and (well + ill >= 10 or over)
    then format('%s of %s retried jobs failed again in stage %s', ill, well + ill, stage) end;

-- One step of one canary, whose row the caller has locked.
create or replace function canary_advance(canary uuid, max integer) returns void language plpgsql
as $$
declare
  at timestamptz := clock();
  it canaries;
  size integer;
  pending integer;
  alarm text;
begin
  perform canary_settle(canary, at);
  select * into it from canaries c where c.id = canary;
  size := canary_size(it.stage, it.total);
  pending := it.retried - it.succeeded - it.failed - it.other;
  alarm := canary_alarm(it.stage, it.here_well, it.here_ill, pending = 0 and (it.exhausted or it.here >= size));
  if alarm is not null then
    update canaries c set state = 'stopped', reason = alarm, finished_at = at, updated_at = at where c.id = canary;
  elsif it.exhausted then
    update canaries c set state = 'done', finished_at = at, updated_at = at where c.id = canary and pending = 0;
  elsif it.here >= size then
    update canaries c set stage = c.stage + 1, here = 0, here_well = 0, here_ill = 0, updated_at = at
    where c.id = canary and pending = 0;
  elsif pending < max then
    -- The last stage is all the rest, and yet no more at once than a stop could still hold back.
    perform canary_retry(canary, least(size - it.here, max - pending), true);
  end if;
end $$;

-- Take the next step of each running canary that nobody else is at. Gives how many are running.
create or replace function canary_step_v1(max integer default 1000) returns integer language plpgsql
security definer set search_path from current
as $$
declare
  canary uuid;
begin
  if max is null or max not between 1 and 10000 then
    perform refuse('LH003', 'invalid_argument', format('max %s', max), 'let 1 to 10000 jobs be on their way at once');
  end if;
  for canary in select c.id from canaries c where c.state = 'running' order by c.id for update skip locked loop
    perform canary_advance(canary, max);
  end loop;
  return (select count(*) from canaries c where c.state = 'running');
end $$;

create or replace function canary_step(max integer default 1000) returns integer language sql
security definer set search_path from current
as $$ select canary_step_v1(max) $$;

-- A person stops it: no more jobs are retried; those that were, run. False: it had ended already, or there is none.
create or replace function canary_stop_v1(id uuid, by text default null) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  update canaries c
  set state = 'stopped', reason = 'stopped' || coalesce(' by ' || left(canary_stop_v1.by, 200), ''), finished_at = at, updated_at = at
  where c.id = canary_stop_v1.id and c.state = 'running';
  return found;
end $$;

create or replace function canary_stop(id uuid, by text default null) returns boolean language sql
security definer set search_path from current
as $$ select canary_stop_v1(id, by) $$;

-- The latest canaries first; or one.
create or replace function canary_list_v1(max integer default 50, id uuid default null) returns table (
  id uuid, kind text, error_class text, queues text[], state text, stage smallint, total integer, total_capped boolean,
  retried integer, succeeded integer, failed integer, pending integer, reason text, started_by text,
  created_at timestamptz, updated_at timestamptz, finished_at timestamptz
) language sql stable
security definer set search_path from current
as $$
  select c.id, c.kind, c.error_class, c.queues, c.state, c.stage, c.total, c.total_capped, c.retried, c.succeeded, c.failed,
    c.retried - c.succeeded - c.failed - c.other, c.reason, c.started_by, c.created_at, c.updated_at, c.finished_at
  from canaries c where canary_list_v1.id is null or c.id = canary_list_v1.id
  order by c.id desc limit least(greatest(canary_list_v1.max, 1), 1000)
$$;

create or replace function canary_list(max integer default 50, id uuid default null) returns table (
  id uuid, kind text, error_class text, queues text[], state text, stage smallint, total integer, total_capped boolean,
  retried integer, succeeded integer, failed integer, pending integer, reason text, started_by text,
  created_at timestamptz, updated_at timestamptz, finished_at timestamptz
) language sql stable
security definer set search_path from current
as $$ select * from canary_list_v1(max, id) $$;
