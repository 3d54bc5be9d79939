-- What a doctor looks at: the server's settings, who holds back vacuum, connections, indexes, and jobs that nobody looks
-- after. Each line: what was looked at, ok, warn or fail, what was found in words, and the cure. Writes nothing.
-- Texts of other sessions are among what it tells: for operators only.

-- The server: its version, whether it writes, whether a commit is safe, whether there is room for connections.
create or replace function doctor_server() returns table (name text, verdict text, detail text, cure text)
language plpgsql stable
as $$
declare
  version integer := current_setting('server_version_num')::integer;
  unsafe text[];
  used bigint;
  most integer := current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer;
begin
  return query select 'server', case when version >= 150000 then 'ok' else 'fail' end,
    format('PostgreSQL %s', current_setting('server_version')), 'Leasehold needs PostgreSQL 15 or later';
  if pg_is_in_recovery() then
    return query select 'writable', 'warn',
      format('this server is a standby%s: it shows what it has received and takes no writes',
        coalesce(', whose latest commit is ' || extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())::integer || ' s old', '')),
      'to read this is well; for workers and producers name the primary in the DSN, or several hosts with target_session_attrs=read-write';
  else
    return query select 'writable', 'ok', 'this server takes writes', '';
  end if;
  unsafe := array(
    select s.setting || ' = off' from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) s(setting)
    where current_setting(s.setting) = 'off');
  return query select 'durability', case when cardinality(unsafe) = 0 then 'ok' else 'fail' end,
    case when cardinality(unsafe) = 0 then 'a job that was acknowledged outlives a crash of the server'
      else array_to_string(unsafe, ', ') || ': a crash of the server may lose jobs that were acknowledged' end,
    'set them to on, for the server and for the roles that use Leasehold';
  used := connections_in_use();
  return query select 'connections', case when used >= most * 0.95 then 'fail' when used >= most * 0.8 then 'warn' else 'ok' end,
    format('%s of %s connections are in use', used, most), 'raise max_connections, or put PgBouncer in front';
end $$;

-- Vacuum: whether it runs, whether it keeps up, and who keeps it from removing anything.
create or replace function doctor_vacuum() returns table (name text, verdict text, detail text, cure text)
language plpgsql stable
as $$
declare
  off text[];
  behind text[];
  holder record;
begin
  off := array(
    select s.setting || ' = off' from unnest(array['autovacuum', 'track_counts']) s(setting)
    where current_setting(s.setting) = 'off')
    || array(select format('autovacuum_enabled = off for %s', c.relname) from pg_class c
             where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
               and c.reloptions && array['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0']);
  behind := array(
    select format('%s has %s dead rows beside %s live ones', t.relname, t.n_dead_tup, t.n_live_tup)
    from pg_stat_all_tables t
    where t.schemaname = current_schema() and t.n_dead_tup > 100000 and t.n_dead_tup > t.n_live_tup);
  return query select 'autovacuum', case when cardinality(off) > 0 then 'fail' when cardinality(behind) > 0 then 'warn' else 'ok' end,
    case when cardinality(off) > 0 then array_to_string(off, ', ') || ': claims will slow down for ever'
      when cardinality(behind) > 0 then array_to_string(behind, ', ')
      else 'it is on and keeps up' end,
    case when cardinality(off) > 0 then 'switch it on' else 'look for what holds it back, and at autovacuum_vacuum_cost_limit' end;
  select h.* into holder from horizon() h
  where h.seconds > 300 or h.what = 'slot' and h.xids > 1000000 order by h.seconds desc nulls last limit 1;
  if found then
    return query select 'horizon', case when coalesce(holder.seconds, 3600) >= 3600 then 'fail' else 'warn' end,
      'vacuum cannot remove what is newer than the oldest transaction: ' || case holder.what
        when 'slot' then format('the replication slot %L is %s transactions behind', holder.name, holder.xids)
        when 'prepared' then format('the prepared transaction %L has been open for %s s', holder.name, holder.seconds::bigint)
        else format('session %s of %L (user %s, %s) has been in a transaction for %s s: %s', holder.pid, holder.application,
          holder.name, holder.state, holder.seconds::bigint, left(regexp_replace(holder.query, '[[:space:]]+', ' ', 'g'), 200)) end,
      case holder.what
        when 'slot' then format('if nobody uses it: select pg_drop_replication_slot(%L)', holder.name)
        when 'prepared' then format('rollback prepared %L', holder.name)
        else format('select pg_terminate_backend(%s)', holder.pid) end;
  elsif not sees_sessions() then
    return query select 'horizon', 'warn', 'what other sessions do may not be seen',
      format('grant pg_read_all_stats to %I', current_user);
  else
    return query select 'horizon', 'ok', 'no old transaction holds back vacuum', '';
  end if;
end $$;

-- The schema and who may use it.
create or replace function doctor_schema() returns table (name text, verdict text, detail text, cure text)
language plpgsql stable
as $$
declare
  schema_name text := current_schema();
  mine text[] := array(
    select r.rolname::text from pg_roles r
    where r.rolname in ('leasehold_producer', 'leasehold_worker', 'leasehold_operator', 'leasehold_viewer', 'leasehold_api')
      and pg_has_role(session_user, r.oid, 'usage') order by 1);
  broken text[] := array(
    select i.indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid
    where c.relnamespace = schema_name::regnamespace and not (i.indisvalid and i.indisready) order by 1);
  access text[] := array(select access_problems());
