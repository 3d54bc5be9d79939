-- Take one particular job.  queued -> running.  True: the caller owns it and must run it. False: somebody
-- else won, its exclusive key is busy, a limit is exhausted, its queue is paused, or it is not eligible; skip it silently.
-- Repeating a call with the same claim_id while the lease lives gives true again: the answer may have been lost.
-- Follows ADR-015: retire the key's previous current job, then take the target; the unique index decides.
-- Waits for no row and no key: a session that has one of them locked counts as the winner. For the row of a limit it waits a
-- quarter of a second at most.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- `wait`: whether to wait for limits; not where the caller has locked jobs. The rest is what holds_exist gave.
create or replace function take_one(
  job_id uuid, worker text, token uuid, wait boolean, of_lanes boolean, of_keys boolean, of_queues boolean
) returns boolean language plpgsql
as $$
declare
  at timestamptz;
  target record;
  settled boolean;
begin
  select j.exclusive_key, j.kind, j.queue, j.state, j.lease_owner, j.claim_id, j.lease_expires_at
  into target from jobs j where j.id = job_id;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', job_id));
  end if;
  if target.claim_id = token and target.lease_owner = worker then
    return target.lease_expires_at > clock();
  end if;
  -- Before the lock of the key: the end of the key's running job waits for it.
  if target.state <> 'queued' or of_queues and exists (select from queues p where p.queue = target.queue) then
    return false;
  end if;
  if target.exclusive_key is not null and not pg_try_advisory_xact_lock(exclusive_lock(target.exclusive_key)) then
    return false;
  end if;
  if (of_lanes or of_keys) and (
    select a.room < 1 from admit_lanes(
      jsonb_build_array(jsonb_build_object('queue', target.queue, 'kind', target.kind)), 1, wait,
      of_keys and target.exclusive_key is not null, array[target.exclusive_key]) a)
  then
    return false;
  end if;
  perform from jobs j
  where j.id = job_id and j.state is not distinct from 'queued' and j.run_at <= clock() and j.retry_count < j.max_attempts
  for update skip locked;
  if not found then
    return false;
  end if;
  at := clock();
  settled := job_id = any(settle_exclusive(array[job_id], at, '{}'));
  if settled and of_keys and target.exclusive_key is not null then
    settled := (select job_id = any(a.admitted) from admit_keys(array[job_id], array[job_id], '{}') a);
  end if;
  if not settled then
    return false;
  end if;
  at := clock();
  update jobs j
  set state = 'running', attempt = j.attempt + 1, claim_id = token, claimed_at = at, updated_at = at,
      lease_owner = worker, lease_expires_at = at + lease_seconds_v1(target.kind) * interval '1 second',
      parked = false, is_current = j.exclusive_key is not null, progress = null, progress_note = null
  where j.id = job_id and j.state is not distinct from 'queued';
  return found;
end $$;

create or replace function claim_job_v1(job_id uuid, worker text, claim_id uuid default null) returns boolean
language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  limited record;
begin
  perform check_worker(worker);
  limited := holds_exist();
  return take_one(job_id, worker, coalesce(claim_job_v1.claim_id, gen_random_uuid()), true, limited.of_lanes, limited.of_keys,
    limited.of_queues);
exception when unique_violation or lock_not_available then
  return false;
end $$;

create or replace function claim_job(job_id uuid, worker text, claim_id uuid default null) returns boolean language sql
security definer set search_path from current
as $$ select claim_job_v1(job_id, worker, claim_id) $$;
