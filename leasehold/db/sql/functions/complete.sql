-- The owner reports success.  running -> success.  Returns the ids that have succeeded.
-- Guarded by owns(): the lease must be this attempt's and must not have expired. Repeated with the same token it succeeds again, at any
-- time: the first response may have been lost. An id that is missing in the result has lost its lease, and nothing was written for it.
-- A row that is locked for longer than a quarter of a second, or that cannot be written, fails the call: report_each then finds it.
-- Errors: LH003 invalid_argument, 55P03 lock_not_available.

-- Mark these jobs as success. `keys` are the exclusive keys that are free now.
create or replace function succeed(
  worker text, ids uuid[], attempts integer[], results jsonb[], claim_ids uuid[], out done uuid[], out keys text[]
) language plpgsql as $$
declare
  at timestamptz := clock();
begin
  if results is not null then
    perform require(false, format('job %s: %s', t.id, result_problem(t.result)), 'return less, or store it elsewhere')
    from unnest(ids, results) t(id, result) where result_problem(t.result) is not null limit 1;
  end if;
  with finished as (
    update jobs j
    set state = 'success', result = t.result, reason_detail = null, finished_at = at, finished_by = worker, updated_at = at,
        lease_owner = null, lease_expires_at = null, is_current = false, progress = case when j.progress is not null then 1 end
    from (select * from unnest(ids, attempts, results, claim_ids) t(id, attempt, result, claim_id) order by t.id) t
    where j.id = t.id and owns(j, worker, t.attempt, t.claim_id, at)
    returning j.id, j.exclusive_key)
  select array_agg(f.id), array_agg(f.exclusive_key) filter (where f.exclusive_key is not null) into done, keys from finished f;
  perform announce_room(done) where done is not null and exists (select from limits);
  if coalesce(cardinality(done), 0) < cardinality(ids) then
    done := array(
      select j.id from unnest(ids, attempts, claim_ids) t(id, attempt, claim_id) join jobs j on j.id = t.id
      where j.attempt = t.attempt and j.state is not distinct from 'success' and j.finished_by = worker
        and (t.claim_id is null or j.claim_id = t.claim_id));
  end if;
end $$;

create or replace function complete_v1(
  worker text, ids uuid[], attempts integer[], results jsonb[] default null, claim_ids uuid[] default null
) returns setof uuid language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms' as $$
declare
  done uuid[];
  keys text[];
begin
  select s.done, s.keys into done, keys from succeed(worker, ids, attempts, results, claim_ids) s;
  if keys is not null then
    perform unpark_ended(keys, true);
  end if;
  return query select unnest(done);
end $$;

-- A task completes its own job inside a transaction of its own connection. Returns whether it counts. For roles that are not workers:
-- with the id of the claim, which only the worker and its task know, it needs no more privileges than enqueueing does.
create or replace function complete_in_v1(worker text, id uuid, attempt integer, claim_id uuid, result jsonb default null)
returns boolean language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms' as $$
declare
  done uuid[];
  keys text[];
begin
  perform require(claim_id is not null, 'claim_id is null', 'the claim that took the job has it');
  select s.done, s.keys into done, keys from succeed(worker, array[id], array[attempt], array[result], array[claim_id]) s;
  perform unpark_ended(keys, patient => true, brief => false);
  return done <> '{}';
end $$;
