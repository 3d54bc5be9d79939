-- Make schedules and change them: by whoever operates (put, enable, disable, remove), and by code that declares (sync).
-- Errors: LH002 job_unknown, LH003 invalid_argument.
--
-- A definition is a JSON object whose fields are the arguments of schedule_put. Whoever changes the rule itself (every,
-- cron, time zone, start, end) ends a claim under way and starts anew: due times count from now on. Any other change
-- leaves the next run where it is.

-- A length of time as seconds; a month has none.
create or replace function exact_length(what text, length interval) returns interval language plpgsql immutable
as $$
begin
  if length not between interval '-30000 days' and interval '30000 days' then
    perform refuse('LH003', 'invalid_argument', format('%s of %s', what, length), 'give less than 30000 days');
  end if;
  if extract(year from length) <> 0 or extract(month from length) <> 0 then
    perform refuse('LH003', 'invalid_argument', format('%s of %s', what, length),
      'months and years have no fixed length; give days, hours, seconds, or a cron expression');
  end if;
  return make_interval(secs => extract(epoch from length)::double precision);
end $$;

-- The first thing wrong with a schedule, in words, or null. Whether a cron expression or a time zone means anything is
-- for the scheduler to say; here only what cannot be one is found.
create or replace function schedule_problem_of(s schedules) returns text language sql stable
return case
    when s.key is null or s.key = '' then 'key is empty'
    when octet_length(s.key) > 200 then 'key is longer than 200 bytes'
    when (s.every is null) = (s.cron is null) then 'give either every or cron'
    when s.every not between interval '1 second' and interval '87672 hours'
      then 'every ' || s.every || ' is not between 1 second and 3653 days'
    when octet_length(s.cron) > 500 then 'cron is longer than 500 bytes'
    when s.cron !~ '^[[:space:]]*[0-9A-Za-z*/,#-]+([[:space:]]+[0-9A-Za-z*/,#-]+){4,5}[[:space:]]*$' then 'cron ' || quote_literal(s.cron)
      || ' does not have five fields (minute hour day month weekday), or six with seconds in front'
    when s.time_zone = '' then 'time_zone is empty'
    -- What has no year of four digits, no program could read.
    when s.starts_at not between '0002-01-01 00:00:00+00' and '9998-12-31 00:00:00+00' then 'starts_at ' || s.starts_at || ' is beyond the calendar'
    when s.ends_at not between '0002-01-01 00:00:00+00' and '9998-12-31 00:00:00+00' then 'ends_at ' || s.ends_at || ' is beyond the calendar'
    when s.starts_at >= s.ends_at then 'it ends before it starts'
    when s.jitter not between interval '0' and interval '24 hours' then 'jitter ' || s.jitter || ' is not between 0 and 24 hours'
    when s.grace not between interval '0' and interval '87672 hours' then 'grace ' || s.grace || ' is not between 0 and 3653 days'
    when s.missed not in ('skip', 'once', 'all') then 'missed ' || quote_literal(s.missed) || ' is not skip, once or all'
    when s.max_missed not between 1 and 10000 then 'max_missed ' || s.max_missed || ' is not between 1 and 10000'
    when s.overlap not in ('allow', 'skip', 'exclusive')
      then 'overlap ' || quote_literal(s.overlap) || ' is not allow, skip or exclusive'
    when s.due_argument = '' then 'due_argument is empty'
    when octet_length(s.due_argument) > 200 then 'due_argument is longer than 200 bytes'
  end;

-- The fields of a definition, with what stands for those that are left out.
create or replace function schedule_defaults() returns jsonb language sql immutable parallel safe
return '{"kind": null, "queue": "default", "payload": {}, "priority": 0, "exclusive_key": null,
  "tags": null, "due_argument": null, "every": null, "cron": null, "time_zone": "UTC", "starts_at": null,
  "ends_at": null, "jitter": "0", "missed": "skip", "grace": "300 seconds", "max_missed": 1000, "overlap": "allow",
  "enabled": true}'::jsonb || jsonb_build_object('max_attempts', usual_attempts());

