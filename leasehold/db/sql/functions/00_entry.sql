-- What may enter. Every function that takes a value from a caller asks here: what a producer or an operator gives is
-- refused (LH003), what a running task says of itself is cut, because its outcome must be recorded whatever it says.
-- Each function gives the first thing wrong, in words, or null. None of them is granted to a role.

-- What is wrong with a JSON value: larger than 4 MiB, stored or as text, nested deeper than 64 levels, or with a
-- number of more than 1000 digits.
--
-- jsonb stores `1e131071` in 16 bytes and writes it with 131,072: a few kB can be a text of a gigabyte, which no claim
-- could read. So nothing is written as text here before it is known how long that can become: if there are numbers of many
-- digits, they are written one by one until they are too many. All else is at most seven times as long as stored:
-- `\u0001` is one byte. Zeros behind the point (dividing shows how many) are at most 16,383 a number: up to 3,000 bytes
-- stored they cannot be too many.
create or replace function json_fault(what text, value jsonb, most integer default 4194304) returns text
language plpgsql stable
as $$
declare
  -- In an array: of a value that was read from a table this is the size before compression.
  stored constant integer := pg_column_size(array[value]);
  long_numbers integer := 0;
  number jsonb;
begin
  if stored > most then
    return format('%s is larger than %s MiB', what, most / 1048576);
  end if;
  if stored > 500 and jsonb_path_exists(value, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') then
    return what || ' is nested deeper than 64 levels';
  end if;
  if jsonb_path_exists(value, 'strict $.** ? (@.abs() > 1e30)')
     or stored > 3000 and jsonb_path_exists(value, 'strict $.** ? ((@ - @ + 1) / 3 > 0.33333333333333333333333333333333)')
  then
    for number in
      select n from jsonb_array_elements(jsonb_path_query_array(value,
        'strict $.** ? (@.abs() > 1e30 || (@ - @ + 1) / 3 > 0.33333333333333333333333333333333)')) n
    loop
      long_numbers := long_numbers + octet_length(number::text);
      if long_numbers > most then
        return format('%s is larger than %s MiB as text', what, most / 1048576);
      end if;
    end loop;
  end if;
  if (long_numbers > 0 or stored > most / 7) and octet_length(value::text) > most then
    return format('%s is larger than %s MiB as text', what, most / 1048576);
  end if;
  -- What was recorded before, and claim_each asks about with a larger limit, may have longer ones.
  if long_numbers > 1000 and most <= 4194304 and has_long_number(value) then
    return what || ' has a number of more than 1000 digits';
  end if;
  return null;
end $$;

-- Whether there is a number of more than 1000 digits, which programs refuse to read.
create or replace function has_long_number(value jsonb) returns boolean language sql immutable parallel safe
return jsonb_path_exists(value, 'strict $.** ? (@.abs() >= 1e1000)');

create or replace function tags_problem(tags text[]) returns text language plpgsql immutable
as $$
begin
  return case
    when cardinality(tags) > 50 then 'more than 50 tags'
    when array_ndims(tags) > 1 then 'tags is not a plain list'
    when array_position(tags, null) is not null then 'a tag is null'
    when (select max(octet_length(t)) from unnest(tags) t) > 500 then 'a tag is longer than 500 bytes'
  end;
end $$;

-- The first thing wrong with an intent, in words, or null. A single expression, so that it is inlined. 440 bytes hold no
-- 29 numbers, and so no text of 4 MiB.
create or replace function intent_problem(
  kind text, queue text, priority integer, max_attempts integer, payload jsonb, idempotency_key text,
  exclusive_key text, tags text[]
) returns text language sql stable parallel safe
return case
    when kind is null or kind = '' then 'kind is empty'
    when octet_length(kind) > 200 then 'kind is longer than 200 bytes'
    when queue is null or queue = '' then 'queue is empty'
    when octet_length(queue) > 200 then 'queue is longer than 200 bytes'
    when priority is null or priority not between -32767 and 32767
      then 'priority ' || coalesce(priority::text, 'null') || ' is not between -32767 and 32767'
    when max_attempts is null or max_attempts not between 1 and 32767
      then 'max_attempts ' || coalesce(max_attempts::text, 'null') || ' is not between 1 and 32767'
    when jsonb_typeof(payload) is distinct from 'object' then 'payload is not a JSON object'
    -- With an empty object added: of a payload that was read from a table this is the size before compression.
    when (pg_column_size(payload || '{}') > 440 or has_long_number(payload)) and json_fault('payload', payload) is not null
      then json_fault('payload', payload)
    when idempotency_key = '' then 'idempotency_key is empty'
    when octet_length(idempotency_key) > 500 then 'idempotency_key is longer than 500 bytes'
    when exclusive_key = '' then 'exclusive_key is empty'
    when octet_length(exclusive_key) > 500 then 'exclusive_key is longer than 500 bytes'
    when tags is not null and tags_problem(tags) is not null then tags_problem(tags)
  end;

-- Keys of jobs that schedules make: a job of another origin under such a key would keep the schedule from being fired.
create or replace function key_problem(idempotency_key text) returns text language sql immutable parallel safe
return case when starts_with(idempotency_key, 'schedule:')
  then 'idempotency_key begins with schedule:, which is kept for the jobs of schedules' end;

create or replace function check_key(idempotency_key text) returns void language plpgsql
as $$
begin
  if starts_with(idempotency_key, 'schedule:') then
    perform refuse('LH003', 'invalid_argument', key_problem(idempotency_key), 'use another key; nothing was recorded');
  end if;
end $$;

-- Whether every program can read the moment, in its own time zone: the calendar has the years 1 to 9999.
create or replace function is_readable(moment timestamptz) returns boolean language sql immutable parallel safe
return moment between '0001-01-02 00:00:00+00' and '9999-12-30 00:00:00+00';

-- What is wrong with the time that an intent shall wait for.
create or replace function times_problem(run_at timestamptz, run_after interval) returns text language sql stable parallel safe
return case
    when run_at is not null and run_after is not null then 'both run_at and run_after'
    when not is_readable(run_at) then 'run_at ' || run_at || ' is not between 0001-01-02 and 9999-12-30'
    when run_after not between interval '-1000 years' and interval '1000 years'
      then 'run_after ' || run_after || ' is longer than 1000 years'
  end;

create or replace function result_problem(result jsonb) returns text language sql stable parallel safe
return case when pg_column_size(result) > 440 or has_long_number(result) then json_fault('the result', result) end;

-- At most that many characters; a text that was longer ends with a mark.
create or replace function shortened(words text, most integer) returns text language sql immutable parallel safe
return case when octet_length(words) > most and char_length(words) > most then left(words, most - 6) || ' [cut]' else words end;

-- One field (class, message, traceback) of the error of a failed attempt, bounded.
create or replace function error_of(error jsonb, field text) returns text language sql immutable parallel safe
return case jsonb_typeof(error -> field)
  when 'string' then shortened(error ->> field, case field when 'class' then 500 when 'traceback' then 20000 else 2000 end)
  when 'null' then null else '[a JSON ' || jsonb_typeof(error -> field) || ']' end;

-- How far a task says it is: from 0 to 1, or nothing at all.
create or replace function tidy_progress(progress real) returns real language sql immutable parallel safe
return case when progress between 0 and 1 then progress when progress < 0 then 0 when progress < 'infinity' then 1 end;

-- Lines of a task's log, [[when, level, text], …]: at most 201 of them, each bounded; what is no such line is left out.
create or replace function tidy_lines(lines jsonb) returns jsonb language plpgsql stable
as $$
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

-- What is wrong with a list of names of queues or kinds.
create or replace function names_problem(what text, names text[]) returns text language plpgsql immutable
as $$
begin
  return case
    when cardinality(names) > 10000 then what || ' has more than 10000 names'
    when array_position(names, null) is not null or '' = any(names) then what || ' has an empty name'
    when (select max(octet_length(n)) from unnest(names) n) > 200 then what || ' has a name of more than 200 bytes'
  end;
end $$;

create or replace function check_names(what text, names text[]) returns void language plpgsql
as $$
declare
  problem text := names_problem(what, names);
begin
  if problem is not null then
    perform refuse('LH003', 'invalid_argument', problem, 'a queue or a kind has a name of 1 to 200 bytes');
  end if;
end $$;

-- Refuse a moment that no program could read. Null is for others to judge.
create or replace function check_moment(what text, moment timestamptz) returns void language plpgsql
as $$
begin
  if not is_readable(moment) then
    perform refuse('LH003', 'invalid_argument', format('%s %s', what, moment), 'give a time between 0001-01-02 and 9999-12-30');
  end if;
end $$;
