-- Limits: at most max_running jobs under live leases, in all ('global'), of a queue, of a kind, or of the exclusive
-- keys that begin with a prefix ('key'). A job obeys all that apply to it. 0: nothing may run.
-- Error of set_limit and drop_limit: LH003 invalid_argument.
--
-- Why the bound is exact. A claim locks the rows of the limits that apply, and only then, in a statement of its own,
-- counts: whoever held them before has committed, and what it took is seen. Everything that is `running` counts; an
-- expired lease gives its place back by being swept on the spot. One that cannot be swept, because somebody is
-- writing its row, still counts: that may be a heartbeat which found the lease alive a moment ago.
--
-- Why nobody deadlocks. Limits of lanes are locked before those of keys, each in the order of their names and in one
-- statement; a later round of the same claim takes further ones only if they are free. Job rows are never waited for.
--
-- A job under an exhausted key limit is parked (see exclusive.sql), `parked_under` that limit. Each end of a job of
-- the prefix puts the best ones back; a claimer parks only behind a job that it has share-locked, or runs itself, so
-- that this end comes after the parking. sweep finds what a broken-off transaction may have left behind.

-- Whether there are limits on lanes (global, queue, kind) and on keys; every claim asks first. The table lock holds up
-- nobody but set_limit and drop_limit: they wait for claims that are under way and do not know of them.
create or replace function limits_exist(out of_lanes boolean, out of_keys boolean) language plpgsql
as $$
begin
  lock table limits in row share mode;
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable')
     -- Not by looking: the snapshot may be older than the limit.
     and pg_relation_size('limits') > 0 then
    perform refuse('LH003', 'invalid_argument',
      format('transaction isolation level %s', current_setting('transaction_isolation')),
      'where there are limits, claim under READ COMMITTED: an old snapshot cannot count what runs now');
  end if;
  of_lanes := exists (select from limits l where l.scope in ('global', 'queue', 'kind'));
  of_keys := exists (select from limits l where l.scope = 'key');
end $$;

-- How many jobs run under a limit, counted no further than the limit. Volatile: each call counts anew.
create or replace function running_under(l limits) returns integer language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
  return case l.scope
    when 'global' then (select count(*) from (
      select from jobs j where j.state = 'running' limit l.max_running) t)
    when 'queue' then (select count(*) from (
      select from jobs j where j.state = 'running' and j.queue = l.name limit l.max_running) t)
    when 'kind' then (select count(*) from (
      select from jobs j where j.state = 'running' and j.kind = l.name limit l.max_running) t)
    else (select count(*) from (
      select from jobs j where j.state is not distinct from 'running' and j.exclusive_key >= l.name
        and j.exclusive_key < l.ends_before limit l.max_running) t)
  end;
end $$;

-- Sweep the expired leases under a limit. Gives how many.
create or replace function expire_under(l limits) returns integer language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
  at timestamptz := clock();
begin
  return expire(case l.scope
    when 'key' then array(
      select j.id from jobs j where j.state is not distinct from 'running' and j.exclusive_key >= l.name
        and j.exclusive_key < l.ends_before and j.lease_expires_at <= at limit 1000)
    when 'queue' then array(
      select j.id from jobs j where j.state = 'running' and j.queue = l.name and j.lease_expires_at <= at limit 1000)
    else array(
      select j.id from jobs j where j.state = 'running' and j.lease_expires_at <= at
        and (l.scope = 'global' or j.kind = l.name) limit 1000)
  end);
end $$;

-- How many more jobs may start under a limit.
create or replace function room_under(l limits) returns integer language plpgsql
as $$
declare
  room integer := l.max_running - running_under(l);
begin
  if room <= 0 and l.max_running > 0 and expire_under(l) > 0 then
    room := l.max_running - running_under(l);
  end if;
  return room;
end $$;

-- The lanes that have room, each with the room of its queue and of its kind, and how many jobs to take at most.
-- The limits of those lanes are locked when this returns.
create or replace function admit_lanes(look jsonb, wanted integer, out lanes jsonb, out room integer) language plpgsql
as $$
declare
  queues text[];
  kinds text[];
  applying limits[];
  rooms jsonb;
