-- Limits on the beginning of exclusive keys. limits.sql says how limits are counted and locked.
-- A job under an exhausted key limit is parked (see exclusive.sql), `parked_under` that limit. Each end of a job of
-- the prefix puts the best ones back; a claimer parks only behind a job that it runs itself, or the lock of whose key it
-- has (exclusive.sql says why), so that this end comes after the parking. sweep finds what a broken-off transaction may have left behind.

-- The key limits that bear upon these keys. Names of few lengths, as nearly always, are looked up one by one: what it costs
-- hardly depends on how many limits there are.
create or replace function key_limits(keys text[]) returns table (key text, name text) language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with lengths as materialized (select distinct char_length(l.name) as length from limits l where l.scope = 'key')
    select k.key, l.name
    from (select distinct unnest(keys) collate "C" as key) k cross join lengths n
    join limits l on l.scope = 'key' and l.name = left(k.key, n.length)
    where k.key is not null;
end $$;

-- Of the locked `candidates`, of which `won` have their keys, those that the key limits admit; the others are parked.
-- `taken` are what the same claim took before, and `rooms` what was left then of the limits that it has locked: nobody
-- else can have taken of it since. Jobs are locked by now, so a limit that admit_lanes has not locked is taken if it is
-- free; if not, its jobs stay where they are (`passed`).
create or replace function admit_in_rooms(
  candidates uuid[], won uuid[], taken uuid[], inout rooms jsonb, out admitted uuid[], out touched boolean, out passed boolean
) language plpgsql
as $$
declare
  demands jsonb;              -- the limits in question, and how many of `won` come under each
  unknown text[];             -- those of them that were not counted yet
begin
  admitted := won;
  passed := false;
  select jsonb_object_agg(t.name, t.jobs) into demands
  from (
    select l.name, count(*) filter (where j.id = any(won)) as jobs
    from jobs j join key_limits(array(select c.exclusive_key from jobs c where c.id = any(candidates))) l
      on l.key = j.exclusive_key
    where j.id = any(candidates) and j.exclusive_key is not null group by l.name) t;
  touched := demands is not null;
  if not touched then
    return;
  end if;
  unknown := array(select n from jsonb_object_keys(demands) n where not rooms ? n);
  if cardinality(unknown) > 0 then
    unknown := array(
      select l.name from limits l where l.scope = 'key' and l.name = any(unknown)
      order by l.name for no key update skip locked);
    rooms := rooms || coalesce((
      select jsonb_object_agg(l.name, room_under(l) - (
        select count(*) from jobs t where t.id = any(taken) and starts_with(t.exclusive_key, l.name)))
      from limits l where l.scope = 'key' and l.name = any(unknown)), '{}');
  end if;
  if (select bool_and(rooms ? d.key and (rooms ->> d.key)::integer >= d.value::integer) from jsonb_each_text(demands) d) then
    -- Room for all of them, as nearly always.
    rooms := rooms || (
      select jsonb_object_agg(d.key, (rooms ->> d.key)::integer - d.value::integer) from jsonb_each_text(demands) d);
  else
    select a.admitted, a.passed, a.rooms into admitted, passed, rooms from admit_each(won, taken, rooms) a;
  end if;
  if cardinality(won) < cardinality(candidates) then
    -- Where a job that was put back has lost its key to a sibling meanwhile, the next one takes its place.
    perform unpark_under(l.name, lost.jobs::integer)
    from limits l
    cross join lateral (
      select least(count(*), (rooms ->> l.name)::integer) as jobs from jobs j
      where j.id = any(candidates) and j.id <> all(won) and starts_with(j.exclusive_key, l.name)) lost
    where l.scope = 'key' and rooms ? l.name and lost.jobs > 0;
  end if;
end $$;

-- The same for whoever claims no more after that.
create or replace function admit_keys(
  candidates uuid[], won uuid[], taken uuid[], out admitted uuid[], out touched boolean, out passed boolean
) language plpgsql
as $$
begin
  select a.admitted, a.touched, a.passed into admitted, touched, passed from admit_in_rooms(candidates, won, taken, '{}') a;
end $$;

-- The same job by job, in claim order, where there is not room for all. Parks whom a limit refuses.
create or replace function admit_each(won uuid[], taken uuid[], inout rooms jsonb, out admitted uuid[], out passed boolean)
language plpgsql
as $$
declare
  job record;
  names_of constant jsonb := (
    select jsonb_object_agg(t.key, t.names) from (
      select l.key, jsonb_agg(l.name order by l.name) as names
      from key_limits(array(select j.exclusive_key from jobs j where j.id = any(won))) l group by l.key) t);
  full_name text;
  refused_ids uuid[] := '{}';
  refused_under text[] := '{}';
