-- How jobs are recorded. Every function that makes jobs builds intents and calls record_intents; answers_to and found_jobs say what
-- became of an intent whose key or id is in use. The functions that producers call are at the end.
-- record_intents:  nothing -> queued, or created while run_at lies in the future or the job is not accepted yet.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict.

-- The fields of an intent that a caller may give: the arguments of enqueue.
create or replace function intent_fields() returns text[] language sql immutable parallel safe
return array['kind', 'payload', 'queue', 'priority', 'run_at', 'run_after', 'idempotency_key', 'max_attempts', 'exclusive_key',
  'tags', 'id', 'strict', 'metadata'];

-- Those whose values are lists or objects.
create or replace function container_fields() returns text[] language sql immutable parallel safe
return array['payload', 'tags', 'metadata'];

-- Return what is wrong with a payload. A single expression, as below, so that it is inlined. Up to 440 bytes
-- that are not compressed cannot become a text of 4 MiB, and need no further check.
create or replace function payload_problem(payload jsonb) returns text language sql stable parallel safe
return case
    when jsonb_typeof(payload) is distinct from 'object' then 'payload is not a JSON object'
    when pg_column_size(payload) > 440 or pg_column_compression(payload) is not null or may_have_long_number(payload)
      then json_fault('payload', payload)
  end;

create or replace function metadata_problem(metadata jsonb) returns text language plpgsql stable cost 1 as $$
declare
  too_long constant text := 'metadata is longer than ' || max_metadata_bytes() || ' bytes';
begin
  if jsonb_typeof(metadata) <> 'object' then
    return 'metadata is not a JSON object';
  elsif pg_column_size(metadata) > max_metadata_bytes() then
    return too_long;
  end if;
  return coalesce(json_fault('metadata', metadata), case when octet_length(metadata::text) > max_metadata_bytes() then too_long end);
end $$;

create or replace function intent_problem(i intent) returns text language sql stable parallel safe
return case
    when i.kind is null or i.kind = '' then 'kind is empty'
    when octet_length(i.kind) > max_name_bytes() then 'kind is longer than ' || max_name_bytes() || ' bytes'
    when i.queue is null or i.queue = '' then 'queue is empty'
    when octet_length(i.queue) > max_name_bytes() then 'queue is longer than ' || max_name_bytes() || ' bytes'
    when i.priority is null or i.priority not between -max_number() and max_number()
      then format('priority %s is not between -%s and %s', coalesce(i.priority::text, 'null'), max_number(), max_number())
    when i.max_attempts is null or i.max_attempts not between 1 and max_number()
      then format('max_attempts %s is not between 1 and %s', coalesce(i.max_attempts::text, 'null'), max_number())
    when i.idempotency_key = '' then 'idempotency_key is empty'
    when octet_length(i.idempotency_key) > max_key_bytes() then 'idempotency_key is longer than ' || max_key_bytes() || ' bytes'
    -- A job of another origin under such a key would keep the schedule from being fired.
    when starts_with(i.idempotency_key, 'schedule:') and i.scheduled is not true
      then 'idempotency_key begins with schedule:, which is kept for the jobs of schedules'
    when i.exclusive_key = '' then 'exclusive_key is empty'
    when octet_length(i.exclusive_key) > max_key_bytes() then 'exclusive_key is longer than ' || max_key_bytes() || ' bytes'
    when i.run_at is not null and i.run_after is not null then 'both run_at and run_after'
    when not is_readable(i.run_at) then 'run_at ' || i.run_at || ' is not between 0001-01-02 and 9999-12-30'
    when i.run_after not between interval '-1000 years' and interval '1000 years'
      then 'run_after ' || i.run_after || ' is longer than 1000 years'
    when i.tags is not null and tags_problem(i.tags) is not null then tags_problem(i.tags)
    when i.metadata is not null and metadata_problem(i.metadata) is not null then metadata_problem(i.metadata)
    else payload_problem(i.payload)
  end;

create or replace function make_intent(
  kind text, payload jsonb, queue text default null, priority integer default null, run_at timestamptz default null,
  run_after interval default null, idempotency_key text default null, max_attempts integer default null,
  exclusive_key text default null, tags text[] default null, id uuid default null, strict boolean default false,
  metadata jsonb default null, scheduled boolean default false
) returns intent language sql volatile parallel safe
return row(kind, payload, queue, priority, run_at, run_after, idempotency_key, max_attempts, exclusive_key, tags,
  coalesce(id, uuidv7()), strict, metadata, null, null, null, scheduled, 1)::intent;

