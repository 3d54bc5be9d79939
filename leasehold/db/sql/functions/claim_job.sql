-- Take one particular job.  queued -> running.  True: the caller owns it and must run it. False: another session has it, its
-- exclusive key is busy, a limit is exhausted, its queue is paused, or it is not runnable; the caller skips it.
-- Repeating a call with the same claim_id while the lease is alive returns true again: the first response may have been lost.
-- Waits for no row and no key: a session that has one of them locked counts as the winner. Waits at most a quarter of a second for the
-- row of a limit.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- Returns its payload; null: it was not taken. `wait`: whether to wait for limits; not where the caller has locked jobs.
create or replace function take_one(job_id uuid, worker text, token uuid, wait boolean, bounds claim_bounds) returns jsonb
language plpgsql as $$
declare
  target record;
begin
  select j.exclusive_key, j.kind, j.queue, j.state into target from jobs j where j.id = job_id;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', job_id));
  end if;
  -- Before the lock of the key: the end of the key's running job waits for it.
  if target.state <> 'queued' or bounds.pauses and exists (select from queues p where p.queue = target.queue) then
    return null;
  end if;
  if target.exclusive_key is not null and not pg_try_advisory_xact_lock(exclusive_lock(target.exclusive_key)) then
    return null;
  end if;
  if (select a.room < 1 from admit_lanes(array[lane_of(target.queue, target.kind)], 1, wait, bounds, array[target.exclusive_key]) a) then
    return null;
  end if;
  perform from jobs j
  where j.id = job_id and j.state is not distinct from 'queued' and j.run_at <= clock() and j.retry_count < j.max_attempts
  for no key update skip locked;
  if not found then
    return null;
  end if;
  if target.exclusive_key is not null then
    if cardinality(settle_exclusive(array[job_id], clock(), '{}')) = 0 then
      return null;
    end if;
    if bounds.key_limits and (select cardinality(a.admitted) = 0 from admit_in_rooms(array[job_id], array[job_id], '{}', '{}') a) then
      return null;
    end if;
  end if;
  return (select t.payload from take(array[job_id], array[target.kind], worker, token) t);
end $$;

create or replace function claim_job_v1(job_id uuid, worker text, claim_id uuid default null) returns boolean language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set lock_timeout = '1s' as $$
declare
  bounds claim_bounds;
begin
  perform check_worker(worker);
  bounds := bounds_in_force();
  return exists (select from jobs j where j.id = job_id and j.lease_owner = worker and j.claim_id = claim_job_v1.claim_id
      and j.lease_expires_at > clock())
    or take_one(job_id, worker, coalesce(claim_job_v1.claim_id, gen_random_uuid()), true, bounds) is not null;
exception when unique_violation or lock_not_available then
  return false;
end $$;
