-- The state machine, enforced for every writer, a superuser's plain UPDATE included. The functions' own WHERE
-- clauses never rely on it: where triggers are not allowed the guard is absent and nothing else changes.
-- Error: LH001 illegal_transition.
--
-- AFTER, not BEFORE: a BEFORE trigger locks the row first, which costs a lock record in the WAL for each
-- update. The legal pairs are in WHEN, so on a legal path no function is called at all. The trigger itself: zz_triggers.sql.

create or replace function refuse_transition() returns trigger language plpgsql as $$
begin
  perform refuse('LH001', 'illegal_transition',
    case when new.attempt < old.attempt then format('job %s: attempt %s -> %s', new.id, old.attempt, new.attempt)
         else format('job %s: %s -> %s', new.id, old.state, new.state) end,
    'docs/state-machine.md lists the legal transitions; use the functions of this schema');
  return null;
end $$;

-- Create a trigger unless it exists with the same definition; `definition` is what follows its name. Creating one blocks
-- all writers of its table until the transaction ends. The comment of the trigger holds a hash of the definition and of
-- the trigger itself, so that one that was replaced by hand is created again.
create or replace function keep_trigger(on_table regclass, name text, definition text) returns void language plpgsql as $$
begin
  if exists (select from pg_trigger t where t.tgrelid = on_table and t.tgname = keep_trigger.name
    and obj_description(t.oid, 'pg_trigger') = made_of(t.oid, definition)) then
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
