-- The two steps of an API server: record jobs, commit, then accept them.
-- submit:  nothing -> created.   accept:  created -> queued, or it stays created until its run_at.
-- A server that dies in between leaves a created job; the client's retry finds it by its key and accepts it.
-- Errors: LH002 job_unknown, LH003 invalid_argument, LH004 idempotency_conflict, LH008 queue_not_allowed.

create or replace function submit_v1(
  kind text, payload jsonb default '{}', queue text default null, priority integer default null, run_at timestamptz default null,
  idempotency_key text default null, max_attempts integer default null, exclusive_key text default null, tags text[] default null,
  run_after interval default null, id uuid default null, strict boolean default false, metadata jsonb default null
) returns uuid language sql as $$
  select recorded(array[make_intent(kind, payload, queue, priority, run_at, run_after, idempotency_key, max_attempts, exclusive_key, tags,
    id, strict, metadata)], accepted => false)
$$;

-- Whether the text is a moment with its time zone (RFC 3339) that a cast takes. There is no leap second and no 24:00.
create or replace function is_moment(moment text) returns boolean language plpgsql immutable strict as $$
declare
  -- Without backslashes: standard_conforming_strings may be off.
  p text[] := regexp_match(moment, '^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})'
    '(?:[.][0-9]{1,9})?(?:[Zz]|[+-]([0-9]{2}):([0-9]{2}))$');
begin
  return p is not null and p[1] <> '0000' and p[2] between '01' and '12' and p[4] <= '23' and p[5] <= '59'
    and p[6] <= '59' and coalesce(p[7], '00') <= '14' and coalesce(p[8], '00') <= '59' and p[3] between '01' and
      to_char(make_date(p[1]::integer, p[2]::integer, 1) + interval '1 month' - interval '1 day', 'DD');
end $$;

-- Why one element of the array cannot be read as an intent, in words, or null. Missing and null are the same.
create or replace function submission_flaw(job jsonb) returns text language plpgsql stable as $$
declare
  unknown jsonb;
begin
  if jsonb_typeof(job) is distinct from 'object' then
    return 'it is not a JSON object';
  end if;
  unknown := job - intent_fields() - array['queues', 'origin', 'own'];
  if unknown <> '{}' then
    return format('unknown field %L', (select left(k, 100) from jsonb_object_keys(unknown) k limit 1));
  end if;
  -- ->> below writes a list or an object as text, which could be a very long one.
  if pg_column_size(job) > 440 + coalesce(pg_column_size(job -> 'payload'), 0) then
    if exists (select from jsonb_each(job - container_fields() - 'queues') f
               where jsonb_typeof(f.value) in ('array', 'object')) then
      return 'a field that is no list and no object is one';
    end if;
  end if;
  return case
    when jsonb_typeof(job -> 'kind') not in ('string', 'null') then 'kind is not a text'
    when jsonb_typeof(job -> 'queue') not in ('string', 'null') then 'queue is not a text'
    when jsonb_typeof(job -> 'idempotency_key') not in ('string', 'null') then 'idempotency_key is not a text'
    when jsonb_typeof(job -> 'exclusive_key') not in ('string', 'null') then 'exclusive_key is not a text'
    when jsonb_typeof(job -> 'origin') not in ('string', 'null') or octet_length(job ->> 'origin') > max_name_bytes()
      then 'origin is not a text of at most ' || max_name_bytes() || ' bytes'
    when job ->> 'priority' !~ '^-?[0-9]{1,5}$' then format('priority %s is not between -%s and %s', left(job ->> 'priority', 40), max_number(), max_number())
    when job ->> 'max_attempts' !~ '^[0-9]{1,5}$' then format('max_attempts %s is not between 1 and %s', left(job ->> 'max_attempts', 40), max_number())
    when job ->> 'strict' not in ('true', 'false') then 'strict is neither true nor false'
    when job ->> 'own' not in ('true', 'false') then 'own is neither true nor false'
    when job ->> 'id' !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then 'id is not a UUID'
    when not is_moment(job ->> 'run_at') then 'run_at ' || left(job ->> 'run_at', 40) || ' is not a time such as 2030-01-31T12:00:00Z'
    when job ->> 'run_after' !~ '^[0-9]{1,17} microseconds$' then 'run_after is not a number of microseconds such as ''1000 microseconds'''
    when jsonb_typeof(job -> 'tags') not in ('array', 'null') then 'tags is not an array'
    when jsonb_typeof(job -> 'tags') = 'array' and jsonb_path_exists(job -> 'tags', 'strict $[*] ? (@.type() != "string")') then 'a tag is not a text'
    when jsonb_typeof(job -> 'queues') not in ('array', 'null') or jsonb_path_exists(job -> 'queues', 'strict $[*] ? (@.type() != "string")')
      then 'queues is not a list of texts'
  end;
