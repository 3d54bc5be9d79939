-- How a claim takes the limits that bear upon it. limits.sql says why so.

-- How long a claim waits for limits, in all.
create or replace function limits_wait() returns interval language sql immutable parallel safe return interval '250 milliseconds';

-- Lock limits, given in one order by all, and give the names of those that are locked now. `wait`: for those that another
-- transaction has, a quarter of a second in all, unless another claim has done so in vain. Nothing is locked while it waits: the limits that are free are taken
-- in a subtransaction, and given back at the first that is not; the next try begins with that one.
create or replace function take_limits(applying limits[], wait boolean) returns text[] language plpgsql
as $$
declare
  deadline constant timestamptz := clock_timestamp() + limits_wait();
  timeout constant text := current_setting('lock_timeout');
  busy limits;
  l limits;
begin
  if cardinality(applying) = 1 then
    perform from limits t where t.scope = applying[1].scope and t.name = applying[1].name for no key update skip locked;
    if found then
      return array[applying[1].scope || ' ' || applying[1].name];
    end if;
    busy := applying[1];
  end if;
  while wait and clock_timestamp() < deadline loop
    -- Another claim has waited for it in vain, and upkeep looks when it is free.
    exit when exists (select from unpark_later u where u.exclusive_key = limit_mark(busy.scope, busy.name));
    begin
      if busy.scope is not null then
        perform set_config('lock_timeout',
          greatest(1, 1000 * extract(epoch from deadline - clock_timestamp()))::integer::text, true);
        perform from limits t where t.scope = busy.scope and t.name = busy.name for no key update;
        perform set_config('lock_timeout', timeout, true);
      end if;
      foreach l in array applying loop
        perform from limits t where t.scope = l.scope and t.name = l.name for no key update skip locked;
        if not found and exists (select from limits t where t.scope = l.scope and t.name = l.name) then
          busy := l;
          raise lock_not_available;
        end if;
      end loop;
      return array(select a.scope || ' ' || a.name from unnest(applying) a);
    exception when lock_not_available then
      null;  -- again with the one that is busy; after the deadline without it
    end;
  end loop;
  return array(
    select t.scope || ' ' || t.name from limits t
    where (t.scope, t.name) in (select a.scope, a.name from unnest(applying) a)
    order by t.scope = 'key', t.scope, t.name for no key update skip locked);
end $$;

-- The limits of the keys that a claim is about to meet: those given, or those at the head of its lanes.
create or replace function limits_of_keys(lanes jsonb, wanted integer, keys text[]) returns limits[] language plpgsql
as $$
begin
  if keys is null then
    keys := array(
      select distinct j.exclusive_key
      from jsonb_to_recordset(lanes) l(queue text, kind text, priority smallint, id uuid)
      cross join lateral (
        select j.exclusive_key from jobs j
        where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
          and (-j.priority, j.id) > (coalesce(-l.priority, -32768)::smallint,
            coalesce(l.id, '00000000-0000-0000-0000-000000000000'))
        order by -j.priority, j.id limit least(wanted, 100)) j
      where j.exclusive_key is not null);
  end if;
  return array(
    select l from limits l where l.scope = 'key' and l.name = any(array(select k.name from key_limits(keys) k))
    order by l.name);
end $$;

-- What stands for a limit in unpark_later: a claim has waited for it in vain.
create or replace function limit_mark(scope text, name text) returns text language sql immutable parallel safe
return chr(1) || 'limit ' || scope || ' ' || name;

-- A claim has waited in vain for those of the limits that are not `held`. Only the first one writes, and wakes upkeep, which
-- looks when they are free: workers that woke each other would claim in vain without a pause.
create or replace function look_later(applying limits[], held text[]) returns void language plpgsql
as $$
begin
  insert into unpark_later (exclusive_key)
  select m.mark from (
    select limit_mark(a.scope, a.name) as mark from unnest(applying) a where a.scope || ' ' || a.name <> all(held)) m
  where not exists (select from unpark_later u where u.exclusive_key = m.mark);
  if found then
    perform announce(array['@due']);
  end if;