begin
  lanes := look;
  room := wanted;
  -- Almost always the end of it: look-ups whose cost does not depend on how many limits there are.
  if not exists (select from limits l where l.scope = 'global') and not exists (
    select from jsonb_to_recordset(look) e(queue text, kind text) cross join lateral (
      select from limits l where l.scope = 'queue' and l.name = e.queue
      union all
      select from limits l where l.scope = 'kind' and l.name = e.kind
      limit 1) l)
  then
    return;
  end if;
  -- A first look without locks: those who find a limit exhausted do not queue up to be told so.
  for round in 1..2 loop
    queues := array(select distinct e ->> 'queue' from jsonb_array_elements(lanes) e);
    kinds := array(select distinct e ->> 'kind' from jsonb_array_elements(lanes) e);
    applying := array(
      select l from limits l
      where l.scope = 'global' or l.scope = 'queue' and l.name = any(queues) or l.scope = 'kind' and l.name = any(kinds)
      order by l.scope, l.name);
    if cardinality(applying) = 0 then
      return;
    end if;
    if round = 2 then
      perform from limits l where (l.scope, l.name) in (select a.scope, a.name from unnest(applying) a)
      order by l.scope, l.name for no key update;
    end if;
    rooms := (select jsonb_object_agg(a.scope || ' ' || a.name, room_under(a)) from unnest(applying) a);
    room := least(wanted, (rooms ->> 'global ')::integer);
    lanes := (
      select jsonb_agg(e || jsonb_build_object('queue_room', rooms -> ('queue ' || (e ->> 'queue')),
        'kind_room', rooms -> ('kind ' || (e ->> 'kind'))))
      from jsonb_array_elements(lanes) e
      where least(room, (rooms ->> ('queue ' || (e ->> 'queue')))::integer, (rooms ->> ('kind ' || (e ->> 'kind')))::integer) > 0);
    if lanes is null then
      room := 0;
      return;
    end if;
  end loop;
end $$;

-- Of the locked `candidates`, of which `won` have their keys, those that the key limits admit; the others are parked.
-- `taken` are what the same claim took before. `wait`: these are the first key limits that it locks.
create or replace function admit_keys(
  candidates uuid[], won uuid[], taken uuid[], wait boolean, out admitted uuid[], out touched boolean
) language plpgsql
as $$
declare
  names text[];               -- the limits in question
  held text[];                -- those that are ours until we commit
  rooms jsonb;
  job record;
  full_name text;
  refused_ids uuid[] := '{}';
  refused_under text[] := '{}';
begin
  admitted := won;
  names := array(
    select distinct l.name from jobs j join limits l on l.scope = 'key' and starts_with(j.exclusive_key, l.name)
    where j.id = any(candidates) and j.exclusive_key is not null);
  touched := cardinality(names) > 0;
  if not touched then
    return;
  end if;
  if wait then
    perform from limits l where l.scope = 'key' and l.name = any(names) order by l.name for no key update;
    held := names;
  else
    held := array(
      select l.name from limits l where l.scope = 'key' and l.name = any(names)
      order by l.name for no key update skip locked);
  end if;
  select coalesce(jsonb_object_agg(l.name, room_under(l) - (
    select count(*) from jobs t where t.id = any(taken) and starts_with(t.exclusive_key, l.name))), '{}') into rooms
  from limits l where l.scope = 'key' and l.name = any(held);

  admitted := array(select j.id from jobs j where j.id = any(won) and j.exclusive_key is null);
  for job in
    select j.id, array(
      select l.name from limits l where l.scope = 'key' and starts_with(j.exclusive_key, l.name) order by l.name) as names
    from jobs j where j.id = any(won) and j.exclusive_key is not null order by -j.priority, j.id
  loop
    continue when not job.names <@ held;    -- somebody else is counting there: the job stays where it is
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
  -- Where a job that was put back has lost its key to a sibling meanwhile, the next one takes its place.
  perform unpark_under(l.name, lost.jobs::integer)
  from limits l
  cross join lateral (
    select least(count(*), (rooms ->> l.name)::integer) as jobs from jobs j
    where j.id = any(candidates) and j.id <> all(won) and starts_with(j.exclusive_key, l.name)) lost
  where l.scope = 'key' and l.name = any(held) and lost.jobs > 0;
end $$;

-- Park jobs that an exhausted limit refuses, and with them the best runnable job of up to 1000 other keys of the
-- prefix, lest every claim walks over them. `ours` are the jobs that the claim takes.
create or replace function park_under(l limits, refused uuid[], ours uuid[]) returns void language plpgsql
as $$
declare
  heads uuid[];
begin
  -- Somebody's end must come after this parking. With a limit of 0 that is the end of the limit.
  if l.max_running > 0 and not exists (
    select from jobs j where j.id = any(ours) and starts_with(j.exclusive_key, l.name))
  then
    perform from jobs j
    where j.state is not distinct from 'running' and j.exclusive_key >= l.name and j.exclusive_key < l.ends_before
    limit 1 for share skip locked;
    if not found then
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
  where l.scope = 'key' and l.max_running > 0 and exists (select from unnest(keys) k where starts_with(k, l.name));
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
      perform unpark_under(under, 2147483647);
    elsif running_under(l) < l.max_running then
      perform unpark_under(under, l.max_running - running_under(l));
    end if;
  end loop;
end $$;

-- Where jobs are parked under limits, sweep what has expired among the jobs with keys: a claim would not come across a
-- limit behind which everybody is parked. One probe for each queue that has running jobs.
create or replace function expire_for_parked() returns void language plpgsql
as $$
declare
  at timestamptz := clock();