create or replace function with_fields(
  i intent, payload jsonb, id uuid, place integer, queue text, priority integer, max_attempts integer
) returns intent language sql immutable parallel safe
return row(i.kind, payload, queue, priority, i.run_at, i.run_after, i.idempotency_key, max_attempts, i.exclusive_key, i.tags,
  id, i.strict, i.metadata, i.origin, i.own, i.queues, i.scheduled, place)::intent;

-- The intents of a JSON array, in the order in which their keys and ids are to be taken: the same everywhere, so that two calls
-- that share some wait for each other, never in a circle. `problems`: elements that have one are left out.
create or replace function read_intents(jobs jsonb, problems text[] default null) returns intent[] language plpgsql stable as $$
begin
  return array(
    select with_fields(i, coalesce(i.payload, '{}'), coalesce(i.id, uuidv7()), e.ord::integer, i.queue, i.priority, i.max_attempts)
    from jsonb_array_elements(jobs) with ordinality e(job, ord)
    cross join lateral jsonb_populate_record(null::intent, e.job) i
    where problems[e.ord] is null
    order by i.idempotency_key, i.id, e.ord);
end $$;

-- Intents with the queue, priority and attempts that they leave out: see enqueue.
create or replace function complete_intents(intents intent[]) returns intent[] language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
  return array(
    select with_fields(i, i.payload, i.id, i.place, coalesce(i.queue, k.queue, 'default'), coalesce(i.priority, k.priority, 0),
      coalesce(i.max_attempts, k.max_attempts, usual_attempts()))
    from unnest(intents) i
    left join lateral (
      select k.queue, k.priority, k.max_attempts from kinds k
      where k.kind = i.kind and (i.queue is null or i.priority is null or i.max_attempts is null) offset 0) k on true);
end $$;

-- Called for an intent that is refused. `label`: what the caller calls its places, such as jobs[%s].
create or replace function refuse_intent(i intent, label text) returns boolean language plpgsql cost 1 as $$
begin
  perform refuse('LH003', 'invalid_argument', concat(format(label, i.place - 1) || ': ', intent_problem(i)), 'nothing was recorded');
  return false;
end $$;

-- The rows that intents become. `checked`: each is known to be as intent_problem wants it. Stable and plain, so that it is inlined.
create or replace function rows_of(intents intent[], at timestamptz, accepted boolean, checked boolean, label text) returns table (
  id uuid, created_at timestamptz, priority integer, max_attempts integer, queue text, kind text, payload jsonb,
  idempotency_key text, exclusive_key text, tags text[], run_at timestamptz, updated_at timestamptz, state job_state,
  is_accepted boolean, origin text, metadata jsonb
) language sql stable as $$
  select i.id, at, i.priority, i.max_attempts, i.queue, i.kind, i.payload, i.idempotency_key, i.exclusive_key,
    i.tags, coalesce(i.run_at, at + i.run_after, at), at,
    case when accepted and coalesce(i.run_at, at + i.run_after, at) <= at then 'queued'::job_state else 'created' end,
    accepted, i.origin, i.metadata
  from unnest(intents) i where checked or intent_problem(i) is null or refuse_intent(i, label)
$$;

-- What a new job notifies: its queue, or '@due' where it waits for its time.
create or replace function notified_by(i intent, at timestamptz) returns text language sql stable
return case when coalesce(i.run_at, at + i.run_after, at) <= at then i.queue else '@due' end;

-- Notify idle workers that these queues have work; '@due' means a job that waits for its time. Workers poll as well, so that a
-- notification may be lost.
create or replace function announce(queues text[]) returns void language plpgsql as $$
begin
  perform pg_notify(current_schema(), q) from unnest(queues) q;
end $$;

-- The same apart from the transaction that recorded the jobs. Transactions with a NOTIFY commit one after the other,
-- each when the one before it is on disk: producers enqueue most jobs with notify => false and send notifications afterwards, many at once.
-- One need not wait for the disk: a caller that sends it alone switches synchronous_commit off for that statement. Not this function:
-- the transaction that calls it may have recorded something.
-- `@queue of KIND` names the queue that the kind declares, which only the database knows.
-- Error: LH003 invalid_argument.
create or replace function notify_v1(names text[]) returns void language plpgsql as $$
begin
  perform require(false, format('a name is longer than %s bytes', max_name_bytes() + 10), 'give names of queues')
  from unnest(names) n where octet_length(n) > max_name_bytes() + 10;  -- 10: '@queue of '
  perform announce(array(
    select distinct case when starts_with(n, '@queue of ')
      then coalesce((select k.queue from kinds k where k.kind = substr(n, 11)), 'default') else n end
    from unnest(names) n));
