-- How operators find jobs: a filter is a JSON object whose fields must all hold.
--   state: one of the six, or an array of them · kind · queue · tag · exclusive_key · error_class: of the latest recorded attempt, whole
--   or its last part · created_after, created_before, finished_before · queues, kinds: arrays, any of which · payload: an object that the
--   job's own contains · metadata: key=value, or an array of these, all of which the job's own has.
-- No scan reads more jobs than its caller allows: one that was cut short returns where to continue.
-- Error: LH003 invalid_argument.

create or replace function check_filter(filter jsonb) returns void language plpgsql as $$
declare
  -- Each field with the JSON types that it may have.
  fields constant jsonb := '{"state": ["string", "array"], "kind": ["string"], "queue": ["string"], "tag": ["string"],
    "exclusive_key": ["string"], "error_class": ["string"], "created_after": ["string"], "created_before": ["string"],
    "finished_before": ["string"], "queues": ["array"], "kinds": ["array"], "payload": ["object"], "metadata": ["string", "array"]}';
  bad record;
begin
  perform require(jsonb_typeof(filter) = 'object', 'filter is not a JSON object', 'give {} for all jobs');
  select e.key, e.value, fields ? e.key as known into bad from jsonb_each(filter) e
  where coalesce(not fields -> e.key ? jsonb_typeof(e.value), true) limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', case when bad.known then format('filter field %s is %s', bad.key, left(filter ->> bad.key, 100))
        else format('filter has no field %L', left(bad.key, 100)) end,
      format('fields are %s; queues and kinds are arrays, state and metadata may be one, payload is an object, everything else is a text',
        (select string_agg(k, ', ') from jsonb_object_keys(fields) k)));
  end if;
  perform require(coalesce(listed_in(filter, 'state') <@ '["created", "queued", "running", "success", "retry", "dead"]', true),
    format('state %s', left(filter ->> 'state', 100)), 'states are created, queued, running, success, retry, dead');
  -- An empty array would choose every job.
  perform require(filter -> 'metadata' is distinct from '[]' and not exists (select from jsonb_array_elements(listed_in(filter, 'metadata')) p
      where jsonb_typeof(p) <> 'string' or p #>> '{}' !~ '^[^=]+='),
    format('filter field metadata is %L', left(filter ->> 'metadata', 100)), 'write key=value');
  -- A text that is no time is refused by PostgreSQL itself.
  perform check_moment('created_after', (filter ->> 'created_after')::timestamptz),
    check_moment('created_before', (filter ->> 'created_before')::timestamptz),
    check_moment('finished_before', (filter ->> 'finished_before')::timestamptz);
end $$;

-- What a filter names in a field that may be one text or an array of them, as an array; null: nothing.
create or replace function listed_in(filter jsonb, field text) returns jsonb language sql immutable parallel safe
return case jsonb_typeof(filter -> field) when 'string' then jsonb_build_array(filter -> field)
  when 'array' then filter -> field end;

-- Whether metadata have every pair key=value. As text, so that n=2 finds the number and the text.
create or replace function metadata_fit(pairs jsonb, metadata jsonb) returns boolean language sql immutable parallel safe
return not exists (select from jsonb_array_elements_text(pairs) p
  where metadata ->> split_part(p, '=', 1) is distinct from substr(p, strpos(p, '=') + 1));

-- Whether a job matches, its error class and its payload aside. A single expression, so that it is inlined.
create or replace function job_fits(filter jsonb, j jobs) returns boolean language sql stable parallel safe
as $$ select (not filter ? 'kind' or j.kind = filter ->> 'kind') and (not filter ? 'queue' or j.queue = filter ->> 'queue')
  and (not filter ? 'kinds' or filter -> 'kinds' ? j.kind) and (not filter ? 'queues' or filter -> 'queues' ? j.queue)
  and (not filter ? 'state' or filter -> 'state' ? j.state::text)
  and (not filter ? 'tag' or coalesce(filter ->> 'tag' = any(j.tags), false))
  and (not filter ? 'exclusive_key' or coalesce(j.exclusive_key = filter ->> 'exclusive_key', false))
  and (not filter ? 'metadata' or metadata_fit(listed_in(filter, 'metadata'), j.metadata))
  and (not filter ? 'created_after' or j.created_at >= (filter ->> 'created_after')::timestamptz)
  and (not filter ? 'created_before' or j.created_at < (filter ->> 'created_before')::timestamptz)
  and (not filter ? 'finished_before' or coalesce(j.finished_at < (filter ->> 'finished_before')::timestamptz, false)) $$;

create or replace function last_error_class(job_id uuid) returns text language sql stable
as $$ select a.error_class from attempts a where a.job_id = last_error_class.job_id order by a.attempt desc limit 1 $$;

-- Whether a job that fits also has the error class (the whole name, or its last part) and the payload of the filter.
create or replace function contents_fit(filter jsonb, id uuid) returns boolean language sql stable as $$
  select (not filter ? 'error_class' or (
      select coalesce(c = w or right(c, char_length(w) + 1) = '.' || w, w is null)
      from (select last_error_class(contents_fit.id) as c, filter ->> 'error_class' as w) e))
    and (not filter ? 'payload' or exists (select from jobs j where j.id = contents_fit.id and j.payload @> (filter -> 'payload')))
$$;

-- The smallest UUIDv7 of a moment: ids are in the order of creation.
create or replace function id_at(moment timestamptz) returns uuid language sql immutable parallel safe
return case when moment is not null then
  (lpad(to_hex(greatest(0, extract(epoch from moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid end;

-- The jobs that match, at most `count`, after reading no more than `scan`, from a place on. Each has its own place; when
-- the scan was cut short, a last row without an id has the place where it ended. The order:
--   one of success, dead        latest finished first
--   queued                      by queue and kind in claim order, then what is parked, by exclusive key
--   running                     by queue, the lease that ends first first
--   created, retry              latest created first; straight from the index of those that wait, while they are few
--   anything else, or by_ids    latest created first
--   from the place '["waiting"]'  created and retry that are accepted, by their time
-- Jobs whose creator's clock is more than an hour off may be missed by created_after and created_before.
create or replace function find_jobs(filter jsonb, after jsonb, count integer, scan integer, by_ids boolean default false)
returns table (id uuid, place jsonb) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
  states jsonb := listed_in(filter, 'state');
  only_state text := case jsonb_array_length(states) when 1 then states ->> 0 end;
  way text := coalesce(after ->> 0, case when only_state in ('success', 'dead') then 'finished'
    when only_state in ('queued', 'running') and not by_ids then only_state else 'ids' end);
  scanned integer := 0;
  given integer := 0;
  walk refcursor;
  job record;
begin
  filter := case when states is null then filter else filter || jsonb_build_object('state', states) end;
  if way = 'due' or way = 'ids' and after is null and only_state in ('created', 'retry') then
    -- Those that wait are sorted for each page if they are few. Both go by id: a cursor of one is good for the other.
    way := case when (select count(*) <= 2000 from (select from jobs j
      where j.state in ('created', 'retry') and j.accepted limit 2001) t) then 'due' else 'ids' end;
  end if;
  loop
    walk := open_walk(way, filter, only_state, after);
    loop
      fetch walk into job;
      exit when not found or job.beyond;
      scanned := scanned + 1;
      find_jobs.place := job.place;
      if job.fits and (not filter ?| array['error_class', 'payload'] or contents_fit(filter, job.id)) then
        given := given + 1;
        find_jobs.id := job.id;
        return next;
      end if;
      exit when given >= count or scanned >= scan;
    end loop;
    close walk;
    exit when given >= count or scanned >= scan;
    way := case when way = 'queued' then 'parked' when way = 'due' and only_state = 'created' then 'unaccepted' end;
    exit when way is null;
    after := null;
  end loop;
  if given < count and scanned >= scan then
    find_jobs.id := null;
    return next;
  end if;
end $$;

-- One order of the jobs from a place on, along an index; `beyond`: nothing that matches comes after. Stable, so that it reads the
-- snapshot of its caller: rows are shown as they were when the filter held.
create or replace function open_walk(way text, filter jsonb, only_state text, place jsonb) returns refcursor language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
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
        (way = 'ids' or not j.accepted) and job_fits(filter, j) as fits
      from jobs j where j.id < from_id and j.id >= to_id order by j.id desc;
  elsif way = 'due' then
    open walk for
      -- Collected first: in the order of ids the planner would rather scan the whole history.
      with waiting as materialized (
        select j.id, job_fits(filter, j) as fits from jobs j
        where j.state in ('created', 'retry') and j.accepted and j.run_at > '-infinity')
      select w.id, false as beyond, jsonb_build_array('due', w.id) as place, w.fits
      from waiting w where w.id < from_id and w.id >= to_id order by w.id desc;
  elsif way = 'waiting' then
    open walk for
      select j.id, false as beyond, jsonb_build_array('waiting', j.run_at, j.id) as place, job_fits(filter, j) as fits
      from jobs j
      where j.state in ('created', 'retry') and j.accepted
        and (j.run_at, j.id) > (coalesce((place ->> 1)::timestamptz, '-infinity'), coalesce((place ->> 2)::uuid, lowest))
      order by j.run_at, j.id;
  elsif way = 'finished' then
    open walk for
      select j.id, false as beyond, jsonb_build_array('finished', j.finished_at, j.id) as place, job_fits(filter, j) as fits
      from jobs j
      where j.state in ('success', 'dead') and j.state = only_state::job_state
        and (j.finished_at, j.id) < (coalesce((place ->> 1)::timestamptz, 'infinity'), coalesce((place ->> 2)::uuid, highest))
      order by j.finished_at desc, j.id desc;
  elsif way = 'queued' then
    open walk for
      select j.id, coalesce(j.queue > queue_name or j.queue = queue_name and j.kind > kind_name, false) as beyond,
        jsonb_build_array('queued', j.queue, j.kind, -j.priority, j.id) as place, job_fits(filter, j) as fits
      from jobs j
      where j.state = 'queued' and not j.parked and (j.queue, j.kind, -j.priority, j.id) > (
        coalesce(place ->> 1, queue_name, ''), coalesce(place ->> 2, case when queue_name is not null then kind_name end, ''),
        coalesce((place ->> 3)::smallint, (-32768)::smallint), coalesce((place ->> 4)::uuid, lowest))
      order by j.queue, j.kind, -j.priority, j.id;
  elsif way = 'parked' then
    open walk for
      select j.id, coalesce(j.exclusive_key > filter ->> 'exclusive_key', false) as beyond,
        jsonb_build_array('parked', j.exclusive_key, j.queue, j.kind, -j.priority, j.id) as place, j.parked and job_fits(filter, j) as fits
      from jobs j
      where j.state = 'queued' and j.exclusive_key is not null and (j.exclusive_key, j.queue, j.kind, -j.priority, j.id) > (
        coalesce(place ->> 1, filter ->> 'exclusive_key', ''), coalesce(place ->> 2, ''), coalesce(place ->> 3, ''),
        coalesce((place ->> 4)::smallint, (-32768)::smallint), coalesce((place ->> 5)::uuid, lowest))
      order by j.exclusive_key, j.queue, j.kind, -j.priority, j.id;
  elsif way = 'running' then
    open walk for
      select j.id, coalesce(j.queue > queue_name, false) as beyond,
        jsonb_build_array('running', j.queue, j.lease_expires_at, j.id) as place, job_fits(filter, j) as fits
      from jobs j
      where j.state = 'running' and (j.queue, j.lease_expires_at, j.id) > (
        coalesce(place ->> 1, queue_name, ''), coalesce((place ->> 2)::timestamptz, '-infinity'), coalesce((place ->> 3)::uuid, lowest))
      order by j.queue, j.lease_expires_at, j.id;
  else
    perform refuse_cursor();
  end if;
  return walk;
end $$;

create or replace function refuse_cursor() returns void language sql
as $$ select require(false, 'cursor', 'give the one that the page before came with, and its filter') $$;

-- A job for operators; with `whole`, what it carries included. Attempts are the latest 100, oldest first. A page that was cut short ends
-- with a cursor and no job.
create or replace function job_rows(id uuid, cursor_here text, whole boolean) returns setof job_row language sql stable as $$
  select j.id, j.kind, j.queue, j.state, client_status(j.state, j.reason), j.priority, j.attempt, j.retry_count, j.max_attempts,
    j.exclusive_key, j.tags, j.parked, j.accepted, j.reason,
    case when j.state is distinct from 'success' then last_error_class(j.id) end, j.progress, j.progress_note, j.lease_owner,
    j.lease_expires_at, j.run_at, j.created_at, j.updated_at, j.claimed_at, j.finished_at, j.metadata, job_rows.cursor_here,
    case when whole then j.idempotency_key end, case when whole then j.reason_detail end, case when whole then j.payload end,
    case when whole then j.result end, case when whole then (
      select coalesce(jsonb_agg(to_jsonb(a) - 'job_id' order by a.attempt), '[]')
      from (select * from attempts a where a.job_id = j.id order by a.attempt desc limit 100) a) end
  from (select) one left join jobs j on j.id = job_rows.id
  where j.id is not null or job_rows.cursor_here is not null
$$;

-- The jobs that fit a filter, a page at a time, without what they carry. Each row has the cursor that continues after it; the last one
-- of all has none. A last row without an id means that `scan` jobs were read: the next call continues with its cursor; the page is
-- short, or empty, without being the last. A full page has a cursor too if the scan ended before the next job was found.
-- A filter with queues or kinds is for callers that may see no others: their cursors name no queue, kind or key either,
-- and what is queued or running then comes latest created first.
create or replace function list_jobs_v1(
  filter jsonb default '{}', cursor text default null, count integer default 50, scan integer default 10000
) returns setof job_row language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  narrow boolean := filter ?| array['queues', 'kinds'];
  after jsonb := list_jobs_v1.cursor::jsonb;
begin
  perform check_filter(filter);
  if narrow and after ->> 0 not in ('ids', 'due', 'unaccepted', 'finished') then
    perform refuse_cursor();
  end if;
  perform require(count between 1 and 1000 and scan between 1 and 1000000, format('count %s, scan %s', count, scan),
    'ask for 1 to 1000 jobs and let 1 to 1000000 be read');
  return query
    select r.* from (
      select f.*, f.id is null or lead(f.nth) over (order by f.nth) is not null as more  -- one job is looked for beyond the page
      from find_jobs(filter, after, count + 1, scan, narrow) with ordinality f(id, place, nth)) f
    cross join lateral job_rows(f.id, case when f.more then f.place::text end, false) r where f.nth <= count order by f.nth;
end $$;

-- Everything about one job; no row: there is none.
create or replace function job_detail_v1(job_id uuid) returns setof job_row language sql stable
as $$ select * from job_rows(job_id, null, true) $$;
