-- Record many intents at once, all or none.  nothing -> queued or created, as enqueue does.
-- `jobs` is an array of objects with the argument names of enqueue, without notify. Gives the ids in the order of the array;
-- a used idempotency key (or a repeated id) gives the job that has it.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict, 40001 (a job was pruned meanwhile: repeat).

-- The array as rows, as it was given. Stable and plain, so that it is inlined.
create or replace function fields_of(jobs jsonb) returns table (
  ord bigint, kind text, payload jsonb, queue text, priority integer, run_at timestamptz, run_after interval,
  idempotency_key text, max_attempts integer, exclusive_key text, tags text[], id uuid
) language sql stable
as $$
  select r.ord, r.kind, coalesce(r.payload, '{}'), r.queue, r.priority, r.run_at, r.run_after, r.idempotency_key,
    r.max_attempts, r.exclusive_key, r.tags, r.id
  from rows from (jsonb_to_recordset(jobs) as (kind text, payload jsonb, queue text, priority integer,
    run_at timestamptz, run_after interval, idempotency_key text, max_attempts integer, exclusive_key text, tags text[],
    id uuid)) with ordinality r(kind, payload, queue, priority, run_at, run_after, idempotency_key, max_attempts,
    exclusive_key, tags, id, ord)
$$;

-- The same with the defaults of enqueue filled in: a kind is looked up, once, only for what an element leaves out.
create or replace function intents_of(jobs jsonb) returns table (
  ord bigint, kind text, payload jsonb, queue text, priority integer, run_at timestamptz, run_after interval,
  idempotency_key text, max_attempts integer, exclusive_key text, tags text[], id uuid
) language sql stable
as $$
  select r.ord, r.kind, r.payload, coalesce(r.queue, k.queue, 'default'), coalesce(r.priority, k.priority, 0), r.run_at,
    r.run_after, r.idempotency_key, coalesce(r.max_attempts, k.max_attempts, usual_attempts()), r.exclusive_key, r.tags, r.id
  from fields_of(jobs) r
  left join kinds k on k.kind = r.kind and (r.queue is null or r.priority is null or r.max_attempts is null)
$$;

create or replace function check_intents(jobs jsonb) returns void language plpgsql
as $$
declare
  bad record;
begin
  if jsonb_typeof(jobs) is distinct from 'array' then
    perform refuse('LH003', 'invalid_argument', 'jobs is not a JSON array', 'send an array of objects');
  end if;
  -- A misspelt field would silently be ignored, and a promise with it.
  select e.ord, k.name into bad
  from jsonb_array_elements(jobs) with ordinality e(job, ord)
  cross join lateral jsonb_object_keys(
    case jsonb_typeof(e.job) when 'object' then e.job else '{"(not an object)": 0}' end) k(name)
  where k.name not in ('kind', 'payload', 'queue', 'priority', 'run_at', 'run_after', 'idempotency_key',
    'max_attempts', 'exclusive_key', 'tags', 'id', 'strict')
  limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('jobs[%s]: unknown field %L', bad.ord - 1, bad.name),
      'the fields are the argument names of enqueue');
  end if;
  -- What an element leaves out needs no check. With a look-up in its arguments intent_problem would not be inlined.
  select i.ord, i.problem into bad
  from (select t.ord, coalesce(times_problem(t.run_at, t.run_after), key_problem(t.idempotency_key),
          intent_problem(t.kind, coalesce(t.queue, 'default'), coalesce(t.priority, 0), coalesce(t.max_attempts, 1),
            t.payload, t.idempotency_key, t.exclusive_key, t.tags)) as problem from fields_of(jobs) t) i
  where i.problem is not null limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('jobs[%s]: %s', bad.ord - 1, bad.problem), 'nothing was recorded');
  end if;
end $$;

create or replace function enqueue_many_v1(jobs jsonb, notify boolean default true) returns setof uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off  -- a plan made for an empty table must not outlive it
as $$
#variable_conflict use_column
declare
  intents jsonb := enqueue_many_v1.jobs;
  at timestamptz := clock();
  ids uuid[];
  inserted integer;
  names text[];
  other record;
