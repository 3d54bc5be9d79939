-- The two steps of an API server for many jobs of many people at once.
-- submit_many:  nothing -> created.   accept_many:  created -> queued, or it stays created until its run_at.
-- `jobs` is an array of objects with the argument names of submit. Each gets its own answer, in the order of the array:
-- the job that it is now, or an error code and what is wrong. One that is wrong never fails its neighbours, so nothing
-- is cast here before it is known to fit. With all_or_none the first that is wrong fails the call.
-- The detail of a job that is on record without an error names what its first intent had otherwise: payload, queue, …
-- An element may have `origin`, the namespace of the token that it came with: such jobs are its namespace's own.
-- An element may have `queues`, an array: the only queues that its job may wait in, also if its kind declares the queue.
-- An element may have `own`, true: its key may be that of its origin's own job only, because its caller sees no others.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict, LH008 queue_not_allowed; as codes of single jobs also 40001 (pruned meanwhile:
-- repeat it).

-- Whether the text is a moment with its time zone (RFC 3339) that a cast takes. There is no leap second and no 24:00.
create or replace function is_moment(moment text) returns boolean language plpgsql immutable strict
as $$
declare
  -- Without backslashes: standard_conforming_strings may be off.
  p text[] := regexp_match(moment, '^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})'
    '(?:[.][0-9]{1,9})?(?:[Zz]|[+-]([0-9]{2}):([0-9]{2}))$');
begin
  return p is not null and p[1] <> '0000' and p[2] between '01' and '12' and p[4] <= '23' and p[5] <= '59'
    and p[6] <= '59' and coalesce(p[7], '00') <= '14' and coalesce(p[8], '00') <= '59' and p[3] between '01' and
      to_char(make_date(p[1]::integer, p[2]::integer, 1) + interval '1 month' - interval '1 day', 'DD');
end $$;

-- The first thing wrong with one element of the array, in words, or null. Missing and null are the same.
create or replace function submission_flaw(job jsonb) returns text language plpgsql stable
as $$
declare
  unknown jsonb;
  problem text;
  payload jsonb := job -> 'payload';
  tags text[];
begin
  if jsonb_typeof(job) is distinct from 'object' then
    return 'it is not a JSON object';
  end if;
  unknown := job - array['kind', 'payload', 'queue', 'priority', 'run_at', 'run_after', 'idempotency_key', 'max_attempts',
    'exclusive_key', 'tags', 'id', 'strict', 'queues', 'origin', 'own'];
  if unknown <> '{}' then
    return format('unknown field %L', (select left(k, 100) from jsonb_object_keys(unknown) k limit 1));
  end if;
  -- What is no text is not written as one where that could be a very long one.
  if pg_column_size(job) > 440 + coalesce(pg_column_size(payload), 0) then
    if exists (select from jsonb_each(job - array['payload', 'tags', 'queues']) f
               where jsonb_typeof(f.value) in ('array', 'object')) then
      return 'a field that is no list and no object is one';
    end if;
  end if;
  problem := case
    when jsonb_typeof(job -> 'kind') not in ('string', 'null') then 'kind is not a text'
    when jsonb_typeof(job -> 'queue') not in ('string', 'null') then 'queue is not a text'
    when jsonb_typeof(job -> 'idempotency_key') not in ('string', 'null') then 'idempotency_key is not a text'
    when jsonb_typeof(job -> 'exclusive_key') not in ('string', 'null') then 'exclusive_key is not a text'
    when jsonb_typeof(job -> 'origin') not in ('string', 'null') or octet_length(job ->> 'origin') > 200 then 'origin is not a text of at most 200 bytes'
    when job ->> 'priority' !~ '^-?[0-9]{1,5}$' then 'priority ' || left(job ->> 'priority', 40) || ' is not between -32767 and 32767'
    when job ->> 'max_attempts' !~ '^[0-9]{1,5}$' then 'max_attempts ' || left(job ->> 'max_attempts', 40) || ' is not between 1 and 32767'
    when job ->> 'strict' not in ('true', 'false') then 'strict is neither true nor false'
    when job ->> 'own' not in ('true', 'false') then 'own is neither true nor false'
    when job ->> 'id' !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then 'id is not a UUID'
    when not is_moment(job ->> 'run_at') then 'run_at ' || left(job ->> 'run_at', 40) || ' is not a time such as 2030-01-31T12:00:00Z'
    when job ->> 'run_after' !~ '^[0-9]{1,17} microseconds$' then 'run_after is not a number of microseconds such as ''1000 microseconds'''
    when jsonb_typeof(job -> 'tags') not in ('array', 'null') then 'tags is not an array'
    when jsonb_typeof(job -> 'tags') = 'array' and jsonb_path_exists(job -> 'tags', 'strict $[*] ? (@.type() != "string")') then 'a tag is not a text'
  end;
  if problem is not null then
    return problem;
  end if;
  if job ?| array['run_at', 'run_after'] then
    problem := times_problem((job ->> 'run_at')::timestamptz, (job ->> 'run_after')::interval);
  end if;
  problem := coalesce(problem, key_problem(job ->> 'idempotency_key'));
  if problem is not null then
    return problem;
  end if;
  if jsonb_typeof(job -> 'tags') = 'array' then
    tags := array(select jsonb_array_elements_text(job -> 'tags'));
  end if;
  problem := intent_problem(job ->> 'kind', coalesce(job ->> 'queue', 'default'), coalesce((job ->> 'priority')::integer, 0),
    coalesce((job ->> 'max_attempts')::integer, 1),
    case when jsonb_typeof(payload) = 'null' then '{}' else coalesce(payload, '{}') end,
    job ->> 'idempotency_key', job ->> 'exclusive_key', tags);
  -- Two conditions, not one: an expression with a query in it costs five microseconds, needed or not.
  if problem is null and job ? 'queues' then
    if not (job -> 'queues') ?
        coalesce(job ->> 'queue', (select k.queue from kinds k where k.kind = job ->> 'kind'), 'default') then
      return 'queue_not_allowed';
    end if;
  end if;
  return problem;
