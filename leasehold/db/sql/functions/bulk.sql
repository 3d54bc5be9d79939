-- Changes of many jobs at once, and of one that waits. Each call does a bounded amount: at most `max` jobs, after reading
-- no more than `scan` of each state. `capped`: there may be more that match; call again. `cursor_here` continues where this call
-- was cut; null: it has come to the end, and with `capped` only jobs that it skipped are left. A locked job is skipped: a transaction that
-- holds many jobs must not wait for one, or two of them could wait for each other. Each job goes through retry or cancel
-- itself, so that both follow the same rules.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- A place of find_jobs as a cursor, and back. A cursor names ids and times only, because its caller may not know of other queues, kinds
-- and keys; these never change, so the job itself has them. If that was pruned meanwhile, its order is read from the start.
create or replace function bulk_cursor(place jsonb) returns text language sql immutable
return case place ->> 0 when 'running' then place - 1 when 'queued' then place - 3 - 2 - 1 when 'parked' then place - 4 - 3 - 2 - 1
  else place end::text;

create or replace function bulk_place(cursor jsonb) returns jsonb language plpgsql stable as $$
begin
  return case when cursor ->> 0 in ('running', 'queued', 'parked') then coalesce((
    select case cursor ->> 0 when 'running' then jsonb_build_array('running', j.queue, cursor ->> 1, j.id)
      when 'queued' then jsonb_build_array('queued', j.queue, j.kind, -j.priority, j.id)
      else jsonb_build_array('parked', j.exclusive_key, j.queue, j.kind, -j.priority, j.id) end
    from jobs j where j.id = (cursor ->> -1)::uuid), jsonb_build_array(cursor -> 0)) else cursor end;
end $$;

-- At most `max` jobs in these states that match, and the cursor that continues behind them. In the order in which jobs move on: one
-- that comes due or is claimed between two calls is found by the second; one that fails between them may be found by neither.
create or replace function find_many(
  filter jsonb, allowed text[], max integer, scan integer, cursor text, out ids uuid[], out cursor_here text
) language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  ways constant text[] := case when 'dead' = any(allowed) then '{finished}' else '{waiting,unaccepted,queued,running}' end;
  states_in constant jsonb := '{"finished": ["dead"], "waiting": ["created", "retry"], "unaccepted": ["created"],
    "queued": ["queued"], "running": ["running"]}';
  after jsonb := bulk_place(cursor::jsonb);
  way text;
  wanted jsonb;
  here jsonb;
  place jsonb;
  last jsonb;
  f record;
begin
  perform check_filter(filter);
  perform require(max between 1 and 10000 and scan between 1 and 1000000, format('max %s, scan %s', max, scan),
    'take 1 to 10000 jobs and let 1 to 1000000 be read');
  wanted := coalesce(listed_in(filter, 'state'), to_jsonb(allowed));
  perform require(wanted <@ to_jsonb(allowed), format('state %s', filter ->> 'state'),
    format('this is for jobs that are %s', array_to_string(allowed, ', ')));
  if cursor is not null and coalesce(after ->> 0 <> all(ways || case when 'queued' = any(ways) then '{parked}'::text[] end), true) then
    perform refuse_cursor();
  end if;
  ids := '{}';
  foreach way in array ways[coalesce(array_position(ways, replace(after ->> 0, 'parked', 'queued')), 1):] loop
    here := (select jsonb_agg(s) from jsonb_array_elements_text(states_in -> way) s where wanted ? s);
    place := coalesce(after, jsonb_build_array(way));
    after := null;
    continue when here is null;
    -- Of jobs that were submitted and not accepted only the latest are searched: they have no index.
    for f in select * from find_jobs(filter || jsonb_build_object('state', here), place, max + 1 - cardinality(ids),
        case way when 'unaccepted' then least(scan, 10000) else scan end) loop
      continue when f.id is null and way = 'unaccepted';
      if f.id is null or cardinality(ids) = max then
        cursor_here := bulk_cursor(case when f.id is null then f.place else last end);
        return;
      end if;
      ids := ids || f.id;
      last := f.place;
    end loop;
  end loop;
end $$;

-- Retry or cancel the jobs that match and are in one of these states.
create or replace function change_many(
  change text, filter jsonb, allowed text[], max integer, dry_run boolean, scan integer, why text, notify boolean, cursor text,
  out matched integer, out changed integer, out capped boolean, out cursor_here text
) language plpgsql as $$
declare
  found_now record := find_many(filter, allowed, max, scan, cursor);
  mine uuid[];
begin
  matched := cardinality(found_now.ids);
  cursor_here := found_now.cursor_here;
  capped := cursor_here is not null;
  changed := 0;
  if dry_run or matched = 0 then
    return;
  end if;
  -- In a statement of its own: a row that the same statement has changed, by unparking it, would be skipped.
  mine := array(
    select j.id from jobs j
    where j.id = any(found_now.ids) and j.state is distinct from 'success' and (j.state is not distinct from 'dead') = (change = 'retry')
    order by j.id for no key update skip locked);
  select count(*) filter (where case change when 'retry' then retry_v1(t.id, false) else cancel_v1(t.id, why) end)
  into changed from unnest(mine) t(id);
  capped := capped or changed < matched;
  perform announce(array(select distinct j.queue from jobs j where j.id = any(mine))) where notify;
end $$;

-- Retry the dead jobs that match, the latest first where there are more than `max`.
create or replace function retry_many_v1(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, cursor text default null,
  scan integer default 50000, notify boolean default true
) returns table (matched integer, changed integer, capped boolean, cursor_here text) language sql
as $$ select * from change_many('retry', filter, '{dead}', max, dry_run, scan, null, notify, cursor) $$;

create or replace function cancel_many_v1(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, why text default null,
  cursor text default null, scan integer default 50000
) returns table (matched integer, changed integer, capped boolean, cursor_here text) language sql
as $$ select * from change_many('cancel', filter, '{created,retry,queued,running}', max, dry_run, scan, why, false, cursor) $$;
