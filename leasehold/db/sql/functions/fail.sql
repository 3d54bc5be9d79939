-- The owner reports that an attempt did not succeed.
--   failed     running -> retry (after a backoff), or dead when it was fatal or the last failure of the budget
--   snoozed    running -> retry; no failure is counted
--   cancelled  running -> dead, reason cancelled
-- Each writes a row to attempts. Guarded and repeatable as complete is; report_each finds the one that raised.
-- Errors: LH003 invalid_argument, 55P03 lock_not_available.

-- Exponential backoff, for callers that pass no delay: 4 s after the first failure, twice as long after each further one, an hour at
-- most; each wait ends at random in its last fifth, so that failed jobs do not return together. The same curve as
-- leasehold.retry.ExponentialBackoff(). The random part comes from a hash: the UPDATE calls no volatile function.
create or replace function backoff_seconds(id uuid, failures integer, seed bigint) returns double precision
language sql immutable parallel safe
return (0.8 + 0.2 * (hashtextextended(id::text, seed) & 1048575) / 1048576.0) * least(3600, 4 * power(2, least(failures - 1, 20)));

-- The reports as rows. Stable and plain, so that it is inlined.
create or replace function failures_of(failures jsonb) returns table (
  id uuid, attempt integer, claim_id uuid, outcome text, retry_after double precision, fatal boolean, error jsonb
) language sql stable as $$
  select f.id, f.attempt, f.claim_id, coalesce(f.outcome, 'failed'), f.retry_after, coalesce(f.fatal, false), f.error
  from jsonb_to_recordset(failures) as f(id uuid, attempt integer, claim_id uuid, outcome text,
    retry_after double precision, fatal boolean, error jsonb)
$$;

create or replace function check_failures(failures jsonb) returns void language plpgsql as $$
begin
  perform require(jsonb_typeof(failures) = 'array', 'failures is not a JSON array', 'send an array of objects');
  perform require(false, format('job %s: outcome %L with retry_after %s', f.id, f.outcome, coalesce(f.retry_after::text, 'null')),
    'outcome is failed, snoozed or cancelled; retry_after is 0 to 315360000 seconds, and a snooze needs it')
  from failures_of(failures) f
  where f.outcome not in ('failed', 'snoozed', 'cancelled') or f.retry_after not between 0 and 315360000
     or (f.outcome = 'snoozed' and f.retry_after is null);
end $$;

-- failures: [{"id", "attempt", "claim_id", "outcome": "failed" | "snoozed" | "cancelled", "retry_after": seconds,
--             "fatal": boolean, "error": {"class", "message", "traceback"}}]
-- Returns id and present state of each job whose report counts; a job that is missing has lost its lease.
create or replace function fail_many_v1(worker text, failures jsonb) returns table (id uuid, state job_state) language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms' as $$
declare
  at timestamptz := clock();
  seed bigint := floor(random() * 9007199254740992);
  keys text[];
  ended uuid[];
begin
  perform check_failures(failures);
  with failed as (
    update jobs j
    set retry_count = j.retry_count + f.counts, updated_at = at, lease_owner = null, lease_expires_at = null, is_current = false,
        state = case when verdict(f.outcome, f.fatal, j.retry_count + f.counts, j.max_attempts) is null
          then 'retry'::job_state else 'dead' end,
        reason = verdict(f.outcome, f.fatal, j.retry_count + f.counts, j.max_attempts),
        reason_detail = left(error_of(f.error, 'message'), 1000),
        finished_at = case when verdict(f.outcome, f.fatal, j.retry_count + f.counts, j.max_attempts) is not null then at end,
        run_at = case when verdict(f.outcome, f.fatal, j.retry_count + f.counts, j.max_attempts) is null
          then at + coalesce(f.retry_after, backoff_seconds(j.id, j.retry_count + f.counts, seed)) * interval '1 second'
          else j.run_at end
    from (select r.*, (r.outcome = 'failed')::int as counts from failures_of(failures) r order by r.id) f
    where j.id = f.id and owns(j, worker, f.attempt, f.claim_id, at)
    returning j.id, j.attempt, j.claimed_at, j.exclusive_key, f.outcome, f.error
  ), recorded as (
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class, error_message, error_traceback)
    select f.id, f.attempt, worker, f.outcome, f.claimed_at, at, error_of(f.error, 'class'), error_of(f.error, 'message'),
      error_of(f.error, 'traceback')
    from failed f)
  select array_agg(f.id), array_agg(f.exclusive_key) filter (where f.exclusive_key is not null) into ended, keys
  from failed f;
  perform unpark_ended(keys, true);
  perform announce_room(ended) where ended is not null and exists (select from limits);
  -- The rows in attempts show which reports count, those of an earlier call included.
  return query
    select j.id, j.state from failures_of(failures) f
    join attempts a on a.job_id = f.id and a.attempt = f.attempt and a.worker = fail_many_v1.worker
      and a.outcome = f.outcome
    join jobs j on j.id = f.id
    where f.claim_id is null or j.attempt > f.attempt or j.claim_id = f.claim_id;
end $$;

-- One report. Returns the state that the job is in now; null: the lease is lost, nothing was written.
create or replace function fail_v1(
  worker text, id uuid, attempt integer, error jsonb default null, retry_after double precision default null,
  fatal boolean default false, outcome text default 'failed', claim_id uuid default null
) returns job_state language sql as $$
  select f.state from fail_many_v1(worker, jsonb_build_array(jsonb_build_object('id', id, 'attempt', attempt,
    'error', error, 'retry_after', retry_after, 'fatal', fatal, 'outcome', outcome, 'claim_id', claim_id))) f
$$;
