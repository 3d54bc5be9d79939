-- How operators choose jobs: a JSON object whose fields must all hold.
--   state: one of the six, or an array of them · kind · queue · tag · exclusive_key · error_class: of the latest
--   recorded attempt, whole or its last part · created_after, created_before · queues, kinds: arrays, any of which · payload: an object that the
--   job's own contains.
-- No path through the jobs walks further than its caller allows: a look that was cut short says where to go on.

create or replace function check_filter(filter jsonb) returns void language plpgsql
as $$
declare
  field text;
begin
  if jsonb_typeof(filter) is distinct from 'object' then
    perform refuse('LH003', 'invalid_argument', 'filter is not a JSON object', 'give {} for all jobs');
  end if;
  field := (select k from jsonb_object_keys(filter) k where k not in ('state', 'kind', 'queue', 'tag', 'exclusive_key',
    'error_class', 'created_after', 'created_before', 'queues', 'kinds', 'payload') limit 1);
  if field is not null then
    perform refuse('LH003', 'invalid_argument', format('filter has no field %L', left(field, 100)),
      'fields are state, kind, queue, tag, exclusive_key, error_class, created_after, created_before, queues, kinds, payload');
  end if;
  field := (
    select e.key from jsonb_each(filter) e
    where case when e.key in ('queues', 'kinds') then jsonb_typeof(e.value) <> 'array'
               when e.key = 'state' then jsonb_typeof(e.value) not in ('string', 'array')
               when e.key = 'payload' then jsonb_typeof(e.value) <> 'object'
               else jsonb_typeof(e.value) <> 'string' end limit 1);
  if field is not null then
    perform refuse('LH003', 'invalid_argument', format('filter field %s is %s', field, left(filter ->> field, 100)),
      'queues and kinds are arrays, state may be one, payload is an object, everything else is a text');
  end if;
  if exists (select from jsonb_array_elements(states_of(filter)) s
             where not s <@ '["created", "queued", "running", "success", "retry", "dead"]') then
    perform refuse('LH003', 'invalid_argument', format('state %s', left(filter ->> 'state', 100)),
      'states are created, queued, running, success, retry, dead');
  end if;
  -- A text that is no time is refused by PostgreSQL itself.
  perform check_moment('created_after', (filter ->> 'created_after')::timestamptz),
    check_moment('created_before', (filter ->> 'created_before')::timestamptz);
end $$;

-- The states that a filter names, as an array; null: it names none.
create or replace function states_of(filter jsonb) returns jsonb language sql immutable parallel safe
return case jsonb_typeof(filter -> 'state') when 'string' then jsonb_build_array(filter -> 'state')
  when 'array' then filter -> 'state' end;

-- Whether a job fits, its error class and its payload aside. A single expression, so that it is inlined.
create or replace function job_fits(
  filter jsonb, state job_state, kind text, queue text, tags text[], exclusive_key text, created_at timestamptz
) returns boolean language sql stable parallel safe
return (not filter ? 'kind' or kind = filter ->> 'kind') and (not filter ? 'queue' or queue = filter ->> 'queue')
  and (not filter ? 'kinds' or filter -> 'kinds' ? kind) and (not filter ? 'queues' or filter -> 'queues' ? queue)
  and (not filter ? 'state' or filter -> 'state' ? state::text)
  and (not filter ? 'tag' or coalesce(filter ->> 'tag' = any(tags), false))
  and (not filter ? 'exclusive_key' or coalesce(exclusive_key = filter ->> 'exclusive_key', false))
  and (not filter ? 'created_after' or created_at >= (filter ->> 'created_after')::timestamptz)
  and (not filter ? 'created_before' or created_at < (filter ->> 'created_before')::timestamptz);

-- The error class of the latest recorded attempt.
create or replace function last_error_class(job_id uuid) returns text language sql stable
as $$ select a.error_class from attempts a where a.job_id = last_error_class.job_id order by a.attempt desc limit 1 $$;

-- Whether the latest error is of this class: its whole name, or the last part of it, as people know it.
create or replace function error_fits(job_id uuid, wanted text) returns boolean language sql stable
as $$
  select coalesce(c = wanted or right(c, char_length(wanted) + 1) = '.' || wanted, wanted is null)
  from last_error_class(job_id) c
$$;

-- Whether the job's payload contains what the filter names.
create or replace function payload_fits(filter jsonb, job_id uuid) returns boolean language sql stable
as $$ select exists (select from jobs j where j.id = payload_fits.job_id and j.payload @> (filter -> 'payload')) $$;

