-- Bring what the code declares into the table, field by field, when a worker starts. `declared` keeps what the code said
-- last. A field that the code says differently now is changed; a field about which it says the same stays as it is,
-- whoever may have changed it. Gives the keys of the schedules that were made or changed.
-- Error: LH003 invalid_argument.
--
-- Nothing is removed: another program may declare other schedules. `declarations` is an array of definitions, each with
-- its key, as schedule_put takes them, lengths of time as text.

create or replace function schedule_sync_v1(declarations jsonb, notify boolean default true) returns setof text
language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  d record;
  old schedules;
  news jsonb;
  changed text[] := '{}';
begin
  if jsonb_typeof(declarations) is distinct from 'array'
     or exists (select from jsonb_array_elements(declarations) e where jsonb_typeof(e) <> 'object') then
    perform refuse('LH003', 'invalid_argument', 'declarations is not a JSON array of objects', 'nothing was changed');
  end if;
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
  if notify and cardinality(changed) > 0 then
    perform announce(array['@schedule']);
  end if;
  return query select unnest(changed);
end $$;

create or replace function schedule_sync(declarations jsonb, notify boolean default true) returns setof text
language sql
security definer set search_path from current
as $$ select schedule_sync_v1(declarations, notify) $$;

-- A stored schedule's definition.
create or replace function definition_of(s schedules) returns jsonb language sql stable
as $$
  select jsonb_object_agg(f.key, f.value) from jsonb_each(to_jsonb(s)) f where schedule_defaults() ? f.key
$$;

-- What the code says differently now. The two forms of a rule are one field: half of each would be no rule.
create or replace function changed_fields(before jsonb, after jsonb) returns jsonb language sql immutable
as $$
  select coalesce(jsonb_object_agg(f.key, f.value), '{}') from jsonb_each(after) f
  where f.value is distinct from before -> f.key
     or f.key in ('every', 'cron') and (before -> 'every', before -> 'cron') is distinct from (after -> 'every', after -> 'cron')
$$;
