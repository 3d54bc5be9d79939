-- For operators: the jobs that fit a filter, a page at a time, and everything about one job.
-- filters.sql says what a filter is and in which order the jobs come.
-- Error: LH003 invalid_argument.

-- Each row carries the cursor that goes on behind it. A last row without an id: so many jobs were looked at that the
-- rest is for another call, which goes on with its cursor; the page is short, or empty, without being the last.
-- A filter with queues or kinds is for those who may see no others: their cursors name no queue, kind or key either,
-- and what is queued or running then comes latest created first.
create or replace function list_jobs_v1(
  filter jsonb default '{}', cursor text default null, count integer default 50, scan integer default 10000
) returns table (
  id uuid, kind text, queue text, state job_state, status text, priority smallint, attempt integer, retry_count smallint,
  max_attempts smallint, exclusive_key text, tags text[], parked boolean, accepted boolean, reason text,
  error_class text, progress real, progress_note text, lease_owner text, lease_expires_at timestamptz,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
  cursor_here text
) language plpgsql stable
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  narrow boolean := filter ?| array['queues', 'kinds'];
  after jsonb := list_jobs_v1.cursor::jsonb;
begin
  perform check_filter(filter);
  if narrow and after ->> 0 not in ('ids', 'due', 'unaccepted', 'finished') then
    perform refuse('LH003', 'invalid_argument', 'cursor', 'give the one that the page before came with, and its filter');
  end if;
  if count is null or count not between 1 and 1000 or scan is null or scan not between 1 and 1000000 then
    perform refuse('LH003', 'invalid_argument', format('count %s, scan %s', count, scan),
      'ask for 1 to 1000 jobs and let 1 to 1000000 be looked at');
  end if;
  return query
    select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.priority, j.attempt, j.retry_count,
      j.max_attempts, j.exclusive_key, j.tags, j.parked, j.accepted, j.reason, last_error_class(j.id), j.progress,
      j.progress_note, j.lease_owner, j.lease_expires_at, j.run_at, j.created_at, j.updated_at, j.claimed_at,
      j.finished_at, f.place::text
    from find_jobs(filter, after, count, scan, narrow) with ordinality f(id, place, nth)
    left join jobs j on j.id = f.id
    order by f.nth;
end $$;

create or replace function list_jobs(
  filter jsonb default '{}', cursor text default null, count integer default 50, scan integer default 10000
) returns table (
  id uuid, kind text, queue text, state job_state, status text, priority smallint, attempt integer, retry_count smallint,
  max_attempts smallint, exclusive_key text, tags text[], parked boolean, accepted boolean, reason text,
  error_class text, progress real, progress_note text, lease_owner text, lease_expires_at timestamptz,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
  cursor_here text
) language sql stable
security definer set search_path from current
as $$ select * from list_jobs_v1(filter, cursor, count, scan) $$;

-- Everything about one job, what it carries included; no row: there is none. Attempts are the latest 100, oldest first.
create or replace function job_detail_v1(job_id uuid) returns table (
  id uuid, kind text, queue text, state job_state, status text, priority smallint, attempt integer, retry_count smallint,
  max_attempts smallint, exclusive_key text, tags text[], parked boolean, accepted boolean, reason text,
  error_class text, progress real, progress_note text, lease_owner text, lease_expires_at timestamptz,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
  idempotency_key text, reason_detail text, payload jsonb, result jsonb, attempts jsonb
) language sql stable
security definer set search_path from current
as $$
  select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.priority, j.attempt, j.retry_count,
    j.max_attempts, j.exclusive_key, j.tags, j.parked, j.accepted, j.reason, last_error_class(j.id), j.progress,
    j.progress_note, j.lease_owner, j.lease_expires_at, j.run_at, j.created_at, j.updated_at, j.claimed_at,
    j.finished_at, j.idempotency_key, j.reason_detail, j.payload, j.result, (
      select coalesce(jsonb_agg(to_jsonb(a) - 'job_id' order by a.attempt), '[]')
      from (select * from attempts a where a.job_id = j.id order by a.attempt desc limit 100) a)
  from jobs j where j.id = job_detail_v1.job_id
$$;

create or replace function job_detail(job_id uuid) returns table (
  id uuid, kind text, queue text, state job_state, status text, priority smallint, attempt integer, retry_count smallint,
  max_attempts smallint, exclusive_key text, tags text[], parked boolean, accepted boolean, reason text,
  error_class text, progress real, progress_note text, lease_owner text, lease_expires_at timestamptz,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
  idempotency_key text, reason_detail text, payload jsonb, result jsonb, attempts jsonb
) language sql stable
security definer set search_path from current
as $$ select * from job_detail_v1(job_id) $$;
