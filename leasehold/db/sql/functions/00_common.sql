-- What the functions share: the clock, errors, ownership, and checks of values from callers. None of these is granted to any role.
--
-- How the other files keep their plans, also when table statistics are old:
-- * Rows that are found by id have their state compared by IS NOT DISTINCT FROM. With `=` the planner may prove
--   that a partial index applies and, when statistics say that it is almost empty, scan all of it for each batch.
-- * The settings on the functions leave no plan but the intended one, and keep it for the next call.

-- Return the time. All functions read this clock only, so that tests can replace it.
create or replace function clock() returns timestamptz language sql volatile parallel safe
return clock_timestamp();

create or replace function client_status(state job_state, reason text) returns text language sql immutable parallel safe
return case state when 'running' then 'RUNNING' when 'success' then 'COMPLETED'
  when 'dead' then case when reason = 'cancelled' then 'CANCELLED' else 'FAILED' end
  else 'PENDING' end;

-- Return whether a worker counts as live.
create or replace function is_live(w workers, at timestamptz) returns boolean language sql immutable parallel safe
as $$ select w.stopped_at is null and w.seen_at > at - interval '1 minute' $$;

-- Raise an error: a constant message with an SQLSTATE of ours; the detail names the value, the hint the cure. Programs read the place of
-- the job that is refused, if it is one of many, in the error's column.
create or replace function refuse(sqlstate_code text, message text, detail text, hint text default '', place text default '')
returns void language plpgsql as $$
begin
  raise exception using errcode = sqlstate_code, message = message, detail = detail, hint = hint, column = place;
end $$;

-- Emit a WAL record, so that the answer of a transaction that only read is as durable as that of one that wrote: its
-- commit waits for the disk and for a synchronous standby, as far as the server is configured to wait. Without it the
-- caller could learn of a commit whose own wait was cut short by a crash, and which is lost if the standby is promoted.
create or replace function vouch() returns void language plpgsql as $$
begin
  perform pg_logical_emit_message(true, 'leasehold', '');
end $$;

-- Refuse an argument (LH003) unless `holds` is true.
create or replace function require(holds boolean, detail text, cure text) returns void language plpgsql as $$
begin
  if holds is not true then
    perform refuse('LH003', 'invalid_argument', detail, cure);
  end if;
end $$;

-- Return whether this attempt owns the job at this moment. It is the only guard of updates by an owner: heartbeat, progress, log
-- lines, complete, fail, snooze, release. Ownership ends with the lease: `at` is the clock of the call, and a lease that has expired by
-- then is not owned any more, swept or not. The claim_id is optional.
-- A single expression without settings, so that it is inlined.
create or replace function owns(j jobs, worker text, attempt integer, claim_id uuid, at timestamptz) returns boolean
language sql immutable parallel safe as $$
  select j.attempt = owns.attempt and j.lease_owner = owns.worker and j.state is not distinct from 'running'
    and (owns.claim_id is null or j.claim_id = owns.claim_id) and j.lease_expires_at > owns.at
$$;

-- Return why the job is dead after an attempt that did not succeed; null: it runs again.
-- The only place that decides between retry and dead, for fail, sweep and promote.
create or replace function verdict(outcome text, fatal boolean, failures integer, max_attempts integer) returns text
language sql immutable parallel safe
return case
  when outcome = 'cancelled' then 'cancelled'
  when outcome = 'snoozed' then null
  when fatal then 'fatal'
  when failures < max_attempts then null
  when outcome = 'lease_expired' then 'lease_expired'
  else 'exhausted'
end;

-- Checks of values from callers: what a producer or an operator sends is refused (LH003); what a running task reports of itself is
-- cut, because its outcome must be recorded in any case. A *_problem function returns the first thing wrong, in words, or null.

-- What is wrong with a JSON value: larger than 4 MiB, stored or as text, nested deeper than 64 levels, or with a
-- number of more than 1000 digits.
--
-- jsonb stores `1e131071` in 16 bytes and writes it with 131,072: a few kB can be a text of a gigabyte, which no claim
-- could read. So nothing is written as text here before its length is bounded: numbers of many digits are written one by one until
-- they are too many. All else is at most seven times as long as stored: `\u0001` is one byte. A number has at most 16,383
-- zeros at its end behind the point; dividing it shows how many.
-- `on_record`: the payload of a job, about to be claimed. Only one that no claim could return is refused then: a row may have been
-- written before today's limits.
create or replace function json_fault(what text, value jsonb, on_record boolean default false) returns text
language plpgsql stable cost 1  -- rarely called: the planner shall not count it
as $$
declare
  most constant integer := case when on_record then max_claim_bytes() else max_json_bytes() end;
  -- In an array: of a value that was read from a table this is the size before compression.
  stored constant integer := pg_column_size(array[value]);
  long_numbers integer := 0;
  longest integer := 0;  -- digits
  number jsonb;