end $$;

-- Insert the jobs of intents. Returns whether all are new: otherwise keys or ids of some are in use, and answers_to or found_jobs
-- says whose they are. Intents with keys or with ids of the caller's come in the order of read_intents.
-- `complete`: all have a queue, a priority and attempts. `certain`: no key and no id of them can be in use, and so the INSERT
-- needs no ON CONFLICT, which costs each row a search before and a WAL record after: a seventh of everything. Hence two INSERTs.
create or replace function record_intents(
  asked intent[], accepted boolean default true, notify boolean default false, complete boolean default false,
  certain boolean default false, checked boolean default false, label text default null
) returns boolean language plpgsql as $$
#variable_conflict use_variable
declare
  at constant timestamptz := clock();
  intents constant intent[] := case when complete then asked else complete_intents(asked) end;
  inserted integer;
begin
  if certain then
    insert into jobs (id, created_at, priority, max_attempts, queue, kind, payload, idempotency_key, exclusive_key, tags,
      run_at, updated_at, state, accepted, origin, metadata)
    select * from rows_of(intents, at, accepted, checked, label);
  else
    insert into jobs (id, created_at, priority, max_attempts, queue, kind, payload, idempotency_key, exclusive_key, tags,
      run_at, updated_at, state, accepted, origin, metadata)
    select * from rows_of(intents, at, accepted, checked, label)
    on conflict do nothing;
  end if;
  get diagnostics inserted = row_count;
  if not notify or inserted = 0 then
    null;
  elsif cardinality(intents) = 1 then
    perform pg_notify(current_schema(), notified_by(intents[1], at));
  else
    perform announce(array(
      select distinct notified_by(i, at) from unnest(intents) i
      where inserted = cardinality(intents) or exists (select from jobs j where j.id = i.id and j.created_at = at)));
  end if;
  return inserted = cardinality(intents);
end $$;

-- What became of each intent: its job, or the code of an error and what is wrong. A statement of its own after the INSERT: only a
-- new snapshot sees the row that a concurrent call has just committed. Without an error, `detail` names the fields in which
-- the job of a used key differs from the intent; what the intent leaves out differs in nothing.
-- `queues` and `kinds`: a used key whose job is of none of these is refused, and the refusal says nothing about that job.
create or replace function answers_to(intents intent[], queues text[] default null, kinds text[] default null)
returns setof submission language plpgsql stable as $$
begin
  return query
  select i.place, f.error, coalesce(f.detail, d.differs), s.id, s.kind, s.queue, s.state, client_status(s.state, s.reason),
    s.reason, s.progress, s.progress_note, s.run_at, s.created_at, s.updated_at, s.finished_at
  from unnest(intents) i
  left join lateral (
    select j.* from jobs j where j.idempotency_key = i.idempotency_key
    union all
    select j.* from jobs j where i.idempotency_key is null and j.id = i.id) j on true
  left join lateral (
    select nullif(concat_ws(', ', case when j.kind <> i.kind then 'kind' end,
      case when j.payload <> i.payload then 'payload' end, case when j.queue <> i.queue then 'queue' end,
      case when j.priority <> i.priority then 'priority' end), '') as differs
    where j.id <> i.id or i.strict) d on true
  left join lateral (
    select 'LH004' as error, 'the idempotency key belongs to a job outside these queues and kinds' as detail
    where j.queue <> all(answers_to.queues) or j.kind <> all(answers_to.kinds)
    union all
    select 'LH004', 'the idempotency key belongs to a job of another origin'
    where j.id <> i.id and i.own and j.origin is distinct from i.origin
    union all
    select 'LH004', format('idempotency key %L belongs to job %s with another %s', i.idempotency_key, j.id, d.differs)
    where d.differs is not null and i.strict
    union all
    select 'LH004', format('id %s belongs to a job with another idempotency key', i.id)
    where j.id is null and exists (select from jobs o where o.id = i.id)
    union all
    select '40001', 'the job was pruned meanwhile: repeat the call' where j.id is null
    limit 1) f on true
  left join lateral (select j.* where f.error is null) s on true
  order by i.place;
end $$;

