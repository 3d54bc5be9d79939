-- Limits on the beginning of exclusive keys. limits.sql says how limits are counted and locked.
-- A job under an exhausted key limit is parked (see exclusive.sql), `parked_under` that limit. Each end of a job of the prefix puts the
-- best ones back; a claim parks only behind a job that it takes itself, or the lock of whose key it holds (exclusive.sql says why), so
-- that this end comes after the parking. sweep finds what an aborted transaction may have left parked.

-- The key limits that apply to these keys. The names of limits have few lengths, nearly always; one lookup per key and length, so that
-- the cost hardly depends on how many limits there are.
create or replace function key_limits(keys text[]) returns table (key text, name text) language plpgsql stable as $$
begin
  return query
    with lengths as materialized (select distinct char_length(l.name) as length from limits l where l.scope = 'key')
    select k.key, l.name
    from (select distinct unnest(keys) collate "C" as key) k cross join lengths n
    join limits l on l.scope = 'key' and l.name = left(k.key, n.length)
    where k.key is not null;
end $$;

-- Return which of `won`, the `candidates` that got their keys, the key limits admit, and park the others. The caller has locked all.
-- `taken` are the jobs that the same claim took before, and `rooms` what was left then of the limits that it has locked: no other
-- session can have used it since. Jobs are locked by now, so a limit that admit_lanes has not locked is locked if it is free; if not, its
-- jobs stay where they are (`passed`). `touched`: limits apply to some candidates.
create or replace function admit_in_rooms(
  candidates uuid[], won uuid[], taken uuid[], inout rooms room[], out admitted uuid[], out touched boolean, out passed boolean
) language plpgsql as $$
declare
  needs room[];               -- the limits that apply, with how many of `won` need them as a negative `free`, to be added to `rooms`
  unknown text[];             -- those of them that were not counted yet
begin
  admitted := won;
  passed := false;
  needs := array(
    select row('key', l.name, -count(*) filter (where j.id = any(won)))::room
    from jobs j join key_limits(array(select c.exclusive_key from jobs c where c.id = any(candidates))) l
      on l.key = j.exclusive_key
    where j.id = any(candidates) and j.exclusive_key is not null group by l.name);
  touched := cardinality(needs) > 0;
  if not touched then
    return;
  end if;
  unknown := array(select n.name from unnest(needs) n where n.name not in (select r.name from unnest(rooms) r));
  if cardinality(unknown) > 0 then
    unknown := array(
      select l.name from limits l where l.scope = 'key' and l.name = any(unknown)
      order by l.name for no key update skip locked);
    rooms := rooms || array(
      select row('key', l.name, room_under(l) - (
        select count(*) from jobs t where t.id = any(taken) and starts_with(t.exclusive_key, l.name)))::room
      from limits l where l.scope = 'key' and l.name = any(unknown));
  end if;
  if exists (select from unnest(needs) n left join unnest(rooms) r on r.name = n.name where coalesce(r.free + n.free < 0, true)) then
    select a.admitted, a.passed, a.rooms into admitted, passed, rooms from admit_each(won, taken, rooms) a;
  else
    -- Room for all of them, as nearly always.
    rooms := array(select row('key', r.name, sum(r.free))::room from unnest(rooms || needs) r group by r.name);
  end if;
  if cardinality(won) < cardinality(candidates) then
    -- Where a job that was put back has lost its key to a sibling meanwhile, the next one takes its place.
    perform unpark_under(r.name, lost.jobs::integer)
    from unnest(rooms) r
    cross join lateral (
      select least(count(*), r.free) as jobs from jobs j
      where j.id = any(candidates) and j.id <> all(won) and starts_with(j.exclusive_key, r.name)) lost
    where lost.jobs > 0;
  end if;
end $$;

-- The same job by job, in claim order, where there is not room for all. Parks the jobs that a limit refuses.
create or replace function admit_each(won uuid[], taken uuid[], inout rooms room[], out admitted uuid[], out passed boolean)
language plpgsql as $$
declare
  counted constant text[] := array(select r.name from unnest(rooms) r);
  job record;
  full_name text;
  refused_ids uuid[] := '{}';
  refused_under text[] := '{}';
begin
  passed := false;
  admitted := array(select j.id from jobs j where j.id = any(won) and j.exclusive_key is null);
  for job in
    select j.id, array_remove(array_agg(l.name), null) as limits
    from jobs j left join key_limits(array(select w.exclusive_key from jobs w where w.id = any(won))) l on l.key = j.exclusive_key
    where j.id = any(won) and j.exclusive_key is not null group by j.priority, j.id order by -j.priority, j.id
  loop
    if not job.limits <@ counted then
      passed := true;
      continue;
    end if;
    full_name := (select min(r.name) from unnest(rooms) r where r.name = any(job.limits) and r.free <= 0);
    if full_name is null then
      admitted := admitted || job.id;
      rooms := array(select row('key', r.name, r.free - (r.name = any(job.limits))::integer)::room from unnest(rooms) r);
    else
      refused_ids := refused_ids || job.id;
      refused_under := refused_under || full_name;
    end if;
  end loop;
  for full_name in select distinct unnest(refused_under) loop
    perform park_under(l, array(select t.id from unnest(refused_ids, refused_under) t(id, name) where t.name = full_name),
      taken || admitted)
    from limits l where l.scope = 'key' and l.name = full_name;
  end loop;
