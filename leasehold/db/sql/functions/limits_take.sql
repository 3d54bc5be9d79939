-- How a claim respects limits and pauses. limits.sql says why it does so.

-- The lanes that are not paused and have room, each with the room of its queue and of its kind, and how many jobs to take at most.
-- When this returns, the limits of those lanes are locked, and so are those of `keys` (null: of the keys at the head of the lanes);
-- no job was locked before. `wait` is false for a caller that has locked jobs itself. Limits that are not free within the time that
-- take_limits waits are left out with their lanes: `waited` says so, and upkeep checks them again.
create or replace function admit_lanes(
  inout lanes lane[], wanted integer, wait boolean, bounds claim_bounds, keys text[], out room integer, out waited boolean
) language plpgsql as $$
declare
  asked constant lane[] := lanes;
  applying limits[] := '{}';
  every limits[];  -- those of keys too
  held limits[];
  rooms room[];
begin
  room := wanted;
  waited := false;
  if bounds.pauses then
    lanes := array(select l from unnest(lanes) l where not exists (select from queues p where p.queue = l.queue));
  end if;
  if bounds.lane_limits then
    -- First without locks: claims that find a limit exhausted do not wait for its lock.
    applying := lane_limits(lanes);
    lanes := lanes_with_room(lanes, array(
      select row(a.scope, a.name, 0)::room from unnest(applying) a
      where running_under(a) >= a.max_running and cardinality(expired_under(a)) = 0));
    applying := lane_limits(lanes);
  end if;
  if cardinality(lanes) = 0 then
    room := 0;
    return;
  end if;
  every := applying || case when bounds.key_limits then limits_of_keys(lanes, wanted, keys) end;
  if cardinality(every) = 0 then
    return;
  end if;
  held := take_limits(every, wait);
  if cardinality(applying) > 0 then
    -- A statement of its own, which sees what the previous holders of the locks have committed: jobs, and the limits themselves.
    rooms := array(
      select row(l.scope, l.name, case when h.scope is null then 0 else room_under(l) end)::room
      from unnest(applying) a join limits l on l.scope = a.scope and l.name = a.name
      left join unnest(held) h on h.scope = l.scope and h.name = l.name);
    lanes := lanes_with_room(lanes, rooms);
    room := case when cardinality(lanes) = 0 then 0
      else least(wanted, (select r.free from unnest(rooms) r where r.scope = 'global')) end;
  end if;
  if cardinality(held) < cardinality(every) then
    if wait then
      waited := true;
      perform recheck_later(every, held);
    else
      perform announce(array(select distinct l.queue from unnest(asked) l));
    end if;
  end if;
end $$;

-- The lanes that no exhausted limit applies to, with the room of their queue and kind.
create or replace function lanes_with_room(lanes lane[], rooms room[]) returns lane[] language plpgsql stable as $$
begin
  return array(
    select row(l.queue, l.kind, l.rank, l.id, q.free, k.free)::lane
    from unnest(lanes) l
    left join unnest(rooms) g on g.scope = 'global'
    left join unnest(rooms) q on q.scope = 'queue' and q.name = l.queue
    left join unnest(rooms) k on k.scope = 'kind' and k.name = l.kind
    where coalesce(least(g.free, q.free, k.free), 1) > 0);
end $$;

create or replace function limits_wait() returns interval language sql immutable parallel safe return interval '250 milliseconds';

-- Lock limits, which all callers pass in the same order, and return those that are locked now. `wait`: wait for those that another
-- transaction has locked, a quarter of a second in all, unless another claim has waited for them already. Nothing is locked while it
-- waits: the limits that are free are locked in a subtransaction, which is rolled back at the first that is not; the next attempt
-- begins with that one.
create or replace function take_limits(applying limits[], wait boolean) returns limits[] language plpgsql as $$
declare
  deadline constant timestamptz := clock_timestamp() + limits_wait();
  timeout constant text := current_setting('lock_timeout');
  busy limits;
  l limits;
