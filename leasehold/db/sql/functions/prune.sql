-- Delete finished jobs with their attempts, logs and events, and the rows of workers that are gone. Only operators call
-- it. A job that has not finished is never touched. The idempotency key of a pruned job can be used again, for a new job.
-- Errors: LH003 invalid_argument.

create or replace function check_prune(older_than interval, states text[], max integer) returns void language plpgsql as $$
begin
  perform require(older_than between interval '0' and interval '1000 years', format('older_than %s', coalesce(older_than::text, 'null')),
    'say how long ago a job must have finished, at most 1000 years');
  perform require(cardinality(states) > 0 and states <@ array['success', 'dead'], format('states %s', coalesce(states::text, 'null')),
    'only finished jobs are pruned: success, dead');
  perform require(max between 1 and 10000, format('max %s', coalesce(max::text, 'null')), 'prune 1 to 10000 at a time');
end $$;

-- Up to `max` jobs that finished in these states longer ago than that, those that finished first; call again until it returns
-- nothing. Returns how many of each kind and state were removed, or would be. `capped`: there may be more. A locked job is skipped.
create or replace function prune_v1(
  older_than interval, states text[] default '{success}', max integer default 1000, dry_run boolean default false
) returns table (kind text, state job_state, jobs bigint, capped boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan as $$
declare
  before timestamptz;
  found_now uuid[];
  mine uuid[];
  kinds text[];
  ended job_state[];
begin
  perform check_prune(older_than, states, prune_v1.max);
  before := clock() - prune_v1.older_than;
  select array_agg(t.id) into found_now
  from unnest(states) s cross join lateral (
    select j.id from jobs j
    where j.state in ('success', 'dead') and j.state = s::job_state and j.finished_at < before
    order by j.finished_at limit prune_v1.max + 1) t;
  capped := coalesce(cardinality(found_now), 0) > prune_v1.max;
  if dry_run then
    mine := found_now[:prune_v1.max];
  else
    -- What was found may have been retried since: the state is checked again under the lock.
    mine := array(
      select j.id from jobs j
      where j.id = any(found_now[:prune_v1.max]) and (j.state is not distinct from 'success' or j.state is not distinct from 'dead')
        and j.finished_at < before
      order by j.id for update skip locked);
    capped := capped or cardinality(mine) < coalesce(cardinality(found_now), 0);
  end if;
  select array_agg(j.kind), array_agg(j.state) into kinds, ended from jobs j where j.id = any(mine);
  if not dry_run then
    delete from jobs j where j.id = any(mine);
    delete from attempts a where a.job_id = any(mine);
    delete from job_logs l where l.job_id = any(mine);
    delete from events e where e.job_id = any(mine);
  end if;
  return query
    select t.kind, t.state, count(*), prune_v1.capped from unnest(kinds, ended) t(kind, state)
    group by t.kind, t.state order by t.kind, t.state;
end $$;

-- Delete workers that stopped, or were last seen, longer ago than that and hold no lease. Returns their names.
create or replace function prune_workers_v1(
  older_than interval default '7 days', max integer default 1000, dry_run boolean default false
) returns setof text language plpgsql as $$
declare
  before timestamptz;
  gone text[];
begin
  perform check_prune(older_than, array['dead'], prune_workers_v1.max);
  before := clock() - prune_workers_v1.older_than;
  perform require(older_than >= interval '1 minute', format('older_than %s: a worker that was seen within the last minute may be alive',
    older_than), 'give one minute or more');
  gone := array(
    select w.id from workers w
    where w.seen_at < before and w.id <> all(array(select distinct j.lease_owner from jobs j where j.state = 'running'))
    order by w.id limit prune_workers_v1.max for update skip locked);
  if not dry_run then
    delete from workers w where w.id = any(gone);
  end if;
  return query select unnest(gone);
end $$;
