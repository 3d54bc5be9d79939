-- Record an intent.  nothing -> queued, or created while run_at lies in the future.
-- A used idempotency key (or a repeated id) gives the job that has it: same id, no new row.
-- Null queue, priority or max_attempts: what the kind's task declares (declare_tasks), else 'default', 0, usual_attempts().
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict.

create or replace function record_intent(
  kind text, payload jsonb, queue text, priority integer, run_at timestamptz, run_after interval,
  idempotency_key text, max_attempts integer, exclusive_key text, tags text[], id uuid,
  accepted boolean, strict boolean, notify boolean
) returns uuid language plpgsql
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  due timestamptz;
  begin_as job_state;
  problem text;
  made uuid;
  job record;
  named_queue text := record_intent.queue;
  named_priority integer := record_intent.priority;
begin
  if record_intent.queue is null or record_intent.priority is null or record_intent.max_attempts is null then
    select coalesce(record_intent.queue, k.queue, 'default'), coalesce(record_intent.priority, k.priority, 0),
      coalesce(record_intent.max_attempts, k.max_attempts, usual_attempts())
    into record_intent.queue, record_intent.priority, record_intent.max_attempts
    from (select) one left join kinds k on k.kind = record_intent.kind;
  end if;
  problem := coalesce(times_problem(record_intent.run_at, record_intent.run_after), intent_problem(
    record_intent.kind, record_intent.queue, record_intent.priority, record_intent.max_attempts, record_intent.payload,
    record_intent.idempotency_key, record_intent.exclusive_key, record_intent.tags));
  if problem is not null then
    perform refuse('LH003', 'invalid_argument', problem, 'nothing was recorded');
  end if;
  due := coalesce(record_intent.run_at, at + record_intent.run_after, at);
  begin_as := case when not record_intent.accepted or due > at then 'created' else 'queued' end;
  -- Two statements, never one: only a new snapshot sees the row that a concurrent inserter has just
  -- committed. The loop is for a row that was pruned in between.
  loop
    insert into jobs (id, created_at, priority, max_attempts, queue, kind, payload, idempotency_key, exclusive_key,
      tags, run_at, updated_at, state, accepted)
    values (coalesce(record_intent.id, uuidv7()), at, record_intent.priority, record_intent.max_attempts,
      record_intent.queue, record_intent.kind, record_intent.payload, record_intent.idempotency_key,
      record_intent.exclusive_key, record_intent.tags, due, at, begin_as, record_intent.accepted)
    on conflict do nothing
    returning id into made;
    if found then
      if record_intent.notify and record_intent.accepted then
        perform announce(array[case begin_as when 'queued' then record_intent.queue else '@due' end]);
      end if;
      return made;
    end if;
    if record_intent.idempotency_key is null then
      select j.id, j.kind, j.payload, j.queue, j.priority into job from jobs j where j.id = record_intent.id;
    else
      select j.id, j.kind, j.payload, j.queue, j.priority into job from jobs j where j.idempotency_key = record_intent.idempotency_key;
    end if;
    if found then
      exit;
    end if;
    -- The key is free, so the conflict was about the id.
    if exists (select from jobs j where j.id = record_intent.id) then
      perform refuse('LH004', 'idempotency_conflict',
        format('id %s belongs to a job with another idempotency key', record_intent.id), 'use another id');
    end if;
  end loop;
  if record_intent.strict and (job.kind <> record_intent.kind or job.payload <> record_intent.payload
      or job.queue <> named_queue or job.priority <> named_priority) then
    perform refuse('LH004', 'idempotency_conflict',
      format('idempotency key %L belongs to job %s with another kind, payload, queue or priority',
        record_intent.idempotency_key, job.id),
      'use another key, or send what was sent first');
  end if;
  perform vouch();
  return job.id;
end $$;

create or replace function enqueue_v1(
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
  strict boolean default false,
  notify boolean default true
) returns uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off  -- a plan made for an empty table must not outlive it
as $$
begin
  perform check_key(idempotency_key);
  return record_intent(kind, payload, queue, priority, run_at, run_after, idempotency_key, max_attempts,
    exclusive_key, tags, id, true, strict, notify);
end $$;

create or replace function enqueue(
  kind text, payload jsonb default '{}', queue text default null, priority integer default null,
  run_at timestamptz default null, idempotency_key text default null, max_attempts integer default null,
  exclusive_key text default null, tags text[] default null, run_after interval default null, id uuid default null,
  strict boolean default false, notify boolean default true
) returns uuid language sql
security definer set search_path from current
as $$
  select enqueue_v1(kind, payload, queue, priority, run_at, idempotency_key, max_attempts, exclusive_key, tags,
    run_after, id, strict, notify)
$$;