end $$;

-- `durable` false: the commit does not wait for the disk. For callers that answer their clients after accept_many only, whose commit puts
-- everything before it on the disk as well; a crash of the database in between loses only jobs that no client has an answer for.
create or replace function submit_intents(jobs jsonb, all_or_none boolean, queues text[], kinds text[], durable boolean)
returns setof submission language plpgsql as $$
declare
  problems text[];
  asked intent[];
  intents intent[];
  bad record;
  answer submission;
begin
  perform require(false, 'jobs is not a JSON array', 'send an array of objects') where jsonb_typeof(jobs) is distinct from 'array';
  if not durable then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  problems := array(select submission_flaw(e.job) from jsonb_array_elements(jobs) with ordinality e(job, ord) order by e.ord);
  asked := read_intents(jobs, problems);
  intents := complete_intents(asked);
  for bad in
    select i.place, p.problem from unnest(intents) i
    cross join lateral (
      select coalesce(intent_problem(i), case when i.queue <> all(i.queues) then 'queue_not_allowed' end) as problem) p
    where p.problem is not null
  loop
    problems[bad.place] := bad.problem;
    asked := array(select i from unnest(asked) i where i.place <> bad.place);
    intents := array(select i from unnest(intents) i where i.place <> bad.place);
  end loop;
  perform record_intents(intents, accepted => false, complete => true, checked => true);
  for answer in
    select p.ord, case p.problem when 'queue_not_allowed' then 'LH008' else 'LH003' end,
      case p.problem when 'queue_not_allowed' then 'the queue of its kind is not one of its queues' else p.problem end,
      null, null, null, null, null, null, null, null, null, null, null, null
    from unnest(problems) with ordinality p(problem, ord) where p.problem is not null
    union all
    select * from answers_to(asked, queues, kinds)
    order by 1
  loop
    if all_or_none and answer.error is not null then
      perform refuse_answer(answer, 'jobs[%s]');
    end if;
    return next answer;
  end loop;
end $$;

-- Many jobs of many clients at once. `jobs` is an array of objects with the argument names of submit. Each gets its own answer, in the
-- order of the array: the job that it is now, or an error code and what is wrong (40001: it was pruned meanwhile, repeat it). One that is
-- wrong never fails its neighbours, so nothing is cast before it is known to fit. With all_or_none the first that is wrong fails the call.
-- The detail of a job that is on record without an error names what its first intent had otherwise: payload, queue, …
-- An element may also have `origin`, the namespace of the token that it came with; `queues`, the only queues that its job may wait in,
-- also if its kind declares the queue; and `own`, true: its key may only be that of a job of its origin, because its caller sees no others.
-- Waits a quarter of a second for keys that open transactions use (55P03); then nothing is recorded and submit_each is to be called.
create or replace function submit_many_v1(
  jobs jsonb, all_or_none boolean default false, queues text[] default null, kinds text[] default null, durable boolean default true
) returns setof submission language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set lock_timeout = '250ms' as $$
begin
  return query select * from submit_intents(jobs, all_or_none, queues, kinds, durable);
end $$;

-- The same job by job, each in a subtransaction of its own: called when submit_many has raised, because an open transaction uses
-- a key or a row of one of the jobs, or because a row raises. As codes of single jobs also 55P03 (an open transaction uses its key: repeat
-- it later) and whatever its row has raised. An error that no row has caused (is_passing) is raised.
create or replace function submit_each_v1(
  jobs jsonb, queues text[] default null, kinds text[] default null, durable boolean default true
) returns setof submission language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off
-- Wait 20 ms, about as long as a short transaction takes, for each of the first ten keys that are in use, then 1 ms for each.
set lock_timeout = '20ms' as $$
declare
  e record;
  busy text[] := '{}';   -- the keys that are in use: each is waited for once
  key text;
  answer submission;
