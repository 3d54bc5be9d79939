-- Make schedules and change them.
-- Errors: LH002 job_unknown, LH003 invalid_argument.
--
-- A definition is a JSON object whose fields are the arguments of schedule_put. A change of the rule itself (every, cron, time
-- zone, start, end) ends the present claim, and due times count from then on. Any other change leaves the next run where it is.

-- A length of time as seconds; a month has none.
create or replace function exact_length(what text, length interval) returns interval language plpgsql immutable as $$
begin
  perform require(coalesce(length between interval '-30000 days' and interval '30000 days', true), format('%s of %s', what, length),
    'give less than 30000 days');
  perform require(coalesce(extract(year from length) = 0 and extract(month from length) = 0, true), format('%s of %s', what, length),
    'months and years have no fixed length; give days, hours, seconds, or a cron expression');
  return make_interval(secs => extract(epoch from length)::double precision);
end $$;

-- The first thing wrong with a schedule, in words, or null. The scheduler judges cron expressions and time
-- zones; here only texts that cannot be one are refused.
create or replace function schedule_problem_of(s schedules) returns text language sql stable
as $$ select case
    when s.key is null or s.key = '' then 'key is empty'
    when octet_length(s.key) > max_name_bytes() then 'key is longer than ' || max_name_bytes() || ' bytes'
    when (s.every is null) = (s.cron is null) then 'give either every or cron'
    when s.every not between interval '1 second' and interval '87672 hours'
      then 'every ' || s.every || ' is not between 1 second and 3653 days'
    when octet_length(s.cron) > 500 then 'cron is longer than 500 bytes'
    when s.cron !~ '^[[:space:]]*[0-9A-Za-z*/,#-]+([[:space:]]+[0-9A-Za-z*/,#-]+){4,5}[[:space:]]*$' then 'cron ' || quote_literal(s.cron)
      || ' does not have five fields (minute hour day month weekday), or six with seconds in front'
    when s.time_zone = '' then 'time_zone is empty'
    -- Programs cannot read a time whose year does not have four digits.
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
    when octet_length(s.due_argument) > max_name_bytes() then 'due_argument is longer than ' || max_name_bytes() || ' bytes'
  end $$;

-- The fields of a definition with their defaults: those of a job (an intent without what only one job has), and the rule's own.
create or replace function schedule_defaults() returns jsonb language sql stable parallel safe as $$
  select jsonb_object_agg(f, null::text) || jsonb_build_object('max_attempts', usual_attempts()) ||
    '{"queue": "default", "payload": {}, "priority": 0, "due_argument": null, "every": null, "cron": null, "time_zone": "UTC",
      "starts_at": null, "ends_at": null, "jitter": "0", "missed": "skip", "grace": "300 seconds", "max_missed": 1000,
      "overlap": "allow", "enabled": true}'
  from unnest(intent_fields()) f where f not in ('run_at', 'run_after', 'idempotency_key', 'id', 'strict')
$$;

-- A definition as a row, checked. Null queue, priority or max_attempts: as the task of the kind declares, else the default.
create or replace function schedule_of(key text, definition jsonb) returns schedules language plpgsql stable as $$
declare
  given jsonb := schedule_defaults()
    || coalesce((select jsonb_strip_nulls(jsonb_build_object('queue', k.queue, 'priority', k.priority, 'max_attempts', k.max_attempts))
      from kinds k where k.kind = definition ->> 'kind'), '{}')
    || coalesce((select jsonb_object_agg(f.key, f.value) from jsonb_each(definition) f where f.value <> 'null'), '{}');
  problem text;
  s schedules;
begin
  select format('unknown field %L', n) into problem
  from jsonb_object_keys(definition) n where not schedule_defaults() ? n limit 1;
  problem := coalesce(problem, intent_problem(jsonb_populate_record(null::intent, given)));
  if problem is null then
    s := jsonb_populate_record(null::schedules, given || jsonb_build_object('key', key, 'over', false, 'unfinished', '{}'::uuid[],
      'fired', 0, 'missed_runs', 0, 'overlapped', 0));
    s.every := exact_length('every', s.every);
    s.jitter := exact_length('jitter', s.jitter);
    s.grace := exact_length('grace', s.grace);
    problem := schedule_problem_of(s);
  end if;
  perform require(problem is null, format('schedule %L: %s', left(key, 200), problem), 'nothing was changed');
  return s;
exception when data_exception then  -- a value of the wrong type, as 5 for tags
  perform refuse('LH003', 'invalid_argument', format('schedule %L: %s', left(key, 200), sqlerrm), 'nothing was changed');
end $$;

create or replace function definition_of(s schedules) returns jsonb language sql stable
as $$ select jsonb_object_agg(f.key, f.value) from jsonb_each(to_jsonb(s)) f where schedule_defaults() ? f.key $$;

-- Store a definition, and what the code declares if the code is the caller. Returns whether anything was changed.
create or replace function write_schedule(s schedules, declaration jsonb) returns boolean language plpgsql as $$
declare
  at timestamptz := clock();
  old schedules;
  anew boolean;
  -- The fields of a definition are listed in schedule_defaults only. Named, because a later release may add columns to the table.
  named text := (select string_agg(quote_ident(f), ', ') from jsonb_object_keys(schedule_defaults()) f) || ', declared, updated_at';
  progress text := ', key, created_at, due_after, over, unfinished, fired, missed_runs, overlapped';
  made integer;
