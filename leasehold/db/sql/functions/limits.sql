-- Limits: at most max_running jobs under live leases, in all ('global'), of a queue, of a kind, or of the exclusive
-- keys that begin with a prefix ('key'). A job obeys all that apply to it. 0: nothing may run.
-- Error of set_limit and drop_limit: LH003 invalid_argument.
--
-- Why the bound is exact. A claim locks the rows of the limits that apply, and only then, in a statement of its own, counts: the
-- session that held them before has committed, and what it took is seen. Every job that is `running` counts; an expired one is swept on
-- the spot, which frees its place. One that cannot be swept, because another session is writing its row, still counts: that may be
-- a heartbeat which found the lease alive a moment ago.
--
-- Why claims do not deadlock over limits. A claim waits for one of them only while it has locked no job and no other limit
-- (take_limits). A session that has locked or swept jobs takes further limits only if they are free. All take those of
-- lanes first, then those of keys, each in the order of their names: SKIP LOCKED may wait after all, where a row has just
-- been updated and its new version is locked.
--
-- What an open transaction that has claimed holds up: what it took is not seen by others, so under its limits nothing can
-- be counted and nothing starts until it ends. Claims wait a quarter of a second for those limits, keep no others
-- meanwhile, and then go on without their lanes and keys. Upkeep makes workers claim again when the limits are free.
--
-- How claims take them: limits_take.sql. Limits on keys park what they refuse: limits_keys.sql.

-- The running jobs under a limit. Stable and plain, so that it is inlined; only the part for the limit's scope is read.
create or replace function running_jobs(l limits) returns setof jobs language sql stable as $$
  select j.* from jobs j where l.scope = 'global' and j.state = 'running'
  union all
  select j.* from jobs j where l.scope = 'queue' and j.state = 'running' and j.queue = l.name
  union all
  select j.* from jobs j where l.scope = 'kind' and j.state = 'running' and j.kind = l.name
  union all
  select j.* from jobs j
  where l.scope = 'key' and j.state is not distinct from 'running' and j.exclusive_key >= l.name and j.exclusive_key < l.ends_before
$$;

-- How many jobs run under a limit, counted no further than the limit. Volatile: each call counts anew.
create or replace function running_under(l limits) returns integer language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
begin
  return (select count(*) from (select from running_jobs(l) limit l.max_running) t);
end $$;

create or replace function expired_under(l limits) returns uuid[] language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
  at timestamptz := clock();
begin
  return array(select j.id from running_jobs(l) j where j.lease_expires_at <= at limit 1000);
end $$;

create or replace function room_under(l limits) returns integer language plpgsql as $$
declare
  room integer := l.max_running - running_under(l);
begin
  if room <= 0 and l.max_running > 0 and isolated('expire', expired_under(l)) > 0 then
    room := l.max_running - running_under(l);
  end if;
  return room;
end $$;

-- These jobs have ended: announce the queues whose limit was exhausted until now, because workers that found it so are waiting. Only the
-- limits of these jobs are read, however many there are. Callers check first whether there are limits at all.
create or replace function announce_room(ended uuid[]) returns void language plpgsql as $$
begin
  perform announce(array(
    with ended_here as materialized (select j.queue, j.kind from jobs j where j.id = any(ended)),
    counted as materialized (
      select 'global' as scope, '' as name, count(*) as jobs from ended_here
      union all select 'queue', e.queue, count(*) from ended_here e group by e.queue
      union all select 'kind', e.kind, count(*) from ended_here e group by e.kind)
    select distinct case l.scope when 'queue' then l.name else '' end
    from counted e join limits l on l.scope = e.scope and l.name = e.name
    where l.max_running > 0 and l.max_running - running_under(l) <= e.jobs));
end $$;

create or replace function check_limit(scope text, name text) returns void language plpgsql as $$
begin
  perform require(scope in ('global', 'queue', 'kind', 'key'), format('scope %L', scope), 'scope is global, queue, kind or key');
  perform require((scope = 'global') = (name = '')
      and octet_length(name) <= case scope when 'key' then max_key_bytes() else max_name_bytes() end,
    format('name %L of scope %s', left(name, 100), scope),
    'name a queue, a kind or the beginning of exclusive keys; for the global limit pass the empty text');