begin
  perform require(jsonb_typeof(jobs) = 'array', 'jobs is not a JSON array', 'send an array of objects');
  for e in select t.job, t.ord::integer from jsonb_array_elements(jobs) with ordinality t(job, ord) order by t.ord loop
    key := case jsonb_typeof(e.job) when 'object' then e.job ->> 'idempotency_key' end;
    begin
      if key = any(busy) then
        raise lock_not_available;
      end if;
      select * into answer from submit_intents(jsonb_build_array(e.job), false, queues, kinds, durable);
    exception when others then
      if sqlstate = '55P03' then
        busy := array_append(busy, key);
        if cardinality(busy) = 10 then
          perform set_config('lock_timeout', '1ms', true);  -- until this call ends
        end if;
      elsif is_passing(sqlstate) then
        raise;
      end if;
      answer := null;
      answer.error := sqlstate;
      answer.detail := case sqlstate when '55P03' then 'another transaction is using this idempotency key; nothing was recorded'
        else left(sqlerrm, 1000) end;
    end;
    answer.ord := e.ord;
    return next answer;
  end loop;
end $$;

-- Returns the state that the job is in now; accepting again changes nothing.
create or replace function accept_v1(id uuid, notify boolean default true) returns job_state language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set lock_timeout = '3s' as $$
declare
  found_state job_state;
begin
  perform accept_jobs(array[id], notify);
  select j.state into found_state from client_jobs(array[id]) j;
  if not found then
    perform refuse('LH002', 'job_unknown', format('no job has the id %s', id));
  end if;
  return found_state;
end $$;

-- Accept those of the jobs that wait for it.
create or replace function accept_jobs(ids uuid[], notify boolean) returns void language plpgsql as $$
declare
  at constant timestamptz := clock();
  names text[];
begin
  with waiting as materialized (
    select j.id from jobs j
    where j.id = any(ids) and j.state is not distinct from 'created' and not j.accepted
    order by j.id for no key update
  ), accepted as (
    update jobs j
    set accepted = true, updated_at = at, state = case when j.run_at <= at then 'queued'::job_state else j.state end
    from waiting w where j.id = w.id
    returning j.state, j.queue)
  select array_agg(distinct case a.state when 'queued' then a.queue else '@due' end) into names from accepted a;
  if names is null then
    perform vouch();
  elsif notify then
    perform announce(names);
  end if;
end $$;

-- What a client may see of each job, in the order of the ids. An unknown id has no row.
create or replace function client_jobs(ids uuid[]) returns setof client_job language sql stable as $$
  select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.reason, j.progress, j.progress_note, j.run_at,
    j.created_at, j.updated_at, j.finished_at, j.origin
  from unnest(ids) with ordinality i(id, ord) join jobs j on j.id = i.id order by i.ord
$$;

-- Returns what each job is now, in the order of the ids; accepting again changes nothing. An unknown id has no row.
create or replace function accept_many_v1(ids uuid[], notify boolean default true) returns setof client_job language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set lock_timeout = '250ms' as $$
begin
  perform accept_jobs(ids, notify);
  return query select * from client_jobs(ids);
end $$;

-- Accept one job unless its row is locked or raises. Whether it is accepted, now or before.
create or replace function accept_one(id uuid, notify boolean) returns boolean language plpgsql as $$
begin
  perform from jobs j where j.id = accept_one.id and j.state is not distinct from 'created' and not j.accepted
  for no key update skip locked;
  if found then
    perform accept_jobs(array[accept_one.id], accept_one.notify);
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
create or replace function accept_each_v1(ids uuid[], notify boolean default true) returns setof client_job language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  good constant uuid[] := array(select i from unnest(ids) i where accept_one(i, notify));
begin
  perform vouch();
  return query select * from client_jobs(good);
end $$;
