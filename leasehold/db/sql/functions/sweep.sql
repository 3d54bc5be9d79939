-- Take back the jobs whose lease has expired.  running -> queued, or dead when that was the last failure of the budget: a job that
-- kills its worker every time ends after exactly max_attempts of them.
-- Idempotent; any number of concurrent callers: each expired lease is swept once. Returns how many.

-- Sweep these jobs, if they are expired. If a row raises, the call fails as a whole: isolated() calls it row by row then.
create or replace function expire(ids uuid[]) returns integer language plpgsql as $$
declare
  at timestamptz := clock();
  swept uuid[];
  keys text[];
  queues text[];
begin
  with lost as materialized (
    select j.id, j.lease_owner, j.lease_expires_at from jobs j
    where j.id = any(ids) and j.state is not distinct from 'running' and j.lease_expires_at <= at
    order by j.id for no key update skip locked
  ), expired as (
    update jobs j
    set retry_count = j.retry_count + 1, updated_at = at, lease_owner = null, lease_expires_at = null, is_current = false,
        state = case when verdict('lease_expired', false, j.retry_count + 1, j.max_attempts) is null
          then 'queued'::job_state else 'dead' end,
        reason = verdict('lease_expired', false, j.retry_count + 1, j.max_attempts),
        reason_detail = format('failure %s of %s: the lease of worker %s expired', j.retry_count + 1, j.max_attempts, l.lease_owner),
        finished_at = case when verdict('lease_expired', false, j.retry_count + 1, j.max_attempts) is not null then at end
    from lost l where j.id = l.id
    returning j.id, j.attempt, l.lease_owner, l.lease_expires_at, j.claimed_at, j.exclusive_key, j.queue, j.state
  ), recorded as (
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class, error_message)
    select e.id, e.attempt, e.lease_owner, 'lease_expired', e.claimed_at, at, 'LeaseExpired',
      format('the lease expired at %s', e.lease_expires_at) from expired e)
  select array_agg(e.id), array_agg(distinct e.exclusive_key) filter (where e.exclusive_key is not null),
         array_agg(distinct e.queue) filter (where e.state = 'queued')
  into swept, keys, queues from expired e;
  perform unpark_ended(keys, false);
  perform announce(queues);
  perform notice_failures(swept);
  return coalesce(cardinality(swept), 0);
end $$;

create or replace function sweep_v1(max integer default 1000) returns integer language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
declare
  at timestamptz := clock();
  swept integer;
begin
  perform check_most(sweep_v1.max);
  swept := isolated('expire', array(
    select j.id from jobs j where j.state = 'running' and j.lease_expires_at <= at
    limit sweep_v1.max for no key update skip locked));
  perform unpark_forgotten();
  return swept;
end $$;