end $$;

-- Say which of the limits that claims have waited for in vain are free now. promote does it.
create or replace function look_again() returns void language plpgsql
as $$
declare
  free text[];
begin
  if not exists (select from limits) or not exists (select from unpark_later) then
    return;
  end if;
  free := array(
    select limit_mark(l.scope, l.name) from limits l
    where limit_mark(l.scope, l.name) in (select u.exclusive_key from unpark_later u)
    order by l.scope = 'key', l.scope, l.name for no key update skip locked);
  delete from unpark_later u where u.exclusive_key = any(free);
  perform announce(array(
    select distinct case l.scope when 'queue' then l.name else '' end from limits l
    where limit_mark(l.scope, l.name) = any(free)));
end $$;

-- The lanes that have room, each with the room of its queue and of its kind, and how many jobs to take at most. When
-- this returns, the limits of those lanes are locked, and so are those of the keys if `of_keys`: no job was locked
-- before that. `wait` is false for a caller that has locked jobs itself. What is not free, or not within the time that
-- take_limits waits, is left out; in the second case the lanes say so (`waited`), and upkeep looks again.
create or replace function admit_lanes(
  look jsonb, wanted integer, wait boolean, of_keys boolean, keys text[], out lanes jsonb, out room integer
) language plpgsql
as $$
declare
  applying limits[] := lane_limits(look);
  every limits[];  -- those of keys too
  held text[];
  rooms jsonb;
begin
  lanes := look;
  room := wanted;
  if cardinality(applying) > 0 then
    -- A first look without locks: those who find a limit exhausted do not queue up for it.
    rooms := (
      select jsonb_object_agg(a.scope || ' ' || a.name, 0) from unnest(applying) a
      where running_under(a) >= a.max_running and cardinality(expired_under(a)) = 0);
    lanes := lanes_with_room(lanes, rooms);
    applying := case when lanes is null then '{}' else lane_limits(lanes) end;
  end if;
  if lanes is null then
    room := 0;
    return;
  end if;
  every := applying || case when of_keys then limits_of_keys(lanes, wanted, keys) end;
  if cardinality(every) = 0 then
    return;
  end if;
  held := take_limits(every, wait);
  if cardinality(applying) > 0 then
    -- A statement of its own, which sees what the previous holders of the locks have committed: jobs, and the limits
    -- themselves.
    rooms := (
      select jsonb_object_agg(a.name, a.room) from (
        select l.scope || ' ' || l.name as name,
          case when l.scope || ' ' || l.name = any(held) then room_under(l) else 0 end as room
        from unnest(applying) a join limits l on l.scope = a.scope and l.name = a.name) a);
    lanes := lanes_with_room(lanes, rooms);
    room := least(wanted, (rooms ->> 'global ')::integer);
    if lanes is null then
      room := 0;
    end if;
  end if;
  if cardinality(held) < cardinality(every) then
    if wait then
      perform look_later(every, held);
      lanes := (select jsonb_agg(e || '{"waited": true}') from jsonb_array_elements(lanes) e);
    else
      perform announce(array(select distinct e ->> 'queue' from jsonb_array_elements(look) e));
    end if;
  end if;
end $$;

-- The lanes none of whose limits is exhausted, with the rooms of their queue and kind written to them.
create or replace function lanes_with_room(lanes jsonb, rooms jsonb) returns jsonb language sql stable
as $$
  select jsonb_agg(e || jsonb_build_object('queue_room', q.room, 'kind_room', k.room))
  from jsonb_array_elements(lanes) e
  cross join lateral (select (rooms ->> ('queue ' || (e ->> 'queue')))::integer as room) q
  cross join lateral (select (rooms ->> ('kind ' || (e ->> 'kind')))::integer as room) k
  where coalesce(least((rooms ->> 'global ')::integer, q.room, k.room), 1) > 0
$$;