-- What the task of a kind declares for its jobs, as far as a worker has said so (declare_tasks).
create or replace function declared_of(kind text) returns jsonb language sql stable
as $$
  select coalesce((select jsonb_strip_nulls(jsonb_build_object('queue', k.queue, 'priority', k.priority,
    'max_attempts', k.max_attempts)) from kinds k where k.kind = declared_of.kind), '{}')
$$;

-- A definition as a row, checked. Null queue, priority or max_attempts: as the task of the kind declares, else the default.
create or replace function schedule_of(key text, definition jsonb) returns schedules language plpgsql stable
as $$
declare
  given jsonb := schedule_defaults() || declared_of(definition ->> 'kind') || jsonb_strip_nulls(definition - 'payload')
    || case when coalesce(jsonb_typeof(definition -> 'payload'), 'null') = 'null' then '{}' else jsonb_build_object('payload', definition -> 'payload') end;
  problem text;
  s schedules;
begin
  select format('unknown field %L', n) into problem
  from jsonb_object_keys(definition) n where not schedule_defaults() ? n limit 1;
  problem := coalesce(problem, intent_problem(given ->> 'kind', given ->> 'queue', (given ->> 'priority')::integer,
    (given ->> 'max_attempts')::integer, given -> 'payload', null, given ->> 'exclusive_key',
    case jsonb_typeof(given -> 'tags') when 'array' then array(select jsonb_array_elements_text(given -> 'tags')) end));
  if problem is null then
    s := jsonb_populate_record(null::schedules, given);
    s.key := key;
    s.every := exact_length('every', s.every);
    s.jitter := exact_length('jitter', s.jitter);
    s.grace := exact_length('grace', s.grace);
    problem := schedule_problem_of(s);
  end if;
  if problem is not null then
    perform refuse('LH003', 'invalid_argument', format('schedule %L: %s', left(key, 200), problem), 'nothing was changed');
  end if;
  return s;
end $$;

-- Store a definition, and what the code says if it is the code that says it. Whether anything was changed.
create or replace function write_schedule(s schedules, declaration jsonb) returns boolean language plpgsql
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  old schedules;
  anew boolean;
begin
  insert into schedules as t (key, kind, queue, payload, priority, max_attempts, exclusive_key, tags, due_argument,
    every, cron, time_zone, starts_at, ends_at, jitter, missed, grace, max_missed, overlap, enabled, declared,
    created_at, updated_at, due_after)
  values (s.key, s.kind, s.queue, s.payload, s.priority, s.max_attempts, s.exclusive_key, s.tags, s.due_argument,
    s.every, s.cron, s.time_zone, s.starts_at, s.ends_at, s.jitter, s.missed, s.grace, s.max_missed, s.overlap,
    s.enabled, declaration, at, at, at)
  on conflict (key) do nothing;
  if found then
    return true;
  end if;
  select * into old from schedules t where t.key = s.key for no key update;
  if not found then  -- removed this very moment
    return write_schedule(s, declaration);
  end if;
  anew := (old.every, old.cron, old.time_zone, old.starts_at, old.ends_at)
    is distinct from (s.every, s.cron, s.time_zone, s.starts_at, s.ends_at);
  update schedules t
  set kind = s.kind, queue = s.queue, payload = s.payload, priority = s.priority, max_attempts = s.max_attempts,
      exclusive_key = s.exclusive_key, tags = s.tags, due_argument = s.due_argument, every = s.every, cron = s.cron,
      time_zone = s.time_zone, starts_at = s.starts_at, ends_at = s.ends_at, jitter = s.jitter, missed = s.missed,
      grace = s.grace, max_missed = s.max_missed, overlap = s.overlap, enabled = s.enabled,
      declared = coalesce(declaration, t.declared), updated_at = at
  where t.key = s.key and (t.kind, t.queue, t.payload, t.priority, t.max_attempts, t.exclusive_key, t.tags,
    t.due_argument, t.jitter, t.missed, t.grace, t.max_missed, t.overlap, t.enabled, t.declared) is distinct from
    (s.kind, s.queue, s.payload, s.priority, s.max_attempts, s.exclusive_key, s.tags, s.due_argument, s.jitter,
    s.missed, s.grace, s.max_missed, s.overlap, s.enabled, coalesce(declaration, t.declared)) or t.key = s.key and anew;
  if not found then
    return false;
  end if;
  if anew or old.enabled and not s.enabled then
    perform end_schedule_claim(s.key);
  end if;
  if anew then
    perform plan_schedule_anew(s.key, at);
  end if;
  return true;
