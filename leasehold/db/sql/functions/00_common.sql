-- What the functions share. None of these is granted to anybody.
--
-- How the other files keep their plans, whatever the statistics say:
-- * Rows that are looked up by id have their state compared by IS NOT DISTINCT FROM. With `=` the planner may prove
--   that a partial index applies and, when statistics say that it is almost empty, scan all of it for each batch.
-- * The settings on the functions leave no plan but the intended one, and keep it for the next call.

-- The only clock. Tests put another one in its place.
create or replace function clock() returns timestamptz language sql volatile parallel safe
return clock_timestamp();

-- What a client sees of a state.
create or replace function client_status(state job_state, reason text) returns text language sql immutable parallel safe
return case state when 'running' then 'RUNNING' when 'success' then 'COMPLETED'
  when 'dead' then case when reason = 'cancelled' then 'CANCELLED' else 'FAILED' end
  else 'PENDING' end;

-- How many failures end a job when neither the caller nor its kind's task says a number. With the waits of
-- backoff_seconds() between them that is a day at least. Python has the same in leasehold.retry.USUAL_ATTEMPTS.
create or replace function usual_attempts() returns integer language sql immutable parallel safe
return 40;

-- Constant message, own SQLSTATE; the detail names the value, the hint the cure.
create or replace function refuse(sqlstate_code text, message text, detail text, hint text default '')
returns void language plpgsql
as $$
begin
  raise exception using errcode = sqlstate_code, message = message, detail = detail, hint = hint;
end $$;

-- Stand for what was found as for what is written: a transaction that only reads is answered without waiting for the
-- disk and for a synchronous standby. What it read may not be safe yet: a commit whose wait a crash cut short is there
-- when the server is up again, and gone if the standby is promoted. After this the transaction has something to write,
-- and its answer means that everything before it is as safe as the server is told to make it.
create or replace function vouch() returns void language plpgsql
as $$
begin
  perform pg_logical_emit_message(true, 'leasehold', '');
end $$;

-- Tell sleeping workers that these queues have work; '@due' stands for a job that waits for its time. Only a
-- hint: polling is what correctness rests on.
create or replace function announce(queues text[]) returns void language plpgsql
as $$
begin
  perform pg_notify(current_schema(), q) from unnest(queues) q;
end $$;

-- Make a trigger, `definition` being what follows its name; nothing where it is there and was made of the same. To make one
-- keeps all writers of its table waiting until the transaction ends, and a migration does much more in its own. What it was
-- made of is noted in its comment, with what it is: where it was replaced by hand since, it is made again.
create or replace function keep_trigger(on_table regclass, name text, definition text) returns void language plpgsql
as $$
begin
  if exists (select from pg_trigger t where t.tgrelid = on_table and t.tgname = keep_trigger.name
    and obj_description(t.oid, 'pg_trigger') = made_of(t.oid, definition))
  then
    return;
  end if;
  execute format('create or replace trigger %I %s', keep_trigger.name, definition);
  execute (
    select format('comment on trigger %I on %s is %L', keep_trigger.name, on_table, made_of(t.oid, definition))
    from pg_trigger t where t.tgrelid = on_table and t.tgname = keep_trigger.name);
end $$;

-- A trigger that was disabled (D), or left to replicas (R), differs too.
create or replace function made_of(trigger_id oid, definition text) returns text language sql stable
return 'made of ' || hashtextextended(definition || pg_get_triggerdef(trigger_id) || (
  select case when t.tgenabled in ('D', 'R') then t.tgenabled::text else '' end from pg_trigger t where t.oid = trigger_id), 0);

-- Serialises the claims of one exclusive key. Collisions of the hash only make a claimer look elsewhere.
create or replace function exclusive_lock(exclusive_key text) returns bigint language sql stable
return hashtextextended(current_schema() || '.exclusive.' || exclusive_key, 0);