create or replace function refuse_answer(answer submission, label text) returns void language plpgsql as $$
declare
  place constant text := answer.ord - 1;
  detail constant text := concat(format(label, place) || ': ', answer.detail);
begin
  case answer.error
    when '40001' then raise serialization_failure using message = 'job_pruned', hint = 'repeat the call';
    when 'LH003' then perform refuse('LH003', 'invalid_argument', detail, 'nothing was recorded', place);
    when 'LH008' then perform refuse('LH008', 'queue_not_allowed', detail, 'nothing was recorded', place);
    when 'LH004' then perform refuse('LH004', 'idempotency_conflict', detail,
      'use another key or id, or send what was sent first; nothing was recorded', place);
  end case;
end $$;

-- The jobs of intents of which record_intents found keys or ids in use, in the order of places: those that have the keys and ids.
-- Errors: LH004 idempotency_conflict.
create or replace function found_jobs(
  asked intent[], accepted boolean default true, notify boolean default false, label text default null
) returns uuid[] language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  answers submission[];
  wrong submission;
begin
  loop
    answers := array(select a from answers_to(asked) a);
    select * into wrong from unnest(answers) a where a.error is not null order by a.error = '40001', a.ord limit 1;
    exit when not found;
    if wrong.error <> '40001' then
      perform refuse_answer(wrong, label);
    end if;
    -- A job was pruned between the two statements: its key is free again.
    perform record_intents(asked, accepted, notify, label => label);
  end loop;
  perform vouch();
  return array(select a.id from unnest(answers) a order by a.ord);
end $$;

-- Record one intent, and return its job or the one that has its key or id.
create or replace function recorded(asked intent[], accepted boolean, notify boolean default false, checked boolean default false)
returns uuid language plpgsql as $$
begin
  if record_intents(asked, accepted, notify, checked => checked) then
    return asked[1].id;
  end if;
  return (found_jobs(asked, accepted, notify))[1];
end $$;

-- Record one job.  nothing -> queued, or created while run_at lies in the future.
-- A used idempotency key (or a repeated id) returns the job that has it: same id, no new row.
-- Null queue, priority or max_attempts: what the kind's task declares (declare_tasks), else 'default', 0, usual_attempts().
create or replace function enqueue_v1(
  kind text, payload jsonb default '{}', queue text default null, priority integer default null,
  run_at timestamptz default null, idempotency_key text default null, max_attempts integer default null,
  exclusive_key text default null, tags text[] default null, run_after interval default null, id uuid default null,
  strict boolean default false, notify boolean default true, metadata jsonb default null
) returns uuid language plpgsql as $$
declare
  asked constant intent[] := array[make_intent(
    kind, payload, queue, priority, run_at, run_after, idempotency_key, max_attempts, exclusive_key, tags, id, strict, metadata)];
begin
  if record_intents(asked, true, notify, complete => queue is not null and priority is not null and max_attempts is not null,
      certain => id is null and idempotency_key is null) then
    return asked[1].id;
  end if;
  return (found_jobs(asked, true, notify))[1];
end $$;

-- `jobs` is an array of objects with the argument names of enqueue, without notify. Returns the ids in the order of the array.
create or replace function enqueue_many_v1(jobs jsonb, notify boolean default true) returns setof uuid language plpgsql as $$
declare
  asked constant intent[] := check_intents(jobs, 'jobs[%s]');
begin
  if record_intents(asked, true, notify, label => 'jobs[%s]') then
    return query select i.id from unnest(asked) i order by i.place;
  else
    return query select unnest(found_jobs(asked, true, notify, 'jobs[%s]'));
  end if;
end $$;

-- Many jobs that differ only in their payload. `intent` is an object with the argument names of enqueue, without payload, id and
-- idempotency_key: those belong to one job. `payloads` is an array of objects; `ids`, if given, has an id for each. Returns
-- the ids in the order of the array. What all jobs share is read once: half of what enqueue_many costs.
-- Errors besides: 23505 (an id twice, or in another batch at the same moment).
create or replace function enqueue_batch_v1(intent jsonb, payloads jsonb, ids uuid[] default null, notify boolean default true)
returns setof uuid language plpgsql set enable_seqscan = off  -- a plan made for an empty table must not outlive it
as $$
declare
  new_ids uuid[] := ids;
  wanted integer;
  there uuid[] := '{}';
  intents intent[];
  keyed uuid;