begin
  if not exists (select from jobs j where j.exclusive_key is not null and j.parked and j.parked_under is not null) then
    return;
  end if;
  perform expire(array(
    with recursive q(queue) as (
      select min(j.queue) from jobs j where j.state = 'running'
      union all
      select (select min(j.queue) from jobs j where j.state = 'running' and j.queue > q.queue) from q where q.queue is not null)
    select j.id from q cross join lateral (
      select j.id from jobs j
      where j.state = 'running' and j.queue = q.queue and j.lease_expires_at <= at and j.exclusive_key is not null
      limit 100) j));
end $$;

-- These jobs have ended. Say so where a limit was exhausted until now: those who found it so are waiting.
create or replace function announce_room(ended uuid[]) returns void language plpgsql
as $$
begin
  if ended is null or not exists (select from limits) then
    return;
  end if;
  perform announce(array(
    select distinct case l.scope when 'queue' then l.name else '' end
    from limits l
    cross join lateral (
      select count(*) as jobs from jobs j
      where j.id = any(ended) and case l.scope when 'global' then true when 'queue' then j.queue = l.name
        else j.kind = l.name end) e
    where l.scope <> 'key' and e.jobs > 0 and l.max_running > 0 and l.max_running - running_under(l) <= e.jobs));
end $$;

create or replace function check_limit(scope text, name text) returns void language plpgsql
as $$
begin
  if scope is null or scope not in ('global', 'queue', 'kind', 'key') then
    perform refuse('LH003', 'invalid_argument', format('scope %L', scope), 'scope is global, queue, kind or key');
  end if;
  if name is null or (scope = 'global') <> (name = '')
     or octet_length(name) > (case scope when 'key' then 500 else 200 end) then
    perform refuse('LH003', 'invalid_argument', format('name %L of scope %s', left(name, 100), scope),
      'name a queue, a kind or the beginning of exclusive keys; for the global limit give the empty text');
  end if;
end $$;

-- The first text, in the order of bytes, behind all texts that begin with this one.
create or replace function prefix_end(name text) returns text language plpgsql immutable
as $$
begin
  return left(name, -1) || chr(ascii(right(name, 1)) + 1);
exception when others then
  perform refuse('LH003', 'invalid_argument', format('key prefix %L', name), 'end the prefix with another character');
end $$;

-- Limit what runs, or change the limit. What runs already goes on.
create or replace function set_limit_v1(scope text, name text, max_running integer) returns void language plpgsql
security definer set search_path from current
set lock_timeout = '10s'
as $$
#variable_conflict use_column
declare
  l limits;
begin
  perform check_limit(set_limit_v1.scope, set_limit_v1.name);
  if set_limit_v1.max_running is null or set_limit_v1.max_running < 0 then
    perform refuse('LH003', 'invalid_argument', format('max_running %s', coalesce(set_limit_v1.max_running::text, 'null')),
      'max_running is 0 or more');
  end if;
  lock table limits in exclusive mode;
  insert into limits as t (scope, name, max_running, ends_before, updated_at)
  values (set_limit_v1.scope, set_limit_v1.name, set_limit_v1.max_running,
    case set_limit_v1.scope when 'key' then prefix_end(set_limit_v1.name) end, clock())
  on conflict (scope, name) do update set max_running = excluded.max_running, updated_at = excluded.updated_at
  returning * into l;
  if l.scope = 'key' and l.max_running > 0 then
    perform unpark_under(l.name, greatest(1, l.max_running - running_under(l)));
  end if;
  perform announce(array['']);
end $$;

create or replace function set_limit(scope text, name text, max_running integer) returns void language sql
security definer set search_path from current
as $$ select set_limit_v1(scope, name, max_running) $$;

-- Take a limit away. False: there was none.
create or replace function drop_limit_v1(scope text, name text) returns boolean language plpgsql
security definer set search_path from current
set lock_timeout = '10s'
as $$
#variable_conflict use_column
begin
  perform check_limit(drop_limit_v1.scope, drop_limit_v1.name);
  lock table limits in exclusive mode;
  delete from limits l where l.scope = drop_limit_v1.scope and l.name = drop_limit_v1.name;
  if not found then
    return false;
  end if;
  if drop_limit_v1.scope = 'key' then
    perform unpark_under(drop_limit_v1.name, 2147483647);
  end if;
  perform announce(array['']);
  return true;
end $$;

create or replace function drop_limit(scope text, name text) returns boolean language sql
security definer set search_path from current
as $$ select drop_limit_v1(scope, name) $$;

-- Each limit with what runs under it now. The clock is PostgreSQL's own: a view calls functions with the rights of
-- whoever looks, and ours is nobody's.
create or replace view limit_overview as
select l.scope, l.name, l.max_running, l.updated_at, (
  select count(*) from jobs j
  where j.state = 'running' and j.lease_expires_at > clock_timestamp() and case l.scope
    when 'global' then true
    when 'queue' then j.queue = l.name
    when 'kind' then j.kind = l.name
    else j.exclusive_key >= l.name and j.exclusive_key < l.ends_before end) as running
from limits l;