begin
  s.declared := declaration;
  s.created_at := at;
  s.updated_at := at;
  s.due_after := at;
  execute format('insert into schedules (%1$s) select %1$s from (select ($1).*) s on conflict do nothing', named || progress) using s;
  get diagnostics made = row_count;
  if made > 0 then
    return true;
  end if;
  select * into old from schedules t where t.key = s.key for no key update;
  if not found then  -- another session has removed it since
    return write_schedule(s, declaration);
  end if;
  s.declared := coalesce(declaration, old.declared);
  if definition_of(old) = definition_of(s) and old.declared is not distinct from s.declared then
    return false;
  end if;
  anew := (old.every, old.cron, old.time_zone, old.starts_at, old.ends_at)
    is distinct from (s.every, s.cron, s.time_zone, s.starts_at, s.ends_at);
  execute format('update schedules t set (%1$s) = (select %1$s from (select ($1).*) s) where t.key = ($1).key', named) using s;
  if anew or old.enabled and not s.enabled then
    -- Its scheduler cannot fire it any more.
    update schedules t set locked_by = null, locked_until = null, claim_id = null, claimed_at = null where t.key = s.key;
  end if;
  if anew then
    perform plan_schedule_anew(s.key, at);
  end if;
  return true;
end $$;

-- Skip the due times up to now.
create or replace function plan_schedule_anew(key text, since timestamptz) returns void language plpgsql as $$
begin
  update schedules t set due_after = since, next_run_at = null, over = false, problem = null
  where t.key = plan_schedule_anew.key;
end $$;

-- Null: as the task of the kind declares, or as schedule_defaults has it; `enabled` as it is, and enabled if the schedule is new.
-- `definition` has further fields, or all of them.
create or replace function schedule_put_v1(
  key text, kind text default null, every interval default null, cron text default null, time_zone text default null,
  payload jsonb default null, queue text default null, priority integer default null, max_attempts integer default null,
  exclusive_key text default null, tags text[] default null, due_argument text default null, starts_at timestamptz default null,
  ends_at timestamptz default null, jitter interval default null, missed text default null, grace interval default null,
  max_missed integer default null, overlap text default null, enabled boolean default null, notify boolean default true,
  definition jsonb default '{}'
) returns boolean language plpgsql set lock_timeout = '3s' as $$
declare
  fields jsonb := jsonb_build_object('kind', kind, 'every', every, 'cron', cron, 'time_zone', time_zone, 'payload', payload,
    'queue', queue, 'priority', priority, 'max_attempts', max_attempts, 'exclusive_key', exclusive_key, 'tags', tags,
    'due_argument', due_argument, 'starts_at', starts_at, 'ends_at', ends_at, 'jitter', jitter, 'missed', missed, 'grace', grace,
    'max_missed', max_missed, 'overlap', overlap, 'enabled', enabled);
  changed boolean;
begin
  perform require(jsonb_typeof(definition) = 'object', format('schedule %L: its definition is not a JSON object', left(key, 200)),
    'nothing was changed');
  fields := fields || (definition - 'key');
  perform check_time_zone(fields ->> 'time_zone');
  if coalesce(fields -> 'enabled', 'null') = 'null' then
    fields := fields || jsonb_build_object('enabled', (
      select t.enabled from schedules t where t.key = schedule_put_v1.key for no key update));
  end if;
  changed := write_schedule(schedule_of(key, fields), null);
  perform announce(array['@schedule']) where changed and notify;
  return changed;
end $$;

create or replace function check_time_zone(time_zone text) returns void language plpgsql as $$
begin
  perform timezone(time_zone, clock());
exception when invalid_parameter_value then
  perform refuse('LH003', 'invalid_argument', format('time zone %L', time_zone), 'write it like Europe/Berlin, or UTC');
end $$;

-- Store what the application declares, field by field, when a worker starts. `declared` keeps its last declaration: a
-- field that is declared differently now is changed; any other keeps its value, which an operator may have changed.
-- `declarations` is an array of definitions, each with its key, lengths of time as text. Returns the keys of the schedules that were
-- made or changed. Nothing is removed: another program may declare other schedules.
create or replace function schedule_sync_v1(declarations jsonb, notify boolean default true) returns setof text
language plpgsql set lock_timeout = '3s' as $$
declare
  d record;
  old schedules;
  news jsonb;
  changed text[] := '{}';
begin
  perform require(case jsonb_typeof(declarations) when 'array'
      then not exists (select from jsonb_array_elements(declarations) e where jsonb_typeof(e) <> 'object') end,
    'declarations is not a JSON array of objects', 'nothing was changed');
  -- In one order everywhere, or two workers that start together deadlock.
  for d in select e ->> 'key' as key, schedule_defaults() || (e - 'key') as fields
           from jsonb_array_elements(declarations) e order by e ->> 'key' collate "C" loop
    perform schedule_of(d.key, d.fields);  -- what is kept in `declared` is checked too
    -- Nothing new, as nearly always: a schedule that another session is changing keeps no worker from its start.
    continue when exists (select from schedules t where t.key = d.key and t.declared is not distinct from d.fields);
    select * into old from schedules t where t.key = d.key for no key update;
    news := case when not found then d.fields
      else definition_of(old) || changed_fields(coalesce(old.declared, d.fields), d.fields) end;
    if write_schedule(schedule_of(d.key, news), d.fields) then
      changed := changed || d.key;
    end if;
  end loop;
  perform announce(array['@schedule']) where notify and cardinality(changed) > 0;
  return query select unnest(changed);
end $$;

-- What is declared differently now. The two forms of a rule count as one field: half of each would be no rule.
create or replace function changed_fields(before jsonb, after jsonb) returns jsonb language sql immutable as $$
  select coalesce(jsonb_object_agg(f.key, f.value), '{}') from jsonb_each(after) f
  where f.value is distinct from before -> f.key
     or f.key in ('every', 'cron') and (before -> 'every', before -> 'cron') is distinct from (after -> 'every', after -> 'cron')
$$;