begin
  perform require(jsonb_typeof(intent) = 'object' and not intent ?| array['payload', 'id', 'idempotency_key'],
    'intent is not an object without payload, id and idempotency_key', 'use enqueue_many for jobs that differ in more than their payload');
  perform require(jsonb_typeof(payloads) = 'array', 'payloads is not a JSON array', 'send an array of objects');
  wanted := jsonb_array_length(payloads);
  perform require(case when cardinality(new_ids) > 0 then array_ndims(new_ids) = 1 and array_lower(new_ids, 1) = 1 else true end,
    'ids is not a plain array', 'give one id for each, or none at all');
  perform require(coalesce(cardinality(new_ids) = wanted and array_position(new_ids, null) is null, true),
    format('%s ids for %s payloads', cardinality(new_ids), wanted), 'give one id for each, or none at all');
  intents := complete_intents(check_intents(jsonb_build_array(intent), 'intent'));
  perform refuse_intent(i, 'intent') from unnest(intents) i where intent_problem(i) is not null;
  if new_ids is null then
    new_ids := array(select uuidv7() from generate_series(1, wanted));
  elsif wanted > 0 then
    -- A repetition waits for a first try that is still under way, and then sees what it has recorded.
    perform pg_advisory_xact_lock(hashtextextended(current_schema() || '.batch.' || new_ids[1], 0));
    there := array(select j.id from jobs j where j.id = any(new_ids));
  end if;
  intents := array(
    select with_fields(i, p.payload, new_ids[p.ord], p.ord::integer, i.queue, i.priority, i.max_attempts)
    from unnest(intents) i cross join jsonb_array_elements(payloads) with ordinality p(payload, ord)
    where new_ids[p.ord] <> all(there) and (payload_problem(p.payload) is null
      or refuse_intent(with_fields(i, p.payload, null, p.ord::integer, i.queue, i.priority, i.max_attempts), 'payloads[%s]')));
  perform record_intents(intents, true, notify, complete => true, certain => true, checked => true);
  if there <> '{}' then
    -- A repeated call: its jobs are there.
    select j.id into keyed from jobs j where j.id = any(new_ids) and j.idempotency_key is not null limit 1;
    if found then
      perform refuse('LH004', 'idempotency_conflict', format('id %s belongs to a job with an idempotency key', keyed), 'use another id');
    end if;
    perform vouch();
  end if;
  return query select unnest(new_ids);
end $$;

-- Return the intents of a JSON array that a caller wrote, or refuse it and name the element and the field. The INSERT checks what
-- the values mean. The handler makes a subtransaction that only reads.
create or replace function check_intents(jobs jsonb, label text) returns intent[] language plpgsql as $$
begin
  perform require(jsonb_typeof(jobs) = 'array', 'jobs is not a JSON array', 'send an array of objects');
  -- Otherwise a misspelt field would be ignored, and its job recorded without it.
  perform require(false, format('%s: unknown field %L', format(label, e.ord - 1), case jsonb_typeof(e.job)
      when 'object' then (select k from jsonb_object_keys(e.job - intent_fields()) k limit 1) else '(not an object)' end),
    'the fields are the argument names of enqueue')
  from jsonb_array_elements(jobs) with ordinality e(job, ord)
  where case jsonb_typeof(e.job) when 'object' then e.job - intent_fields() <> '{}' else true end;
  return read_intents(jobs);
exception when data_exception then
  perform refuse('LH003', 'invalid_argument', unreadable_field(jobs, label), 'priority and max_attempts are whole numbers,'
    ' run_at is a time, run_after a length of time, tags a list of texts, id a UUID; nothing was recorded');
end $$;

-- Return which field of which element has a value that its type does not accept. Reads the fields one by one.
create or replace function unreadable_field(jobs jsonb, label text) returns text language plpgsql stable as $$
declare
  bad record;
begin
  for bad in
    select e.ord - 1 as place, f.key as field, f.value
    from jsonb_array_elements(jobs) with ordinality e(job, ord) cross join lateral jsonb_each(e.job) f
    where f.key <> 'payload' order by e.ord
  loop
    begin
      perform jsonb_populate_record(null::intent, jsonb_build_object(bad.field, bad.value));
    exception when data_exception then
      return format('%s.%s %s: %s', format(label, bad.place), bad.field,
        case when jsonb_typeof(bad.value) in ('array', 'object') then 'is a JSON ' || jsonb_typeof(bad.value)
          else left(bad.value::text, 80) end, left(sqlerrm, 200));
    end;
  end loop;
  return null;
end $$;