end $$;

-- The first text, in the order of bytes, behind all texts that begin with this one.
create or replace function prefix_end(name text) returns text language plpgsql immutable as $$
begin
  return left(name, -1) || chr(ascii(right(name, 1)) + 1);
exception when others then
  perform refuse('LH003', 'invalid_argument', format('key prefix %L', name), 'end the prefix with another character');
end $$;

-- Wait for the claims under way, which do not know of a limit that is new. While this waits, no claim gets its shared lock,
-- so those under way end one after the other; every 40 ms it lets new ones through, so that they do not wait for the one
-- that does not end. After ten seconds it raises 55P03.
create or replace function lock_limits() returns void language plpgsql set lock_timeout = '40ms' as $$
declare
  deadline constant timestamptz := clock_timestamp() + interval '10 seconds';
begin
  loop
    begin
      perform pg_advisory_xact_lock(limits_lock(), 0);
      return;
    exception when lock_not_available then
      if clock_timestamp() > deadline then
        raise lock_not_available using message = 'limits_in_use',
          detail = 'a transaction that claims jobs has been open for ten seconds',
          hint = 'end it, or repeat the call later; holders() names it';
      end if;
    end;
    perform pg_sleep(0.02);
  end loop;
end $$;

-- Limit what runs, or change the limit. What runs already goes on.
create or replace function set_limit_v1(scope text, name text, max_running integer) returns void language plpgsql
set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
  l limits;
  at timestamptz := clock();
begin
  perform check_limit(set_limit_v1.scope, set_limit_v1.name);
  perform require(set_limit_v1.max_running >= 0, format('max_running %s', coalesce(set_limit_v1.max_running::text, 'null')),
    'max_running is 0 or more');
  -- A limit that is there is known to claims: they lock its row, then read it.
  update limits t set max_running = set_limit_v1.max_running, updated_at = at
  where t.scope = set_limit_v1.scope and t.name = set_limit_v1.name
  returning * into l;
  if not found then
    perform lock_limits();
    at := clock();
    insert into limits as t (scope, name, max_running, ends_before, updated_at)
    values (set_limit_v1.scope, set_limit_v1.name, set_limit_v1.max_running,
      case set_limit_v1.scope when 'key' then prefix_end(set_limit_v1.name) end, at)
    on conflict (scope, name) do update set max_running = excluded.max_running, updated_at = excluded.updated_at
    returning * into l;
  end if;
  if l.scope = 'key' and l.max_running > 0 then
    perform unpark_under(l.name, least(1000, greatest(1, l.max_running - running_under(l))));
  end if;
  perform announce(array['']);
end $$;

-- Take a limit away. False: there was none. Claims hold its row while they park jobs under it, so no table lock is needed;
-- of many parked jobs upkeep puts back the rest, a thousand at a time.
create or replace function drop_limit_v1(scope text, name text) returns boolean language plpgsql set lock_timeout = '10s' as $$
begin
  perform check_limit(drop_limit_v1.scope, drop_limit_v1.name);
  delete from limits l where l.scope = drop_limit_v1.scope and l.name = drop_limit_v1.name;
  if not found then
    return false;
  end if;
  if drop_limit_v1.scope = 'key' then
    perform unpark_under(drop_limit_v1.name, 1000);
  end if;
  perform announce(array['']);
  return true;
end $$;

-- Each limit with the number of jobs that run under it now. The clock is PostgreSQL's own: a view calls functions with the privileges
-- of the reading role, and no role may call ours.
create or replace view limit_overview as
select l.scope, l.name, l.max_running, l.updated_at, (
  select count(*) from jobs j
  where j.state = 'running' and j.lease_expires_at > clock_timestamp() and case l.scope
    when 'global' then true
    when 'queue' then j.queue = l.name
    when 'kind' then j.kind = l.name
    else j.exclusive_key >= l.name and j.exclusive_key < l.ends_before end) as running
from limits l;
