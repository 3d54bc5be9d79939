-- The two steps of an API server: record first, commit, then accept.
-- submit:  nothing -> created.   accept:  created -> queued, or it stays created until its run_at.
-- A server that dies in between leaves a created job; the client's retry finds it by its key and accepts it.
-- Errors: LH002 job_unknown, LH003 invalid_argument, LH004 idempotency_conflict.

create or replace function submit_v1(
  kind text,
  payload jsonb default '{}',
  queue text default null,
  priority integer default null,
  run_at timestamptz default null,
  idempotency_key text default null,
  max_attempts integer default null,
  exclusive_key text default null,
  tags text[] default null,
  run_after interval default null,
  id uuid default null,
  strict boolean default false
) returns uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off  -- a plan made for an empty table must not outlive it
as $$
begin
  perform check_key(idempotency_key);
  return record_intent(kind, payload, queue, priority, run_at, run_after, idempotency_key, max_attempts,
    exclusive_key, tags, id, false, strict, false);
end $$;

create or replace function submit(
  kind text, payload jsonb default '{}', queue text default null, priority integer default null,
  run_at timestamptz default null, idempotency_key text default null, max_attempts integer default null,
  exclusive_key text default null, tags text[] default null, run_after interval default null, id uuid default null,
  strict boolean default false
) returns uuid language sql
security definer set search_path from current
as $$
  select submit_v1(kind, payload, queue, priority, run_at, idempotency_key, max_attempts, exclusive_key, tags,
    run_after, id, strict)
$$;

-- Gives the state that the job is in now; accepting again changes nothing.
create or replace function accept_v1(id uuid, notify boolean default true) returns job_state language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  job jobs;
begin
  update jobs j
  set accepted = true, updated_at = at,
      state = case when j.run_at <= at then 'queued'::job_state else j.state end
  where j.id = accept_v1.id and j.state is not distinct from 'created' and not j.accepted
  returning * into job;
  if found then
    if notify then
      perform announce(array[case job.state when 'queued' then job.queue else '@due' end]);
    end if;
    return job.state;
  end if;
  select * into job from jobs j where j.id = accept_v1.id;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', accept_v1.id));
  end if;
  perform vouch();
  return job.state;
end $$;

create or replace function accept(id uuid, notify boolean default true) returns job_state language sql
security definer set search_path from current
as $$ select accept_v1(id, notify) $$;
