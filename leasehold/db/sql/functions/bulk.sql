-- What operators do to many jobs at once, and to one that waits. Each call does a bounded amount: at most `max` jobs,
-- after looking at no more than `scan`. `capped`: there may be more that fit; call again. A job that somebody is writing
-- at that moment is left out: whoever holds many jobs must not wait for one, or two of them might wait for each other.
-- Each job goes through retry or cancel itself, so that what holds for one holds for many.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- At most `max` jobs in these states that fit, and whether there may be more.
create or replace function find_many(
  filter jsonb, allowed text[], max integer, scan integer, out ids uuid[], out capped boolean
) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  state text;
  wanted jsonb;
  here uuid[];
  looked integer;
begin
  perform check_filter(filter);
  if max is null or max not between 1 and 10000 or scan is null or scan not between 1 and 1000000 then
    perform refuse('LH003', 'invalid_argument', format('max %s, scan %s', max, scan),
      'take 1 to 10000 jobs and let 1 to 1000000 be looked at');
  end if;
  wanted := coalesce(states_of(filter), to_jsonb(allowed));
  if not wanted <@ to_jsonb(allowed) then
    perform refuse('LH003', 'invalid_argument', format('state %s', filter ->> 'state'),
      format('this is for jobs that are %s', array_to_string(allowed, ', ')));
  end if;
  ids := '{}';
  capped := false;
  foreach state in array allowed loop
    continue when not wanted ? state;
    filter := filter || jsonb_build_object('state', jsonb_build_array(state));
    if state in ('created', 'retry') then
      -- Straight from the jobs that wait for their time: the way by ids would walk over all of history.
      select coalesce(array_agg(t.id) filter (where t.fits and (not filter ? 'error_class'
               or last_error_class(t.id) is not distinct from filter ->> 'error_class')
               and (not filter ? 'payload' or payload_fits(filter, t.id))), '{}'), count(*)
      into here, looked
      from (select j.id, job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
            from jobs j where j.state in ('created', 'retry') and j.accepted order by j.run_at limit scan) t;
      if state = 'created' then
        -- Submitted and never accepted: among the latest, if at all.
        here := here || array(select f.id from find_jobs(filter, null, max, least(scan, 10000)) f
          join jobs j on j.id = f.id where not j.accepted);
      end if;
      capped := capped or looked >= scan;
    else
      select coalesce(array_agg(f.id) filter (where f.id is not null), '{}'), coalesce(bool_or(f.id is null), false)
      into here, capped from (select f.id from find_jobs(filter, null, max + 1 - cardinality(ids), scan) f
        union all select null where find_many.capped) f;
    end if;
    ids := ids || here;
    if cardinality(ids) > max then
      capped := true;
      ids := ids[:max];
      exit;
    end if;
  end loop;
end $$;

-- Dead jobs that fit get another chance, the latest ones first where there are more than `max`.
create or replace function retry_many_v1(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, scan integer default 50000,
  notify boolean default true
) returns table (matched integer, changed integer, capped boolean) language plpgsql
security definer set search_path from current
as $$
declare
  found_now record := find_many(filter, array['dead'], max, scan);
  mine uuid[];
  queues text[];
begin
  matched := cardinality(found_now.ids);
  capped := found_now.capped;
  changed := 0;
  if not dry_run and matched > 0 then
    mine := array(
      select j.id from jobs j
      where j.id = any(found_now.ids) and j.state is not distinct from 'dead' order by j.id for update skip locked);
    select count(*) filter (where retry_v1(t.id, false)) into changed from unnest(mine) t(id);
    queues := array(select distinct j.queue from jobs j where j.id = any(mine));
    capped := capped or changed < matched;
    if notify then
      perform announce(queues);
    end if;
  end if;
  return next;
end $$;

create or replace function retry_many(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, scan integer default 50000,
  notify boolean default true
) returns table (matched integer, changed integer, capped boolean) language sql
security definer set search_path from current
as $$ select * from retry_many_v1(filter, max, dry_run, scan, notify) $$;

-- Jobs that fit and have not ended are cancelled.
create or replace function cancel_many_v1(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, why text default null,
  scan integer default 50000
) returns table (matched integer, changed integer, capped boolean) language plpgsql
security definer set search_path from current
as $$
declare
  found_now record := find_many(filter, array['created', 'retry', 'queued', 'running'], max, scan);
  mine uuid[];
begin
  matched := cardinality(found_now.ids);
  capped := found_now.capped;
  changed := 0;
  if not dry_run and matched > 0 then
    -- In a statement of its own: a row that the same statement has changed, its key's end having put it back, is passed.
    mine := array(
      select j.id from jobs j
      where j.id = any(found_now.ids) and j.state is distinct from 'success' and j.state is distinct from 'dead'
      order by j.id for no key update skip locked);
    select count(*) filter (where cancel_v1(t.id, why)) into changed from unnest(mine) t(id);
    capped := capped or changed < matched;
  end if;
  return next;
end $$;

create or replace function cancel_many(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, why text default null,
  scan integer default 50000
) returns table (matched integer, changed integer, capped boolean) language sql
security definer set search_path from current
as $$ select * from cancel_many_v1(filter, max, dry_run, why, scan) $$;

-- A job that waits for its time, or for the end of its backoff, waits no longer.  created, retry -> queued.
-- False: it does not wait, or was never accepted; nothing was changed.
create or replace function run_now_v1(id uuid, notify boolean default true) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  queue_name text;
begin
  update jobs j set state = 'queued', run_at = at, updated_at = at
  where j.id = run_now_v1.id and (j.state is not distinct from 'created' or j.state is not distinct from 'retry')
    and j.accepted and j.retry_count < j.max_attempts
  returning j.queue into queue_name;
  if found then
    if notify then
      perform announce(array[queue_name]);
    end if;
    return true;
  end if;
  if not exists (select from jobs j where j.id = run_now_v1.id) then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', run_now_v1.id));
  end if;
  return false;
end $$;

create or replace function run_now(id uuid, notify boolean default true) returns boolean language sql
security definer set search_path from current
as $$ select run_now_v1(id, notify) $$;