end $$;

-- What became of each intent, or what is wrong with it. A statement of its own after the insert, so that rows which
-- concurrent inserters have just committed are seen. `places`: of each good intent, its place in what was sent.
create or replace function submit_answers(
  intents jsonb, ids uuid[], places integer[], problems text[], queues text[], kinds text[]
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql stable
as $$
  select p.ord::integer, case p.problem when 'queue_not_allowed' then 'LH008' else 'LH003' end,
    case p.problem when 'queue_not_allowed' then 'the queue of its kind is not one of its queues' else p.problem end, null, null, null, null, null, null, null, null, null, null, null, null
  from unnest(problems) with ordinality p(problem, ord) where p.problem is not null
  union all
  select places[i.ord], f.error, coalesce(f.detail, d.differs), s.id, s.kind, s.queue, s.state, client_status(s.state, s.reason), s.reason,
    s.progress, s.progress_note, s.run_at, s.created_at, s.updated_at, s.finished_at
  from intents_of(intents) i
  left join lateral (
    select j.* from jobs j where j.idempotency_key = i.idempotency_key
    union all
    select j.* from jobs j where i.idempotency_key is null and j.id = ids[i.ord]) j on true
  -- Looked at only where another intent has recorded the job. What this one leaves out differs in nothing.
  left join lateral (
    select nullif(concat_ws(', ', case when j.kind <> i.kind then 'jobType' end,
      case when j.payload <> i.payload then 'payload' end,
      case when j.queue <> intents -> (i.ord - 1)::integer ->> 'queue' then 'queue' end,
      case when j.priority <> (intents -> (i.ord - 1)::integer ->> 'priority')::integer then 'priority' end), '') as differs
    where j.id <> ids[i.ord]) d on true
  left join lateral (
    select 'LH004' as error, 'the idempotency key belongs to a job outside these queues and kinds' as detail
    where j.queue <> all(submit_answers.queues) or j.kind <> all(submit_answers.kinds)
    union all
    select 'LH004', 'the idempotency key belongs to a job of another origin'
    where j.id <> ids[i.ord] and (intents -> (i.ord - 1)::integer ->> 'own')::boolean
      and j.origin is distinct from intents -> (i.ord - 1)::integer ->> 'origin'
    union all
    select 'LH004', format('idempotency key %L belongs to job %s with another %s', i.idempotency_key, j.id, d.differs)
    where d.differs is not null and (intents -> (i.ord - 1)::integer ->> 'strict')::boolean
    union all
    select 'LH004', format('id %s belongs to a job with another idempotency key', i.id)
    where j.id is null and exists (select from jobs o where o.id = i.id)
    union all
    select '40001', 'the job was pruned meanwhile: repeat the call' where j.id is null
    limit 1) f on true
  left join lateral (select j.* where f.error is null) s on true
$$;

-- `queues` and `kinds`: a used key whose job is of none of these is refused without a word about that job.
-- Not durable: the commit does not wait for the disk, for whoever promises nothing before accept_many, whose commit
-- puts everything before it on the disk as well. A crash of the database in between loses what nobody was told of.
create or replace function submit_intents(
  jobs jsonb, all_or_none boolean, queues text[], kinds text[], durable boolean
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language plpgsql
as $$
#variable_conflict use_column
declare
  intents jsonb := submit_intents.jobs;
  problems text[];
  places integer[];
  ids uuid[];
  origins text[];
  at timestamptz := clock();
  wrong record;
begin
  if jsonb_typeof(intents) is distinct from 'array' then
    perform refuse('LH003', 'invalid_argument', 'jobs is not a JSON array', 'send an array of objects');
  end if;
  if not durable then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  problems := array(
    select submission_flaw(e.job) from jsonb_array_elements(intents) with ordinality e(job, ord) order by e.ord);
  places := array(
    select p.ord::integer from unnest(problems) with ordinality p(problem, ord) where p.problem is null order by p.ord);
  if cardinality(places) < cardinality(problems) then
    intents := (
      select coalesce(jsonb_agg(e.job order by e.ord), '[]')
      from jsonb_array_elements(intents) with ordinality e(job, ord) where problems[e.ord] is null);
  end if;
  -- Only these two fields, not intents_of: to read all of them takes as long as the checks above.
  select coalesce(array_agg(coalesce(r.id, uuidv7()) order by r.ord), '{}'), coalesce(array_agg(r.origin order by r.ord), '{}')
  into ids, origins
  from rows from (jsonb_to_recordset(intents) as (id uuid, origin text)) with ordinality r(id, origin, ord);
  -- Keys and ids in one order everywhere: two batches that share some wait for each other, never in a circle.
  insert into jobs (id, created_at, priority, max_attempts, queue, kind, payload, idempotency_key, exclusive_key,
    tags, run_at, updated_at, state, accepted, origin)
  select ids[i.ord], at, i.priority, i.max_attempts, i.queue, i.kind, i.payload, i.idempotency_key, i.exclusive_key,
    i.tags, coalesce(i.run_at, at + i.run_after, at), at, 'created', false, origins[i.ord]
  from intents_of(intents) i
  order by i.idempotency_key, ids[i.ord], i.ord
  on conflict do nothing;
  if all_or_none then
    select * into wrong
    from submit_answers(intents, ids, places, problems, submit_intents.queues, submit_intents.kinds) s
    where s.error is not null order by s.ord limit 1;
    if found and wrong.error = '40001' then
      raise serialization_failure using message = 'job_pruned', hint = 'repeat the call';
    elsif found and wrong.error = 'LH003' then
      perform refuse('LH003', 'invalid_argument', format('jobs[%s]: %s', wrong.ord - 1, wrong.detail), 'nothing was recorded');
    elsif found and wrong.error = 'LH008' then
      perform refuse('LH008', 'queue_not_allowed', format('jobs[%s]: %s', wrong.ord - 1, wrong.detail), 'nothing was recorded');
    elsif found then
      perform refuse('LH004', 'idempotency_conflict', format('jobs[%s]: %s', wrong.ord - 1, wrong.detail), 'nothing was recorded');
    end if;
  end if;
  return query
    select * from submit_answers(intents, ids, places, problems, submit_intents.queues, submit_intents.kinds) s order by s.ord;
end $$;

-- Waits a quarter of a second for keys that open transactions use; then nothing is recorded and submit_each is to be called.
-- Errors besides: 55P03 lock_not_available.
create or replace function submit_many_v2(
  jobs jsonb, all_or_none boolean default false, queues text[] default null, kinds text[] default null,
  durable boolean default true
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set lock_timeout = '250ms'
as $$
begin
  return query select * from submit_intents(jobs, all_or_none, queues, kinds, durable);
end $$;

-- The same, for programs of releases before `own`.
create or replace function submit_many_v1(
  jobs jsonb, all_or_none boolean default false, queues text[] default null, kinds text[] default null,
  durable boolean default true
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from submit_many_v2(jobs, all_or_none, queues, kinds, durable) $$;

create or replace function submit_many(
  jobs jsonb, all_or_none boolean default false, queues text[] default null, kinds text[] default null,
  durable boolean default true
) returns table (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz,
  finished_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from submit_many_v2(jobs, all_or_none, queues, kinds, durable) $$;

-- Gives what each job is now, in the order of the ids; accepting again changes nothing. An unknown id has no row.
create or replace function accept_many_v1(ids uuid[], notify boolean default true) returns table (
  id uuid, kind text, queue text, state job_state, status text, reason text, progress real, progress_note text,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz
) language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set lock_timeout = '250ms'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  names text[];
begin
  with waiting as materialized (
    select j.id from jobs j
    where j.id = any(accept_many_v1.ids) and j.state is not distinct from 'created' and not j.accepted
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
  return query
    select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.reason, j.progress, j.progress_note,
      j.run_at, j.created_at, j.updated_at, j.finished_at
    from unnest(accept_many_v1.ids) with ordinality i(id, ord) join jobs j on j.id = i.id
    order by i.ord;
end $$;

create or replace function accept_many(ids uuid[], notify boolean default true) returns table (
  id uuid, kind text, queue text, state job_state, status text, reason text, progress real, progress_note text,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from accept_many_v1(ids, notify) $$;
