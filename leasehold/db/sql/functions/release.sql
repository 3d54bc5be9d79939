-- The owner returns jobs to the queue, unfinished, at shutdown.  running -> queued.  No failure is counted.
-- Returns the ids that were released. Guarded as complete is; repeated, it finds nothing to release.

create or replace function release_v1(worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null)
returns setof uuid language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms' as $$
declare
  at timestamptz := clock();
  done uuid[];
  keys text[];
  queues text[];
begin
  with released as (
    update jobs j
    set state = 'queued', updated_at = at, lease_owner = null, lease_expires_at = null, is_current = false
    from (select * from unnest(ids, attempts, claim_ids) t(id, attempt, claim_id) order by t.id) t
    where j.id = t.id and owns(j, worker, t.attempt, t.claim_id, at)
    returning j.id, j.attempt, j.claimed_at, j.exclusive_key, j.queue
  ), recorded as (
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at)
    select r.id, r.attempt, worker, 'released', r.claimed_at, at from released r)
  select array_agg(r.id), array_agg(distinct r.exclusive_key) filter (where r.exclusive_key is not null),
         array_agg(distinct r.queue)
  into done, keys, queues from released r;
  perform unpark_ended(keys, true);
  perform announce(queues);
  return query select unnest(done);
end $$;
