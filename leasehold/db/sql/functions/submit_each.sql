-- The same as submit_many and accept_many, job by job: called when one of those has raised, because an open transaction uses
-- a key or a row of one of the jobs, or because a row raises. Each job has a subtransaction of its own and its own answer;
-- as codes of single jobs also 55P03 (an open transaction uses its key: repeat it later) and whatever its row has raised.
-- Errors: LH003 invalid_argument; what is no row's fault (is_passing) is raised.

-- One job.
create or replace function submit_alone(job jsonb, queues text[], kinds text[], durable boolean) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language plpgsql
as $$
begin
  return query select * from submit_intents(jsonb_build_array(job), false, queues, kinds, durable);
end $$;

create or replace function submit_each_v2(
  jobs jsonb, queues text[] default null, kinds text[] default null, durable boolean default true
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
-- A key that is in use is waited for as long as a short transaction takes, and ten of them in a call; then a millisecond.
set lock_timeout = '20ms'
as $$
#variable_conflict use_column
declare
  e record;
  busy text[] := '{}';   -- the keys that are in use: each is waited for once
  key text;
begin
  if jsonb_typeof(jobs) is distinct from 'array' then
    perform refuse('LH003', 'invalid_argument', 'jobs is not a JSON array', 'send an array of objects');
  end if;
  for e in select t.job, t.ord::integer from jsonb_array_elements(submit_each_v2.jobs) with ordinality t(job, ord) order by t.ord loop
    key := case jsonb_typeof(e.job) when 'object' then e.job ->> 'idempotency_key' end;
    begin
      if key = any(busy) then
        raise lock_not_available;
      end if;
      return query
        select e.ord, s.error, s.detail, s.id, s.kind, s.queue, s.state, s.status, s.reason, s.progress, s.progress_note,
          s.run_at, s.created_at, s.updated_at, s.finished_at
        from submit_alone(e.job, submit_each_v2.queues, submit_each_v2.kinds, submit_each_v2.durable) s;
    exception when others then
      if sqlstate = '55P03' then
        busy := array_append(busy, key);
        if cardinality(busy) = 10 then
          perform set_config('lock_timeout', '1ms', true);  -- until this call ends
        end if;
      elsif is_passing(sqlstate) then
        raise;
      end if;
      ord := e.ord;
      error := sqlstate;
      detail := case sqlstate when '55P03' then 'another transaction is using this idempotency key; nothing was recorded'
        else left(sqlerrm, 1000) end;
      return next;
    end;
  end loop;
end $$;

-- The same, for programs of releases before `own`.
create or replace function submit_each_v1(
  jobs jsonb, queues text[] default null, kinds text[] default null, durable boolean default true
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from submit_each_v2(jobs, queues, kinds, durable) $$;

create or replace function submit_each(
  jobs jsonb, queues text[] default null, kinds text[] default null, durable boolean default true
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from submit_each_v2(jobs, queues, kinds, durable) $$;

-- Accept one job unless its row is locked or raises. Whether it is accepted, now or before.
create or replace function accept_one(id uuid, notify boolean) returns boolean language plpgsql
as $$
#variable_conflict use_column
begin
  perform from jobs j where j.id = accept_one.id and j.state is not distinct from 'created' and not j.accepted
  for no key update skip locked;
  if found then
    perform accept_v1(accept_one.id, accept_one.notify);
  end if;
  return exists (select from jobs j where j.id = accept_one.id and j.accepted);
exception when others then
  if is_passing(sqlstate) then
    raise;
  end if;
  raise log 'leasehold: job % cannot be accepted: % (%)', accept_one.id, sqlerrm, sqlstate;
  return false;
end $$;

-- What those are now that are accepted. The others have no row: their row is locked or raises, or there is no such job.
create or replace function accept_each_v1(ids uuid[], notify boolean default true) returns table (
  id uuid, kind text, queue text, state job_state, status text, reason text, progress real, progress_note text,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz
) language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  good uuid[] := array(select i from unnest(accept_each_v1.ids) i where accept_one(i, accept_each_v1.notify));
begin
  perform vouch();
  return query
    select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.reason, j.progress, j.progress_note,
      j.run_at, j.created_at, j.updated_at, j.finished_at
    from unnest(good) with ordinality i(id, ord) join jobs j on j.id = i.id order by i.ord;
end $$;

create or replace function accept_each(ids uuid[], notify boolean default true) returns table (
  id uuid, kind text, queue text, state job_state, status text, reason text, progress real, progress_note text,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from accept_each_v1(ids, notify) $$;
