-- The owner reports success.  running -> success.  Gives the ids that are done.
-- Guarded by owns(): the lease must be this attempt's and must not have expired. Repeated with the right token it succeeds
-- again, whenever that is: the answer may have been lost. Any id that is missing has lost its lease and nothing was
-- written for it. A row that is locked for longer than a quarter of a second, or that cannot be written, fails the call:
-- report_each then finds out which.
-- Errors: LH003 invalid_argument, 55P03 lock_not_available.

create or replace function check_results(ids uuid[], results jsonb[]) returns void language plpgsql
as $$
declare
  bad record;
begin
  select t.id, result_problem(t.result) as problem into bad from unnest(ids, results) t(id, result)
  where result_problem(t.result) is not null limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('job %s: %s', bad.id, bad.problem), 'return less, or store it elsewhere');
  end if;
end $$;

create or replace function complete_v1(
  worker text, ids uuid[], attempts integer[], results jsonb[] default null, claim_ids uuid[] default null
) returns setof uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  done uuid[];
  keys text[];
begin
  if results is not null then
    perform check_results(ids, results);
  end if;
  with finished as (
    update jobs j
    set state = 'success', result = t.result, reason_detail = null, finished_at = at, finished_by = worker, updated_at = at,
        lease_owner = null, lease_expires_at = null, progress = case when j.progress is not null then 1 end
    from (select * from unnest(ids, attempts, results, claim_ids) t(id, attempt, result, claim_id) order by t.id) t
    where j.id = t.id and owns(j, worker, t.attempt, t.claim_id, at)
    returning j.id, j.exclusive_key)
  select array_agg(f.id), array_agg(f.exclusive_key) filter (where f.exclusive_key is not null)
  into done, keys from finished f;
  if keys is not null then
    perform unpark_ended(keys, true);
  end if;
  perform announce_room(done);
  if coalesce(cardinality(done), 0) < cardinality(ids) then
    done := array(
      select j.id from unnest(ids, attempts, claim_ids) t(id, attempt, claim_id) join jobs j on j.id = t.id
      where j.attempt = t.attempt and j.state is not distinct from 'success' and j.finished_by = worker
        and (t.claim_id is null or j.claim_id = t.claim_id));
  end if;
  return query select unnest(done);
end $$;

create or replace function complete(
  worker text, ids uuid[], attempts integer[], results jsonb[] default null, claim_ids uuid[] default null
) returns setof uuid language sql
security definer set search_path from current
as $$ select complete_v1(worker, ids, attempts, results, claim_ids) $$;
