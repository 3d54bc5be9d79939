-- What a client may know of its job: never the payload, the counters, the worker, the lease, a traceback.

-- `error_class`: of a dead job, the class of what its last attempt raised.
create or replace function status_v1(job_id uuid) returns table (
  id uuid, kind text, queue text, state job_state, status text, result jsonb, reason text, reason_detail text, progress real,
  progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz, error_class text
) language sql stable set enable_seqscan = off  -- a plan made for an empty table must not outlive it
as $$
  select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.result, j.reason, j.reason_detail,
    j.progress, j.progress_note, j.run_at, j.created_at, j.updated_at, j.finished_at,
    case when j.state = 'dead' then
      (select a.error_class from attempts a where a.job_id = j.id and a.attempt = j.attempt) end
  from jobs j where j.id = status_v1.job_id
$$;

-- The same of many jobs, without results and with the namespace of each, for callers that poll. An unknown id has no row.
create or replace function statuses_v1(ids uuid[]) returns setof client_job language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return query select * from client_jobs(ids);
end $$;

-- For monitoring, without what the jobs carry: no payload, no result, no error text, no keys.
create or replace view job_overview as
select id, kind, queue, state,
  -- client_status, spelt out: a view calls functions with the rights of its reader, who may not call that one.
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
