-- What a client may know of its job: never the payload, the counters, the worker, the lease, a traceback.

create or replace function status_v1(job_id uuid)
returns table (
  id uuid, kind text, queue text, state job_state, status text, result jsonb, reason text, reason_detail text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql stable
security definer set search_path from current
as $$
  select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.result, j.reason, j.reason_detail,
    j.progress, j.progress_note, j.run_at, j.created_at, j.updated_at, j.finished_at
  from jobs j where j.id = status_v1.job_id
$$;

create or replace function status(job_id uuid)
returns table (
  id uuid, kind text, queue text, state job_state, status text, result jsonb, reason text, reason_detail text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql stable
security definer set search_path from current
as $$ select * from status_v1(job_id) $$;

-- For people who look and must not see what the jobs carry: no payload, no result, no error text, no keys.
create or replace view job_overview as
select id, kind, queue, state,
  -- client_status, spelt out: a view calls functions with the rights of whoever looks, and that one is nobody's.
  case state when 'running' then 'RUNNING' when 'success' then 'COMPLETED'
    when 'dead' then case when reason = 'cancelled' then 'CANCELLED' else 'FAILED' end
    else 'PENDING' end as status,
  priority, attempt, retry_count, max_attempts,
  exclusive_key is not null as is_exclusive, parked, accepted, lease_owner, lease_expires_at, reason, progress,
  run_at, claimed_at, created_at, updated_at, finished_at
from jobs;

create or replace view attempt_overview as
select job_id, attempt, worker, outcome, error_class, claimed_at, ended_at from attempts;

create or replace view worker_overview as
select id, host, pid, queues, kinds, slots, started_at, seen_at, stopped_at from workers;