begin
  return query select 'privileges', 'ok', case
    when (select r.rolsuper from pg_roles r where r.rolname = session_user)
      then format('%s is a superuser and may do everything', session_user)
    when (select pg_has_role(session_user, n.nspowner, 'usage') from pg_namespace n where n.nspname = schema_name)
      then format('%s owns schema %s and may do everything in it', session_user, schema_name)
    when cardinality(mine) = 0 then format('%s has none of the roles of Leasehold', session_user)
    else format('%s has %s', session_user, array_to_string(mine, ', ')) end,
    'grant it leasehold_producer to enqueue, leasehold_worker to run jobs, leasehold_viewer to look, leasehold_operator to operate';
  return query select 'grants', case when cardinality(access) = 0 then 'ok' else 'fail' end,
    case when cardinality(access) = 0 then 'every role may call what it needs, and PUBLIC nothing'
      else array_to_string(access, '; ') end,
    'leasehold migrate, as the owner of the schema: it makes missing roles and grants what is missing';
  return query select 'indexes', case when cardinality(broken) = 0 then 'ok' else 'fail' end,
    case when cardinality(broken) = 0 then 'all indexes are valid' else 'invalid: ' || array_to_string(broken, ', ') end,
    format('reindex index concurrently %s', coalesce(broken[1], ''));
end $$;

-- Jobs that nobody looks after, and schedules that are stuck.
create or replace function doctor_jobs() returns table (name text, verdict text, detail text, cure text)
language plpgsql stable
set enable_seqscan = off set jit = off
as $$
declare
  at timestamptz := clock();
  live bigint;
  orphans bigint;
  late bigint;
  unknown text[];
  unserved text[];
  stuck text[];
begin
  live := (select count(*) from workers w where w.stopped_at is null and w.seen_at > at - interval '1 minute');
  return query select 'workers', case when live > 0 then 'ok' else 'warn' end,
    format('%s live workers', live), 'start one: leasehold worker module:app';
  -- A worker sweeps within seconds: whatever has been expired for half a minute is left alone by everybody.
  orphans := (select count(*) from (select from jobs j
    where j.state = 'running' and j.lease_expires_at < at - interval '30 seconds' limit 10001) t);
  return query select 'leases', case when orphans = 0 then 'ok' else 'fail' end,
    case when orphans = 0 then 'no lease has expired without being taken back'
      else format('%s leases expired more than 30 s ago and nobody takes the jobs back', few(orphans)) end,
    'start a worker: each of them sweeps';
  late := (select count(*) from (select from jobs j
    where j.state in ('created', 'retry') and j.accepted and j.run_at < at - interval '30 seconds' limit 10001) t);
  return query select 'due', case when late = 0 then 'ok' else 'fail' end,
    case when late = 0 then 'no job waits beyond its time'
      else format('%s jobs came due more than 30 s ago and nobody promotes them', few(late)) end,
    'start a worker: each of them promotes';
  select array_agg(distinct l.kind) filter (where s.knowing = 0),
         array_agg(distinct l.queue) filter (where s.knowing > 0 and s.serving = 0)
  into unknown, unserved
  from lanes_queued(1000) l
  cross join lateral (
    select count(*) filter (where w.kinds is null or l.kind = any(w.kinds)) as knowing,
           count(*) filter (where (w.kinds is null or l.kind = any(w.kinds)) and (w.queues is null or l.queue = any(w.queues)))
             as serving
    from workers w where w.stopped_at is null and w.seen_at > at - interval '1 minute') s;
  return query select 'kinds', case when unknown is null then 'ok' else 'warn' end,
    case when unknown is null then 'every kind that is queued is known to a live worker'
      else 'queued, and no live worker knows them: ' || names_in_words(unknown) end,
    'start a worker whose app has these tasks';
  return query select 'queues', case when unserved is null then 'ok' else 'warn' end,
    case when unserved is null then 'every queue that has work is served by a live worker'
      else 'have work, and no live worker that knows it serves them: ' || names_in_words(unserved) end,
    'start a worker with --queues, or without that option for all';
  stuck := array(select format('%s (%s)', s.key, s.problem) from schedules s where s.enabled and s.problem is not null order by 1 limit 10)
    || array(select format('%s (due since %s)', s.key, s.next_run_at) from schedules s
             where s.enabled and not s.over and s.problem is null and s.next_run_at < at - interval '1 minute'
               and coalesce(s.locked_until, '-infinity') < at order by 1 limit 10);
  return query select 'schedules', case when cardinality(stuck) = 0 then 'ok' else 'warn' end,
    case when cardinality(stuck) = 0 then 'no schedule is late' else 'not fired: ' || array_to_string(stuck, ', ') end,
    'start a worker; leasehold schedules list shows more';
end $$;

-- A number that was counted no further than this.
create or replace function few(number bigint) returns text language sql immutable
return case when number > 10000 then 'more than 10000' else number::text end;

create or replace function names_in_words(names text[]) returns text language sql immutable
return array_to_string(names[:10], ', ') || case when cardinality(names) > 10 then format(' and %s more', cardinality(names) - 10) else '' end;

create or replace function doctor_v1() returns table (name text, verdict text, detail text, cure text) language plpgsql stable
security definer set search_path from current
as $$
begin
  return query select * from doctor_server();
  return query select * from doctor_settings();
  return query select * from doctor_time();
  return query select * from doctor_schema();
  return query select * from doctor_vacuum();
  return query select * from doctor_jobs();
end $$;

create or replace function doctor() returns table (name text, verdict text, detail text, cure text) language sql stable
security definer set search_path from current
as $$ select * from doctor_v1() $$;