begin
  if cardinality(applying) = 1 then
    busy := applying[1];
    perform from limits t where t.scope = busy.scope and t.name = busy.name for no key update skip locked;
    if found then
      return applying;
    end if;
  end if;
  while wait and clock_timestamp() < deadline loop
    -- Another claim has waited for it already, and upkeep checks when it is free.
    exit when exists (select from limits_to_recheck r where r.scope = busy.scope and r.name = busy.name);
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
      return applying;
    -- A cycle of waits ends by their timeout; on a starved machine the server may find it before.
    exception when lock_not_available or deadlock_detected then
      null;  -- the next round begins with the busy limit; after the deadline it is left out
    end;
  end loop;
  return array(
    select t from limits t
    where (t.scope, t.name) in (select a.scope, a.name from unnest(applying) a)
    order by t.scope = 'key', t.scope, t.name for no key update skip locked);
end $$;

-- The limits that apply to lanes. Each is looked up by name, so the cost does not depend on how many limits there are.
create or replace function lane_limits(lanes lane[]) returns limits[] language plpgsql as $$
begin
  return array(
    select l.found from (
      select 'global' as scope, '' as name
      union select 'queue', e.queue from unnest(lanes) e
      union select 'kind', e.kind from unnest(lanes) e) a
    cross join lateral (select l as found from limits l where l.scope = a.scope and l.name = a.name limit 1) l
    order by a.scope, a.name);
end $$;

-- The limits of these keys; null: of the keys at the head of the lanes, which a claim is about to meet.
create or replace function limits_of_keys(lanes lane[], wanted integer, keys text[]) returns limits[] language plpgsql as $$
begin
  if keys is null then
    keys := array(
      select distinct j.exclusive_key
      from unnest(lanes) l
      cross join lateral (
        select j.exclusive_key from jobs j
        where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
          and (-j.priority, j.id) > (l.rank, l.id)
        order by -j.priority, j.id limit least(wanted, 100)) j
      where j.exclusive_key is not null);
  end if;
  return array(
    select l from limits l where l.scope = 'key' and l.name = any(array(select k.name from key_limits(keys) k))
    order by l.name);
end $$;

-- A claim could not lock those of the limits that are not `held`. Only the first such claim writes, and wakes upkeep, which checks
-- when they are free: workers that woke each other would claim again and again without taking a job.
create or replace function recheck_later(applying limits[], held limits[]) returns void language plpgsql as $$
begin
  insert into limits_to_recheck (scope, name)
  select a.scope, a.name from unnest(applying) a
  where (a.scope, a.name) not in (select h.scope, h.name from unnest(held) h)
    and not exists (select from limits_to_recheck r where r.scope = a.scope and r.name = a.name);
  if found then
    perform announce(array['@due']);
  end if;
end $$;

-- Announce the limits that claims could not lock and that are free now. promote calls it. It only tries their locks, in a
-- subtransaction: kept until the end of the transaction, they would stop all claims under these limits for as long.
create or replace function recheck_limits() returns void language plpgsql as $$
declare
  free limits[];
begin
  if not exists (select from limits_to_recheck) then
    return;
  end if;
  begin
    free := array(
      select l from limits l where (l.scope, l.name) in (select r.scope, r.name from limits_to_recheck r)
      order by l.scope = 'key', l.scope, l.name for no key update skip locked);
    raise lock_not_available;
  exception when lock_not_available then
    null;
  end;
  delete from limits_to_recheck r where r.seq = any(array(
    select m.seq from limits_to_recheck m
    where (m.scope, m.name) in (select f.scope, f.name from unnest(free) f)
      or not exists (select from limits l where l.scope = m.scope and l.name = m.name)
    for update skip locked));
  perform announce(array(select distinct case f.scope when 'queue' then f.name else '' end from unnest(free) f));
end $$;