-- The smallest UUIDv7 of a moment: ids are in the order of creation.
create or replace function id_at(moment timestamptz) returns uuid language sql immutable parallel safe
return case when moment is not null then
  (lpad(to_hex(greatest(0, extract(epoch from moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid end;

-- The jobs that fit, at most `count`, looking at no more than `scan`, from a place on. Each comes with its own place;
-- when the look was cut short, a last row without an id says how far it went. Which way it goes:
--   one of success, dead        latest finished first
--   queued                      by queue and kind in claim order, then what is parked, by exclusive key
--   running                     by queue, the lease that ends first first
--   created, retry              latest created first; straight from the index of those that wait, while they are few
--   anything else, or by_ids    latest created first
-- Jobs created by somebody whose clock is more than an hour off may be missed by created_after and created_before.
create or replace function find_jobs(filter jsonb, after jsonb, count integer, scan integer, by_ids boolean default false)
returns table (id uuid, place jsonb) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
  states jsonb := states_of(filter);
  only_state text := case jsonb_array_length(states) when 1 then states ->> 0 end;
  way text := coalesce(after ->> 0, case when only_state in ('success', 'dead') then 'finished'
    when only_state in ('queued', 'running') and not by_ids then only_state else 'ids' end);
  looked integer := 0;
  given integer := 0;
  walk refcursor;
  job record;
begin
  filter := case when states is null then filter else filter || jsonb_build_object('state', states) end;
  if way = 'due' or way = 'ids' and after is null and only_state in ('created', 'retry') then
    way := case when few_wait() then 'due' else 'ids' end;    -- both go by id: a cursor of one is good for the other
  end if;
  loop
    walk := open_walk(way, filter, only_state, after);
    loop
      fetch walk into job;
      exit when not found or job.beyond;
      looked := looked + 1;
      if job.fits and (not filter ? 'error_class' or error_fits(job.id, filter ->> 'error_class'))
        and (not filter ? 'payload' or payload_fits(filter, job.id)) then
        given := given + 1;
        find_jobs.id := job.id;
        find_jobs.place := job.place;
        return next;
      end if;
      if given >= count then
        close walk;
        return;
      end if;
      if looked >= scan then
        close walk;
        find_jobs.id := null;
        find_jobs.place := job.place;
        return next;
        return;
      end if;
    end loop;
    close walk;
    way := case when way = 'queued' then 'parked' when way = 'due' and only_state = 'created' then 'unaccepted' end;
    exit when way is null;
    after := null;
  end loop;
end $$;

-- Whether the jobs that wait for their time are few enough to be sorted for each page.
create or replace function few_wait() returns boolean language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
  return (select count(*) <= 2000 from (
    select from jobs j where j.state in ('created', 'retry') and j.accepted limit 2001) t);
end $$;

-- One way through the jobs, each from a place on, straight along an index; `beyond`: nothing that fits comes after.
create or replace function open_walk(way text, filter jsonb, only_state text, place jsonb) returns refcursor language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
  walk refcursor;
  queue_name text := filter ->> 'queue';
  kind_name text := filter ->> 'kind';
  lowest constant uuid := '00000000-0000-0000-0000-000000000000';
  highest constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  from_id uuid := case when way in ('ids', 'due', 'unaccepted') then least(
    coalesce((place ->> 1)::uuid, highest), id_at((filter ->> 'created_before')::timestamptz + interval '1 hour')) end;
  to_id uuid := coalesce(id_at((filter ->> 'created_after')::timestamptz - interval '1 hour'), lowest);
begin
  if way in ('ids', 'unaccepted') then
    open walk for
      select j.id, false as beyond, jsonb_build_array(way, j.id) as place,
        (way = 'ids' or not j.accepted)
          and job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
      from jobs j where j.id < from_id and j.id >= to_id order by j.id desc;
  elsif way = 'due' then
    open walk for
      -- Gathered first: in the order of ids the planner would rather walk over all of history.
      with waiting as materialized (
        select j.id, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at from jobs j
        where j.state in ('created', 'retry') and j.accepted and j.run_at > '-infinity')
      select j.id, false as beyond, jsonb_build_array('due', j.id) as place,
        job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
      from waiting j where j.id < from_id and j.id >= to_id order by j.id desc;
  elsif way = 'finished' then
    open walk for
      select j.id, false as beyond, jsonb_build_array('finished', j.finished_at, j.id) as place,
        job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
      from jobs j
      where j.state in ('success', 'dead') and j.state = only_state::job_state
        and (j.finished_at, j.id) < (coalesce((place ->> 1)::timestamptz, 'infinity'), coalesce((place ->> 2)::uuid, highest))
      order by j.finished_at desc, j.id desc;
  elsif way = 'queued' then
    open walk for
      select j.id, coalesce(j.queue > queue_name or j.queue = queue_name and j.kind > kind_name, false) as beyond,
        jsonb_build_array('queued', j.queue, j.kind, -j.priority, j.id) as place,
        job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
      from jobs j
      where j.state = 'queued' and not j.parked and (j.queue, j.kind, -j.priority, j.id) > (
        coalesce(place ->> 1, queue_name, ''), coalesce(place ->> 2, case when queue_name is not null then kind_name end, ''),
        coalesce((place ->> 3)::smallint, (-32768)::smallint), coalesce((place ->> 4)::uuid, lowest))
      order by j.queue, j.kind, -j.priority, j.id;
  elsif way = 'parked' then
    open walk for
      select j.id, coalesce(j.exclusive_key > filter ->> 'exclusive_key', false) as beyond,
        jsonb_build_array('parked', j.exclusive_key, j.queue, j.kind, -j.priority, j.id) as place,
        j.parked and job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
      from jobs j
      where j.state = 'queued' and j.exclusive_key is not null and (j.exclusive_key, j.queue, j.kind, -j.priority, j.id) > (
        coalesce(place ->> 1, filter ->> 'exclusive_key', ''), coalesce(place ->> 2, ''), coalesce(place ->> 3, ''),
        coalesce((place ->> 4)::smallint, (-32768)::smallint), coalesce((place ->> 5)::uuid, lowest))
      order by j.exclusive_key, j.queue, j.kind, -j.priority, j.id;
  elsif way = 'running' then
    open walk for
      select j.id, coalesce(j.queue > queue_name, false) as beyond,
        jsonb_build_array('running', j.queue, j.lease_expires_at, j.id) as place,
        job_fits(filter, j.state, j.kind, j.queue, j.tags, j.exclusive_key, j.created_at) as fits
      from jobs j
      where j.state = 'running' and (j.queue, j.lease_expires_at, j.id) > (
        coalesce(place ->> 1, queue_name, ''), coalesce((place ->> 2)::timestamptz, '-infinity'),
        coalesce((place ->> 3)::uuid, lowest))
      order by j.queue, j.lease_expires_at, j.id;
  else
    perform refuse('LH003', 'invalid_argument', 'cursor', 'give the one that the page before came with, and its filter');
  end if;
  return walk;
end $$;
