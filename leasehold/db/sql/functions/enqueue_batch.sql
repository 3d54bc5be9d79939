-- Record many intents that differ only in their payload, all or none.  nothing -> queued or created, as enqueue does.
-- `intent` is an object with the argument names of enqueue, without payload, id and idempotency_key: those belong to one
-- job. `payloads` is an array of objects; `ids`, if given, has an id for each. Gives the ids in the order of the array.
-- What all jobs share is checked and read once, so this is the cheapest way in: half of what enqueue_many costs.
-- Errors: LH003 invalid_argument, LH004 idempotency_conflict, 23505 (an id twice, or in another batch at the same moment).

-- Called only for a payload that is no good.
create or replace function refuse_payload(payload jsonb, ord bigint) returns jsonb language plpgsql
as $$
begin
  perform refuse('LH003', 'invalid_argument',
    format('payloads[%s]: %s', ord - 1, intent_problem('k', 'q', 0, 1, payload, null, null, null)), 'nothing was recorded');
  return null;
end $$;

create or replace function enqueue_batch_v1(intent jsonb, payloads jsonb, ids uuid[] default null, notify boolean default true)
returns setof uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off  -- a plan made for an empty table must not outlive it
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  shared record;
  due timestamptz;
  begin_as job_state;
  new_ids uuid[] := enqueue_batch_v1.ids;
  wanted integer;
  inserted integer;
  there uuid[] := '{}';
  foreign_job uuid;
begin
  if jsonb_typeof(intent) is distinct from 'object' or intent ?| array['payload', 'id', 'idempotency_key'] then
    perform refuse('LH003', 'invalid_argument', 'intent is not an object without payload, id and idempotency_key',
      'use enqueue_many for jobs that differ in more than their payload');
  end if;
  if jsonb_typeof(payloads) is distinct from 'array' then
    perform refuse('LH003', 'invalid_argument', 'payloads is not a JSON array', 'send an array of objects');
  end if;
  wanted := jsonb_array_length(payloads);
  if cardinality(new_ids) <> wanted or array_position(new_ids, null) is not null then
    perform refuse('LH003', 'invalid_argument', format('%s ids for %s payloads', cardinality(new_ids), wanted),
      'give one id for each, or none at all');
  end if;
  perform check_intents(jsonb_build_array(intent));
  select * into shared from intents_of(jsonb_build_array(intent));
  due := coalesce(shared.run_at, at + shared.run_after, at);
  begin_as := case when due > at then 'created' else 'queued' end;
  if new_ids is null then
    new_ids := array(select uuidv7() from generate_series(1, wanted));
  elsif wanted > 0 then
    -- A repetition waits for a first try that is still under way, and then sees what it has recorded. So the INSERT needs
    -- no ON CONFLICT, which costs each row a look before, a record in the WAL after: a seventh of everything.
    perform pg_advisory_xact_lock(hashtextextended(current_schema() || '.batch.' || new_ids[1], 0));
    there := array(select j.id from jobs j where j.id = any(new_ids));
  end if;
  insert into jobs (id, created_at, priority, max_attempts, queue, kind, payload, exclusive_key, tags, run_at,
    updated_at, state)
  select new_ids[p.ord], at, shared.priority, shared.max_attempts, shared.queue, shared.kind,
    case when jsonb_typeof(p.payload) = 'object'
           and (pg_column_size(p.payload) <= 440 and not has_long_number(p.payload)
             or json_fault('payload', p.payload) is null) then p.payload
         else refuse_payload(p.payload, p.ord) end,
    shared.exclusive_key, shared.tags, due, at, begin_as
  from jsonb_array_elements(payloads) with ordinality p(payload, ord)
  where new_ids[p.ord] <> all(there);
  get diagnostics inserted = row_count;
  if notify and inserted > 0 then
    perform announce(array[case begin_as when 'queued' then shared.queue else '@due' end]);
  end if;
  if inserted < wanted then
    -- A repeated call: its jobs are there.
    select j.id into foreign_job from jobs j where j.id = any(new_ids) and j.idempotency_key is not null limit 1;
    if found then
      perform refuse('LH004', 'idempotency_conflict',
        format('id %s belongs to a job with an idempotency key', foreign_job), 'use another id');
    end if;
    perform vouch();
  end if;
  return query select unnest(new_ids);
end $$;

create or replace function enqueue_batch(intent jsonb, payloads jsonb, ids uuid[] default null, notify boolean default true)
returns setof uuid language plpgsql
security definer set search_path from current
as $$
begin
  perform check_readable(jsonb_build_array(intent), 'intent');
  return query select enqueue_batch_v1(intent, payloads, ids, notify);
end $$;