end $$;

-- Whoever has claimed it cannot fire it any more.
create or replace function end_schedule_claim(key text) returns void language plpgsql
as $$
#variable_conflict use_column
begin
  update schedules t set locked_by = null, locked_until = null, claim_id = null, claimed_at = null
  where t.key = end_schedule_claim.key;
end $$;

-- Forget what was due; due times count from this moment on.
create or replace function plan_schedule_anew(key text, since timestamptz) returns void language plpgsql
as $$
#variable_conflict use_column
begin
  update schedules t set due_after = since, next_run_at = null, over = false, problem = null
  where t.key = plan_schedule_anew.key;
end $$;

create or replace function schedule_put_v1(
  key text,
  kind text,
  every interval default null,
  cron text default null,
  time_zone text default 'UTC',
  payload jsonb default '{}',
  queue text default null,               -- null, here and below: as the task of the kind declares, else 'default'
  priority integer default null,         -- else 0
  max_attempts integer default null,     -- else usual_attempts()
  exclusive_key text default null,
  tags text[] default null,
  due_argument text default null,
  starts_at timestamptz default null,
  ends_at timestamptz default null,
  jitter interval default '0',
  missed text default 'skip',
  grace interval default '5 minutes',
  max_missed integer default 1000,
  overlap text default 'allow',
  enabled boolean default null,          -- null: as it is; enabled, if it is new
  notify boolean default true
) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  s schedules;
  now_enabled boolean := coalesce(schedule_put_v1.enabled,
    (select t.enabled from schedules t where t.key = schedule_put_v1.key for no key update), true);
  changed boolean;
begin
  perform check_time_zone(schedule_put_v1.time_zone);
  s := schedule_of(schedule_put_v1.key, jsonb_build_object('kind', schedule_put_v1.kind, 'every', schedule_put_v1.every,
    'cron', schedule_put_v1.cron, 'time_zone', schedule_put_v1.time_zone, 'payload', schedule_put_v1.payload,
    'queue', schedule_put_v1.queue, 'priority', schedule_put_v1.priority, 'max_attempts', schedule_put_v1.max_attempts,
    'exclusive_key', schedule_put_v1.exclusive_key, 'tags', schedule_put_v1.tags,
    'due_argument', schedule_put_v1.due_argument, 'starts_at', schedule_put_v1.starts_at,
    'ends_at', schedule_put_v1.ends_at, 'jitter', schedule_put_v1.jitter, 'missed', schedule_put_v1.missed,
    'grace', schedule_put_v1.grace, 'max_missed', schedule_put_v1.max_missed, 'overlap', schedule_put_v1.overlap,
    'enabled', now_enabled));
  changed := write_schedule(s, null);
  if changed and notify then
    perform announce(array['@schedule']);
  end if;
  return changed;
end $$;

create or replace function schedule_put(
  key text, kind text, every interval default null, cron text default null, time_zone text default 'UTC',
  payload jsonb default '{}', queue text default null, priority integer default null, max_attempts integer default null,
  exclusive_key text default null, tags text[] default null, due_argument text default null,
  starts_at timestamptz default null, ends_at timestamptz default null, jitter interval default '0',
  missed text default 'skip', grace interval default '5 minutes', max_missed integer default 1000,
  overlap text default 'allow', enabled boolean default null, notify boolean default true
) returns boolean language sql
security definer set search_path from current
as $$
  select schedule_put_v1(key, kind, every, cron, time_zone, payload, queue, priority, max_attempts, exclusive_key, tags,
    due_argument, starts_at, ends_at, jitter, missed, grace, max_missed, overlap, enabled, notify)
$$;

create or replace function check_time_zone(time_zone text) returns void language plpgsql
as $$
begin
  perform timezone(time_zone, clock());
exception when invalid_parameter_value then
  perform refuse('LH003', 'invalid_argument', format('time zone %L', time_zone), 'write it like Europe/Berlin, or UTC');
end $$;