begin
  perform check_intents(intents);
  ids := array(
    select coalesce(r.id, uuidv7())
    from rows from (jsonb_to_recordset(intents) as (id uuid)) with ordinality r(id, ord) order by r.ord);
  -- Keys and ids in one order everywhere: two batches that share some wait for each other, never in a circle.
  with made as (
    insert into jobs (id, created_at, priority, max_attempts, queue, kind, payload, idempotency_key, exclusive_key,
      tags, run_at, updated_at, state)
    select ids[i.ord], at, i.priority, i.max_attempts, i.queue, i.kind, i.payload, i.idempotency_key, i.exclusive_key,
      i.tags, due.run_at, at, case when due.run_at > at then 'created'::job_state else 'queued' end
    from intents_of(intents) i
    cross join lateral (select coalesce(i.run_at, at + i.run_after, at) as run_at) due
    order by i.idempotency_key, i.id, i.ord
    on conflict do nothing
    returning case state when 'queued' then queue else '@due' end as name)
  select count(*), array_agg(distinct m.name) into inserted, names from made m;
  if notify then
    perform announce(names);
  end if;
  if inserted < cardinality(ids) then
    -- A new statement, so that rows which concurrent inserters have just committed are seen.
    ids := array(
      select case when i.idempotency_key is null then (select j.id from jobs j where j.id = ids[i.ord])
                  else (select j.id from jobs j where j.idempotency_key = i.idempotency_key) end
      from intents_of(intents) i order by i.ord);
    if array_position(ids, null) is not null then
      if exists (select from intents_of(intents) i join jobs j using (id)
                 where j.idempotency_key is distinct from i.idempotency_key) then
        perform refuse('LH004', 'idempotency_conflict', 'an id belongs to a job with another idempotency key',
          'use another id');
      end if;
      raise serialization_failure using message = 'job_pruned', hint = 'repeat the call';
    end if;
    select i.idempotency_key as key, j.id into other
    from intents_of(intents) i join jobs j on j.idempotency_key = i.idempotency_key
    where (intents -> (i.ord - 1)::integer ->> 'strict')::boolean and (j.kind <> i.kind or j.payload <> i.payload) limit 1;
    if found then
      perform refuse('LH004', 'idempotency_conflict',
        format('idempotency key %L belongs to job %s with another kind or payload', other.key, other.id),
        'use another key, or send what was sent first');
    end if;
    perform vouch();
  end if;
  return query select unnest(ids);
end $$;

-- Which field of which element cannot be read as what it is to be, in words; null: all can. For people who write SQL: our
-- programs have checked before. Only reads, and looks at elements one by one only when all of them together raise.
create or replace function unreadable_intent(jobs jsonb, what text) returns text language plpgsql stable
as $$
declare
  bad record;
begin
  if jsonb_typeof(jobs) is distinct from 'array' then
    return null;
  end if;
  begin
    perform count(*) from intents_of(jobs);
    return null;
  exception when data_exception then
    null;
  end;
  for bad in
    select e.ord - 1 as place, f.key as field, f.value
    from jsonb_array_elements(jobs) with ordinality e(job, ord)
    cross join lateral jsonb_each(case jsonb_typeof(e.job) when 'object' then e.job else '{}' end) f
    where f.key <> 'payload' order by e.ord
  loop
    begin
      perform count(*) from intents_of(jsonb_build_array(jsonb_build_object(bad.field, bad.value)));
    exception when data_exception then
      return format('%s.%s %s: %s', format(what, bad.place), bad.field,
        case when jsonb_typeof(bad.value) in ('array', 'object') then 'is a JSON ' || jsonb_typeof(bad.value)
          else left(bad.value::text, 80) end, left(sqlerrm, 200));
    end;
  end loop;
  return null;
end $$;

create or replace function check_readable(jobs jsonb, what text) returns void language plpgsql
as $$
declare
  problem text := unreadable_intent(jobs, what);
begin
  if problem is not null then
    perform refuse('LH003', 'invalid_argument', problem, 'priority and max_attempts are whole numbers, run_at is a time,'
      ' run_after a length of time, tags a list of texts, id a UUID; nothing was recorded');
  end if;
end $$;

create or replace function enqueue_many(jobs jsonb, notify boolean default true) returns setof uuid language plpgsql
security definer set search_path from current
as $$
begin
  perform check_readable(jobs, 'jobs[%s]');
  return query select enqueue_many_v1(jobs, notify);
end $$;
