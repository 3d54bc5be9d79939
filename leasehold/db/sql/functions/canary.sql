-- Canary retry: the dead jobs of one kind and error class are retried in stages: ten, then a tenth of them, then all. Each stage
-- waits for the outcomes of the one before; too many failures stop it. Any worker's upkeep takes the next step, in one transaction.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- Whether any is running. Called in every round of upkeep.
create or replace function canaries_run() returns boolean language plpgsql stable set enable_seqscan = off as $$
begin
  return exists (select from canaries c where c.state = 'running');
end $$;

create or replace function canary_filter(kind text, error_class text, queues text[]) returns jsonb
language sql immutable parallel safe
return jsonb_build_object('state', jsonb_build_array('dead'), 'kind', kind, 'error_class', error_class)
  || case when queues is null then '{}' else jsonb_build_object('queues', queues) end;

-- Start one. Its jobs are the dead jobs that the group has now, those that died last first. Where one is running for the
-- group already, that one's id is returned. An error class of which only the last part was given becomes the whole one:
-- otherwise a second canary could run for the group beside the first.
create or replace function canary_start_v1(
  kind text, error_class text default null, by text default null, queues text[] default null, notify boolean default true
) returns uuid language plpgsql set lock_timeout = '3s' as $$
#variable_conflict use_variable
declare
  at timestamptz := clock();
  made uuid := uuidv7();
  number bigint;
  cut boolean;
  classes text[];
begin
  perform check_names('kind', array[kind]), check_names('queues', queues);
  select count(f.id), coalesce(bool_or(f.id is null), false) or count(f.id) > 10000,
    array_agg(distinct last_error_class(f.id)) filter (where f.id is not null and error_class is not null)
  into number, cut, classes
  from find_jobs(canary_filter(kind, error_class, queues), null, 10001, 20000) f;
  if error_class <> all(classes) then
    perform require(cardinality(classes) = 1, format('error class %L is one of %s', left(error_class, 100),
      left(array_to_string(classes, ', '), 300)), 'give one of them whole');
    error_class := classes[1];
  end if;
  if number > 0 then
    insert into canaries (id, kind, error_class, queues, state, total, total_capped, place, started_by, created_at, updated_at)
    values (made, kind, error_class, queues, 'running', least(number, 10000), cut,
      jsonb_build_array('finished', at, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), left(by, 200), at, at)
    on conflict do nothing;
    if found then
      perform canary_retry(made, 10, notify);
      return made;
    end if;
  end if;
  select c.id into made from canaries c
  where c.state = 'running' and c.kind = kind and (coalesce(c.error_class, '') = coalesce(error_class, '')
    or right(c.error_class, char_length(error_class) + 1) = '.' || error_class)
  order by c.id limit 1;
  if made is null and number = 0 then
    perform refuse('LH002', 'job_unknown',
      format('no dead job of kind %L has the error class %L%s', left(kind, 100), left(error_class, 100),
        case when cut then ', among the latest 20000 dead ones' else '' end),
      'errors() lists the groups; only dead jobs are retried');
  elsif made is null then
    perform refuse('LH003', 'invalid_argument', 'a canary of this group ended at this moment', 'canary_list() shows it; start another');
  end if;
  return made;
end $$;

-- Retry the canary's next jobs, at most `wanted`; its row is locked. A job that is locked, or dead no longer, is skipped.
create or replace function canary_retry(canary uuid, wanted integer, notify boolean) returns void language plpgsql as $$
#variable_conflict use_variable
declare
  at timestamptz := clock();
  it canaries;
  found_ids uuid[];
  until jsonb;
  mine uuid[];
begin
  select * into it from canaries c where c.id = canary;
  select array_agg(f.id), (array_agg(f.place))[count(*)] into found_ids, until
  from find_jobs(canary_filter(it.kind, it.error_class, it.queues), it.place, wanted, 20000) f;
  found_ids := array(select j.id from jobs j where j.id = any(found_ids) and j.state is not distinct from 'dead'
    order by j.id for no key update skip locked);
  mine := array(select t.id from unnest(found_ids) t(id) where retry_v1(t.id, false));
  insert into canary_jobs (canary, job_id, stage, retried_at)
  select canary, r, it.stage, at from unnest(mine) r on conflict do nothing;
  update canaries c set place = coalesce(until, c.place), retried = c.retried + cardinality(mine),
    stage_retried = c.stage_retried + cardinality(mine), exhausted = until is null, updated_at = at
  where c.id = canary;
  perform announce(array(select distinct j.queue from jobs j where j.id = any(mine))) where notify;