begin
  if stored > most then
    return format('%s is larger than %s MiB', what, most / 1048576);
  end if;
  if not on_record and stored > 500 and is_deep(value) then
    return what || ' is nested deeper than 64 levels';
  end if;
  for number in
    select n from jsonb_array_elements(jsonb_path_query_array(value,
      'strict $.** ? (@.abs() > 1e30 || (@ - @ + 1) / 3 > 0.33333333333333333333333333333333)')) n
  loop
    long_numbers := long_numbers + octet_length(number::text);
    longest := greatest(longest, octet_length(translate(number::text, '-.', '')));
    exit when long_numbers > most;
  end loop;
  if long_numbers > most or (long_numbers > 0 or stored > most / 7) and octet_length(value::text) > most then
    return format('%s is larger than %s MiB as text', what, most / 1048576);
  end if;
  return case when longest > 1000 and not on_record then what || ' has a number of more than 1000 digits' end;
end $$;

-- Return whether the value is nested deeper than 64 levels, which some programs cannot read.
create or replace function is_deep(value jsonb) returns boolean language sql immutable parallel safe
return jsonb_path_exists(value, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")');

-- Return whether the value may have a number of more than 1000 digits, which programs refuse to read: one that has them before the
-- point, or more than 32 behind it.
create or replace function may_have_long_number(value jsonb) returns boolean language sql immutable parallel safe
return jsonb_path_exists(value, 'strict $.** ? (@.abs() >= 1e1000 || (@ - @ + 1) / 3 > 0.33333333333333333333333333333333)');

create or replace function tags_problem(tags text[]) returns text language plpgsql stable cost 1 as $$
begin
  return case
    when cardinality(tags) > max_tags() then 'more than ' || max_tags() || ' tags'
    when array_ndims(tags) > 1 then 'tags is not a plain list'
    when array_position(tags, null) is not null then 'a tag is null'
    when (select max(octet_length(t)) from unnest(tags) t) > max_key_bytes() then 'a tag is longer than ' || max_key_bytes() || ' bytes'
  end;
end $$;

-- Return whether programs can read the moment in every time zone: Python's calendar has the years 1 to 9999.
create or replace function is_readable(moment timestamptz) returns boolean language sql immutable parallel safe
return moment between '0001-01-02 00:00:00+00' and '9999-12-30 00:00:00+00';

create or replace function result_problem(result jsonb) returns text language sql stable parallel safe
return case when pg_column_size(result) > 440 or may_have_long_number(result) then json_fault('the result', result) end;

-- Return a text cut to `most` characters; one that was longer ends with [cut].
create or replace function shortened(words text, most integer) returns text language sql immutable parallel safe
return case when octet_length(words) > most and char_length(words) > most then left(words, most - 6) || ' [cut]' else words end;

-- Return one field (class, message, traceback) of the error of a failed attempt, cut to its maximum.
create or replace function error_of(error jsonb, field text) returns text language sql immutable parallel safe
return case jsonb_typeof(error -> field)
  when 'string' then shortened(error ->> field, case field when 'class' then 500 when 'traceback' then 20000 else 2000 end)
  when 'null' then null else '[a JSON ' || jsonb_typeof(error -> field) || ']' end;

-- Return the progress that a task reports, cut to the range from 0 to 1; null where it is no number.
create or replace function tidy_progress(progress real) returns real language sql immutable parallel safe
return case when progress between 0 and 1 then progress when progress < 0 then 0 when progress < 'infinity' then 1 end;

-- Return the lines of a task's log, [[time, level, text], …]: at most 201, each cut to its maximum, and without elements of another form.
create or replace function tidy_lines(lines jsonb) returns jsonb language plpgsql stable as $$
begin
  return (
    select coalesce(jsonb_agg(jsonb_build_array(
        case jsonb_typeof(e.line -> 0) when 'number' then to_jsonb(round(greatest(-1e12, least(1e12, (e.line ->> 0)::numeric)), 6))
          else to_jsonb(left(e.line ->> 0, 40)) end,
        shortened(e.line ->> 1, 40), shortened(e.line ->> 2, 1000)) order by e.place), '[]')
    from jsonb_array_elements(case jsonb_typeof(lines) when 'array' then lines else '[]' end) with ordinality e(line, place)
    where e.place <= 201 and jsonb_typeof(e.line -> 0) in ('number', 'string')
      and jsonb_typeof(e.line -> 1) = 'string' and jsonb_typeof(e.line -> 2) = 'string');
end $$;

create or replace function names_problem(what text, names text[]) returns text language sql stable
return case
    when cardinality(names) > 10000 then what || ' has more than 10000 names'
    when array_position(names, null) is not null or '' = any(names) then what || ' has an empty name'
    when (select max(octet_length(n)) from unnest(names) n) > max_name_bytes() then what || ' has a name of more than ' || max_name_bytes() || ' bytes'
  end;

create or replace function check_names(what text, names text[]) returns void language sql as $$
  select require(false, problem, 'a queue or a kind has a name of 1 to ' || max_name_bytes() || ' bytes')
  from names_problem(what, names) problem where problem is not null
$$;

-- Refuse a moment that no program could read. Null passes.
create or replace function check_moment(what text, moment timestamptz) returns void language sql as $$
  select require(coalesce(is_readable(moment), true), format('%s %s', what, moment), 'give a time between 0001-01-02 and 9999-12-30')
$$;