begin
  passed := false;
  admitted := array(select j.id from jobs j where j.id = any(won) and j.exclusive_key is null);
  for job in
    select j.id, array(select jsonb_array_elements_text(names_of -> j.exclusive_key)) as names
    from jobs j where j.id = any(won) and j.exclusive_key is not null order by -j.priority, j.id
  loop
    if not rooms ?& job.names then
      passed := true;
      continue;
    end if;
    full_name := (select n from unnest(job.names) n where (rooms ->> n)::integer <= 0 limit 1);
    if full_name is null then
      admitted := admitted || job.id;
      rooms := rooms || coalesce((select jsonb_object_agg(n, (rooms ->> n)::integer - 1) from unnest(job.names) n), '{}');
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

-- Park jobs that an exhausted limit refuses, and with them the best runnable job of up to 1000 other keys of the
-- prefix, lest every claim walks over them. `ours` are the jobs that the claim takes.
create or replace function park_under(l limits, refused uuid[], ours uuid[]) returns void language plpgsql
as $$
declare
  heads uuid[];
  holder uuid;    -- a job that runs until we commit: its end waits for the lock of its key
begin
  -- Somebody's end must come after this parking. With a limit of 0 that is the end of the limit.
  if l.max_running > 0 and not exists (
    select from jobs j where j.id = any(ours) and starts_with(j.exclusive_key, l.name))
  then
    holder := (
      select j.id from jobs j
      where j.state is not distinct from 'running' and j.exclusive_key >= l.name and j.exclusive_key < l.ends_before
        and pg_try_advisory_xact_lock(exclusive_lock(j.exclusive_key))
      limit 1);
    -- A statement of its own: it sees what ended before we had the lock.
    if not exists (select from jobs j where j.id = holder and j.state is not distinct from 'running') then
      -- The ends under way cannot unpark a job that we hold: it is done for them.
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
    order by j.id for update skip locked)
  update jobs j set parked = true, parked_under = l.name from behind b where j.id = b.id;
end $$;

-- Put the best `places` jobs of each queue and kind that are parked under a limit back among the runnable ones. Of
-- each, because nobody may be there to claim the best of all.
create or replace function unpark_under(name text, places integer) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
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
      order by -j.priority, j.id limit places for update skip locked) b
  ), freed as (
    update jobs j set parked = false, parked_under = null from best b where j.id = b.id returning j.queue)
  select array_agg(distinct f.queue) into queues from freed f;
  perform announce(queues);
end $$;

-- Jobs with these keys have ended. At least one is put back for each limit: concurrent ends do not see each other,
-- and each of them may believe that the other's job still runs.
create or replace function unpark_limited(keys text[]) returns void language plpgsql
as $$
begin
  perform unpark_under(l.name, greatest(1, l.max_running - running_under(l)))
  from limits l
  where l.scope = 'key' and l.max_running > 0 and l.name = any(array(select k.name from key_limits(keys) k));
end $$;

-- Put back what is parked although there is room, or although its limit is gone. Nothing should be.
create or replace function unpark_forgotten() returns void language plpgsql
as $$
declare
  under text;
  l limits;
begin
  loop
    under := (
      select min(j.parked_under) from jobs j
      where j.exclusive_key is not null and j.parked and j.parked_under > coalesce(under, ''));
    exit when under is null;
    select * into l from limits where scope = 'key' and name = under;
    if not found then
      perform unpark_under(under, 1000);
    elsif running_under(l) < l.max_running then
      perform unpark_under(under, least(1000, l.max_running - running_under(l)));
    end if;
  end loop;
end $$;

-- Whether jobs are parked under a limit that is gone. One probe for each limit that has parked jobs.
create or replace function limits_gone() returns boolean language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return (
    with recursive under(name) as (
      select min(j.parked_under) from jobs j where j.exclusive_key is not null and j.parked and j.parked_under is not null
      union all
      select (select min(j.parked_under) from jobs j
        where j.exclusive_key is not null and j.parked and j.parked_under is not null and j.parked_under > u.name)
      from under u where u.name is not null)
    select coalesce(bool_or(l.name is null), false)
    from under u left join limits l on l.scope = 'key' and l.name = u.name where u.name is not null);
end $$;

-- Where jobs are parked under limits, sweep what has expired among the jobs with keys: a claim would not come across a
-- limit behind which everybody is parked. One probe for each queue that has running jobs.
create or replace function expire_for_parked() returns integer language plpgsql
as $$
declare
  at timestamptz := clock();
begin
  if not exists (select from jobs j where j.exclusive_key is not null and j.parked and j.parked_under is not null) then
    return 0;
  end if;
  return take_back(array(
    with recursive q(queue) as (
      select min(j.queue) from jobs j where j.state = 'running'
      union all
      select (select min(j.queue) from jobs j where j.state = 'running' and j.queue > q.queue) from q where q.queue is not null)
    select j.id from q cross join lateral (
      select j.id from jobs j
      where j.state = 'running' and j.queue = q.queue and j.lease_expires_at <= at and j.exclusive_key is not null
      limit 100) j));
end $$;