end $$;

-- Record the outcomes of the jobs that were retried. A job that failed once counts as failed, even if it succeeds later.
create or replace function canary_settle(canary uuid, at timestamptz) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_variable
begin
  with settled as (
    update canary_jobs o set outcome = s.outcome
    from (
      select o.job_id, case when j.id is null then 'gone'
               when j.state = 'success' then 'success'
               when j.state = 'dead' and j.reason = 'cancelled' then 'cancelled'
               when j.state = 'dead' or j.retry_count > 0 then 'failed' end as outcome
      from canary_jobs o left join jobs j on j.id = o.job_id
      where o.canary = canary and o.outcome is null) s
    where o.canary = canary and o.job_id = s.job_id and s.outcome is not null and o.outcome is null
    returning s.outcome
  ), counted as (
    select count(*) filter (where s.outcome = 'success') as succeeded, count(*) filter (where s.outcome = 'failed') as failed,
      count(*) filter (where s.outcome in ('cancelled', 'gone')) as other
    from settled s)
  update canaries c set succeeded = c.succeeded + n.succeeded, failed = c.failed + n.failed, other = c.other + n.other,
    stage_succeeded = c.stage_succeeded + n.succeeded, stage_failed = c.stage_failed + n.failed, updated_at = at
  from counted n where c.id = canary and n.succeeded + n.failed + n.other > 0;
end $$;

-- Why the present stage is reason to stop, or null. Of the first ten, more than two; of any stage's finished jobs, once
-- ten have finished or the stage is over, more than a fifth.
create or replace function canary_alarm(stage integer, well integer, ill integer, over boolean) returns text
language sql immutable parallel safe
return case
  when ill > 2 and stage = 1 or ill * 4 > well and (well + ill >= 10 or over)
    then format('%s of %s retried jobs failed again in stage %s', ill, well + ill, stage) end;

-- One step of one canary, whose row the caller has locked.
create or replace function canary_advance(canary uuid, max integer) returns void language plpgsql as $$
declare
  at timestamptz := clock();
  it canaries;
  size integer;
  pending integer;
  alarm text;
begin
  perform canary_settle(canary, at);
  select * into it from canaries c where c.id = canary;
  size := case it.stage when 1 then 10 when 2 then greatest(10, it.total / 10) end;  -- null: all that are left
  pending := it.retried - it.succeeded - it.failed - it.other;
  alarm := canary_alarm(it.stage, it.stage_succeeded, it.stage_failed, pending = 0 and (it.exhausted or it.stage_retried >= size));
  if alarm is not null then
    update canaries c set state = 'stopped', reason = alarm, finished_at = at, updated_at = at where c.id = canary;
  elsif it.exhausted then
    update canaries c set state = 'done', finished_at = at, updated_at = at where c.id = canary and pending = 0;
  elsif it.stage_retried >= size then
    update canaries c set stage = c.stage + 1, stage_retried = 0, stage_succeeded = 0, stage_failed = 0, updated_at = at
    where c.id = canary and pending = 0;
  elsif pending < max then
    -- The last stage retries all that are left, a limited number at a time, so that a stop still has an effect.
    perform canary_retry(canary, least(size - it.stage_retried, max - pending), true);
  end if;
end $$;

-- Take the next step of each running canary that no other session is stepping. Returns how many are running.
create or replace function canary_step(max integer default 1000) returns integer language plpgsql as $$
declare
  canary uuid;
begin
  for canary in select c.id from canaries c where c.state = 'running' order by c.id for update skip locked loop
    perform canary_advance(canary, max);
  end loop;
  return (select count(*) from canaries c where c.state = 'running');
end $$;

-- Stop it: no more jobs are retried; those that were, run. False: it had ended already, or there is none.
create or replace function canary_stop_v1(id uuid, by text default null) returns boolean language plpgsql
set lock_timeout = '3s' as $$
#variable_conflict use_variable
declare
  at timestamptz := clock();
begin
  update canaries c
  set state = 'stopped', reason = 'stopped' || coalesce(' by ' || left(by, 200), ''), finished_at = at, updated_at = at
  where c.id = id and c.state = 'running';
  return found;
end $$;

create or replace function canary_list_v1(max integer default 50, id uuid default null) returns setof canaries language sql stable
as $$
  select * from canaries c where canary_list_v1.id is null or c.id = canary_list_v1.id
  order by c.id desc limit least(greatest(canary_list_v1.max, 1), 1000)
$$;