end $$;

-- Park jobs that an exhausted limit refuses, and with them the best runnable job of up to 1000 other keys of the prefix, so that not
-- every claim reads them. `ours` are the jobs that the claim takes.
create or replace function park_under(l limits, refused uuid[], ours uuid[]) returns void language plpgsql as $$
declare
  heads uuid[];
  holder uuid;    -- a job that runs until this commit: its end waits for the lock of its key
begin
  -- The end of some job must come after this parking. With a limit of 0 the end of the limit does.
  if l.max_running > 0 and not exists (select from jobs j where j.id = any(ours) and starts_with(j.exclusive_key, l.name)) then
    holder := (
      select j.id from jobs j
      where j.state is not distinct from 'running' and j.exclusive_key >= l.name and j.exclusive_key < l.ends_before
        and pg_try_advisory_xact_lock(exclusive_lock(j.exclusive_key))
      limit 1);
    -- A statement of its own: it sees what ended before we had the lock.
    if not exists (select from jobs j where j.id = holder and j.state is not distinct from 'running') then
      -- The sessions that end jobs now cannot unpark a job that this claim has locked: unpark it for them.
      update jobs j set parked = false where j.id = any(refused) and j.parked;
      return;
    end if;
  end if;
  heads := array(
    select distinct on (j.exclusive_key) j.id from jobs j
    where j.state is not distinct from 'queued' and j.parked is distinct from true
      and j.exclusive_key >= l.name and j.exclusive_key < l.ends_before and j.id <> all(ours)
    order by j.exclusive_key, -j.priority, j.id limit 1000);
  with behind as materialized (
    select j.id from jobs j
    where j.id = any(refused || heads) and j.state is not distinct from 'queued'
    order by j.id for no key update skip locked)
  update jobs j set parked = true, parked_under = l.name from behind b where j.id = b.id;
end $$;

-- Put the best `places` jobs of each queue and kind that are parked under a limit back among the runnable ones: of each, because there
-- may be no worker for the best of all.
create or replace function unpark_under(name text, places integer) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
  queues text[];
begin
  with recursive lane(queue, kind) as (
    (select j.queue, j.kind from jobs j
     where j.exclusive_key is not null and j.parked and j.parked_under = unpark_under.name
     order by j.queue, j.kind limit 1)
    union all
    select n.queue, n.kind from lane l cross join lateral (
      select j.queue, j.kind from jobs j
      where j.exclusive_key is not null and j.parked and j.parked_under = unpark_under.name
        and (j.queue, j.kind) > (l.queue, l.kind)
      order by j.queue, j.kind limit 1) n
  ), best as materialized (
    select b.id from lane l cross join lateral (
      select j.id from jobs j
      where j.exclusive_key is not null and j.parked and j.parked_under = unpark_under.name
        and j.queue = l.queue and j.kind = l.kind
      order by -j.priority, j.id limit places for no key update skip locked) b
  ), freed as (
    update jobs j set parked = false, parked_under = null from best b where j.id = b.id returning j.queue)
  select array_agg(distinct f.queue) into queues from freed f;
  perform announce(queues);
end $$;

-- The names of the limits under which jobs are parked: one index probe for each.
create or replace function parked_limits() returns setof text language sql stable as $$
  with recursive under(name) as (
    select min(j.parked_under) from jobs j where j.exclusive_key is not null and j.parked and j.parked_under is not null
    union all
    select (select min(j.parked_under) from jobs j
      where j.exclusive_key is not null and j.parked and j.parked_under is not null and j.parked_under > u.name)
    from under u where u.name is not null)
  select u.name from under u where u.name is not null
$$;

-- Put back the jobs that are parked although their limit has room or was dropped. There should be none.
create or replace function unpark_forgotten() returns void language plpgsql as $$
begin
  perform unpark_under(u.name, least(1000, u.places))
  from (select p.name, case when l.name is null then 1000 else l.max_running - running_under(l) end as places
        from parked_limits() p(name) left join limits l on l.scope = 'key' and l.name = p.name) u
  where u.places > 0;
end $$;

-- Whether jobs are parked under a limit that was dropped.
create or replace function limits_gone() returns boolean language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  return exists (
    select from parked_limits() p(name) where not exists (select from limits l where l.scope = 'key' and l.name = p.name));
end $$;

-- Where jobs are parked under limits, sweep the expired jobs with keys: a claim does not see a limit under which all jobs are parked.
-- One index probe for each queue that has running jobs.
create or replace function expire_for_parked() returns integer language plpgsql as $$
declare
  at constant timestamptz := clock();
begin
  if not exists (select from jobs j where j.exclusive_key is not null and j.parked and j.parked_under is not null) then
    return 0;
  end if;
  return isolated('expire', array(
    select j.id from running_queues() q cross join lateral (
      select j.id from jobs j
      where j.state = 'running' and j.queue = q and j.lease_expires_at <= at and j.exclusive_key is not null
      limit 100) j));
end $$;
