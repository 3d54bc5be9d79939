-- Checks of the server's settings, of what holds back vacuum, connections, indexes, and of jobs that no worker handles.
-- Each row: what was checked, ok, warn or fail, what was found in words, and the cure. Writes nothing. For operators only,
-- because it shows queries of other sessions.

-- Return one row. `fault` is warn or fail, null: ok. The detail is `found` if there is a fault, and `good` if not or if `found` is null.
create or replace function finding(name text, fault text, good text, found text, cure text) returns finding language sql immutable
return row(name, coalesce(fault, 'ok'), coalesce(case when fault is not null then found end, good), cure)::finding;

-- The server: its version, whether it writes, whether a commit is safe, whether there is room for connections.
create or replace function doctor_server() returns setof finding language plpgsql stable as $$
declare
  unsafe text[] := array(
    select s.setting || ' = off' from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) s(setting)
    where current_setting(s.setting) = 'off');
  used bigint := connections_in_use();
  most integer := current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer;
begin
  return next finding('server', case when current_setting('server_version_num')::integer < 150000 then 'fail' end,
    format('PostgreSQL %s', current_setting('server_version')), null, 'Leasehold needs PostgreSQL 15 or later');
  return next finding('writable', case when pg_is_in_recovery() then 'warn' end, 'this server takes writes',
    format('this server is a standby%s: it shows what it has received and takes no writes',
      ', whose latest commit is ' || extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())::integer || ' s old'),
    'reading works; for workers and producers name the primary in the DSN, or several hosts with target_session_attrs=read-write');
  return next finding('durability', case when cardinality(unsafe) > 0 then 'fail' end,
    'a job that was acknowledged outlives a crash of the server',
    array_to_string(unsafe, ', ') || ': a crash of the server may lose jobs that were acknowledged',
    'set them to on, for the server and for the roles that use Leasehold');
  return next finding('connections', case when used >= most * 0.95 then 'fail' when used >= most * 0.8 then 'warn' end,
    format('%s of %s connections are in use', used, most), null, 'raise max_connections, or put PgBouncer in front');
  return query select * from doctor_notify_queue(case when pg_is_in_recovery() then 0 else pg_notification_queue_usage() end);
end $$;

-- The queue of notifications. When it is full, no transaction that notifies can be committed.
create or replace function doctor_notify_queue(usage double precision) returns setof finding language sql stable as $$
  select 'notifications', case when usage >= 0.5 then 'fail' when usage >= 0.05 then 'warn' else 'ok' end,
    format('the queue of notifications is %s %% full', round(usage::numeric * 100, 1))
      || case when s.pid is null then '' else format('; the oldest transaction is that of session %s of %L (user %s), %s s', s.pid,
        s.application_name, s.usename, extract(epoch from clock_timestamp() - s.xact_start)::bigint) end,
    'it is not emptied past a session that has called LISTEN and stays in a transaction: '
      || case when s.pid is null then 'end that transaction' else format('select pg_terminate_backend(%s)', s.pid) end
  from (select) one left join lateral (
    select a.* from pg_stat_activity a
    where a.xact_start is not null and a.pid <> pg_backend_pid() and usage >= 0.05
    order by a.xact_start limit 1) s on true
$$;

-- Vacuum: whether it runs, whether it keeps up, and which sessions keep it from removing rows.
create or replace function doctor_vacuum() returns setof finding language plpgsql stable as $$
declare
  holder record;
  off text[] := array(
    select s.setting || ' = off' from unnest(array['autovacuum', 'track_counts']) s(setting)
    where current_setting(s.setting) = 'off')
    || array(select format('autovacuum_enabled = off for %s', c.relname) from pg_class c
             where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
               and c.reloptions && array['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0']);
  behind text[] := array(
    select format('%s has %s dead rows beside %s live ones', t.relname, t.n_dead_tup, t.n_live_tup)
    from pg_stat_all_tables t
    where t.schemaname = current_schema() and t.n_dead_tup > 100000 and t.n_dead_tup > t.n_live_tup);
begin
  return next finding('autovacuum', case when cardinality(off) > 0 then 'fail' when cardinality(behind) > 0 then 'warn' end,
    'it is on and keeps up',
    case when cardinality(off) > 0 then array_to_string(off, ', ') || ': claims will slow down for ever'
      else array_to_string(behind, ', ') end,
    case when cardinality(off) > 0 then 'switch it on' else 'find what holds it back, and check autovacuum_vacuum_cost_limit' end);
  select h.* into holder from horizon() h
  where h.seconds > 300 or h.what = 'slot' and h.xids > 1000000 order by h.seconds desc nulls last limit 1;
  if found then
    return next finding('horizon', case when coalesce(holder.seconds, 3600) >= 3600 then 'fail' else 'warn' end, null,
      'vacuum cannot remove what is newer than the oldest transaction: ' || case holder.what
        when 'slot' then format('the replication slot %L is %s transactions behind', holder.name, holder.xids)
        when 'prepared' then format('the prepared transaction %L has been open for %s s', holder.name, holder.seconds::bigint)
        else format('session %s of %L (user %s, %s) has been in a transaction for %s s: %s', holder.pid, holder.application,
          holder.name, holder.state, holder.seconds::bigint, left(regexp_replace(holder.query, '[[:space:]]+', ' ', 'g'), 200)) end,
      case holder.what
        when 'slot' then format('if it is not used: select pg_drop_replication_slot(%L)', holder.name)
        when 'prepared' then format('rollback prepared %L', holder.name)
        else format('select pg_terminate_backend(%s)', holder.pid) end);
  else
    return next finding('horizon', case when not sees_sessions() then 'warn' end, 'no old transaction holds back vacuum',
      'what other sessions do may not be seen', format('grant pg_read_all_stats to %I', current_user));
  end if;
end $$;

create or replace function doctor_schema() returns setof finding language plpgsql stable as $$
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
  return next finding('privileges', null, case
    when (select r.rolsuper from pg_roles r where r.rolname = session_user)
      then format('%s is a superuser and may do everything', session_user)
    when (select pg_has_role(session_user, n.nspowner, 'usage') from pg_namespace n where n.nspname = schema_name)
      then format('%s owns schema %s and may do everything in it', session_user, schema_name)
    when cardinality(mine) = 0 then format('%s has none of the roles of Leasehold', session_user)
    else format('%s has %s', session_user, array_to_string(mine, ', ')) end, null,
    'grant it leasehold_producer to enqueue, leasehold_worker to run jobs, leasehold_viewer to read, leasehold_operator to operate');
  return next finding('grants', case when cardinality(access) > 0 then 'fail' end,
    'every role may call what it needs, and PUBLIC nothing', array_to_string(access, '; '),
    'leasehold migrate, as the owner of the schema: it makes missing roles and grants what is missing');
  return next finding('indexes', case when cardinality(broken) > 0 then 'fail' end, 'all indexes are valid',
    'invalid: ' || array_to_string(broken, ', '), format('reindex index concurrently %s', coalesce(broken[1], '')));
end $$;

-- Jobs that no worker handles, and schedules that are stuck.
create or replace function doctor_jobs() returns setof finding language plpgsql stable set enable_seqscan = off as $$
declare
  at timestamptz := clock();
  live bigint := (select count(*) from workers w where is_live(w, at));
  -- Workers sweep every few seconds: what expired half a minute ago is swept by none.
  orphans bigint := (select count(*) from (select from jobs j
    where j.state = 'running' and j.lease_expires_at < at - interval '30 seconds' limit 10001) t);
  locker text := (select min(o) from (select j.xmax as number from jobs j
    where j.state = 'running' and j.lease_expires_at < at - interval '30 seconds' limit 100) t, open_transaction(t.number) o);
  late bigint := (select count(*) from (select from jobs j
    where j.state in ('created', 'retry') and j.accepted and j.run_at < at - interval '30 seconds' limit 10001) t);
  lanes bigint := (select count(*) from lanes_queued(2001));
  stuck text[] := array(
      select format('%s (%s)', s.key, s.problem) from schedules s where s.enabled and s.problem is not null order by 1 limit 10)
    -- Under a claim or not: one that cannot be fired is claimed again and again.
    || array(select format('%s (due since %s%s)', s.key, s.next_run_at, ', claimed by ' || s.locked_by) from schedules s
             where s.enabled and not s.over and s.problem is null and s.next_run_at < at - interval '1 minute' order by 1 limit 10);
  unknown text[];
  unserved text[];
begin
  return next finding('workers', case when live = 0 then 'warn' end,
    format('%s live workers', live), null, 'start one: leasehold worker module:app');
  return next finding('leases', case when orphans > 0 then 'fail' end,
    'no lease has expired without being taken back',
    format('%s leases expired more than 30 s ago and no worker takes the jobs back%s', few(orphans), ': rows are locked by ' || locker),
    case when locker is null then 'start a worker: each of them sweeps' else 'end that session: select pg_terminate_backend(its pid)' end);
  return next finding('due', case when late > 0 then 'fail' end, 'no job waits beyond its time',
    format('%s jobs came due more than 30 s ago and no worker promotes them', few(late)), 'start a worker: each of them promotes');
  select array_agg(distinct l.kind) filter (where s.knowing = 0),
         array_agg(distinct l.queue) filter (where s.knowing > 0 and s.serving = 0)
  into unknown, unserved
  from lanes_queued(1000) l cross join lateral workers_for(l.queue, l.kind, at) s;
  return next finding('kinds', case when unknown is not null then 'warn' end, 'every kind that is queued is known to a live worker',
    'queued, and no live worker knows them: ' || names_in_words(unknown), 'start a worker whose app has these tasks');
  return next finding('queues', case when unserved is not null then 'warn' end,
    'every queue that has work is served by a live worker',
    'have work, and no live worker that knows it serves them: ' || names_in_words(unserved),
    'start a worker with --queues, or without that option for all');
  return next finding('lanes', case when lanes > 2000 then 'warn' end,
    format('%s pairs of queue and kind have waiting jobs', lanes),
    'more than 2000 pairs of queue and kind have waiting jobs: a claim of a worker without --queues reads the head of each',
    'use fewer queues, with an exclusive key for each tenant instead, or give each worker its own --queues');
  return next finding('schedules', case when cardinality(stuck) > 0 then 'warn' end, 'no schedule is late',
    'not fired: ' || array_to_string(stuck, ', '), 'start a worker; leasehold schedules list shows more');
end $$;

-- A number that was counted no further than this.
create or replace function few(number bigint) returns text language sql immutable
return case when number > 10000 then 'more than 10000' else number::text end;

create or replace function names_in_words(names text[]) returns text language sql immutable
return array_to_string(names[:10], ', ') || case when cardinality(names) > 10 then format(' and %s more', cardinality(names) - 10) else '' end;

-- Milliseconds that a setting of a length of time means: '500', '5s', '2min'; null for anything else.
create or replace function setting_ms(value text) returns numeric language sql immutable
return case when value ~ '^[0-9]+$' then value::numeric
  when value ~ '^[0-9.]+ *(us|ms|s|min|h|d)$' then extract(epoch from value::interval) * 1000 end;

-- What is in force: for everyone, for this database, for a role, or for a role in this database. Leasehold's own
-- connections choose some settings themselves, so those of a session are not enough.
create or replace function settings_in_force() returns table (place text, name text, value text) language sql stable as $$
  select 'the server', s.name, s.reset_val from pg_settings s
  where s.source in ('configuration file', 'command line', 'environment variable', 'global')
  union all
  select concat_ws(' in ', case when r.setrole <> 0 then 'role ' || r.setrole::regrole end,
      case when r.setdatabase <> 0 then 'database ' || current_database() end),
    split_part(c.setting, '=', 1), substr(c.setting, strpos(c.setting, '=') + 1)
  from pg_db_role_setting r cross join lateral unnest(r.setconfig) c(setting)
  where r.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
$$;

-- Each that matters: how bad it is and what it does.
create or replace function doctor_settings() returns setof finding language plpgsql stable as $$
declare
  found text[];
  bad boolean;
begin
  select array_agg(format('%s = %s for %s: %s', f.name, f.value, f.place, f.effect) order by f.severe desc, f.name, f.place),
    bool_or(f.severe)
  into found, bad
  from (
    select s.place, s.name, s.value, k.severe, k.effect
    from settings_in_force() s
    join (values
      ('default_transaction_read_only', '^(on|true|1|yes)$', true, 'nothing can be recorded'),
      ('session_replication_role', '^replica$', true, 'the guard of the state machine is switched off'),
      ('synchronous_commit', '^(off|false|0|no)$', true, 'what was acknowledged may be lost in a crash'),
      ('default_transaction_isolation', '^(repeatable read|serializable)$', false,
        'transactions of your own that enqueue may have to be repeated'),
      ('standard_conforming_strings', '^(off|false|0|no)$', false, 'backslashes in SQL of your own mean something else'),
      ('track_activities', '^(off|false|0|no)$', false, 'who holds back vacuum or a migration cannot be seen'),
      ('restrict_nonsystem_relation_kind', 'view', false, 'limits cannot be listed'),
      ('old_snapshot_threshold', '^[0-9]', false, 'long queries may end with "snapshot too old"'),
      ('enable_indexscan', '^(off|false|0|no)$', true, 'claims read whole tables'),
      ('enable_indexonlyscan', '^(off|false|0|no)$', false, 'claims read more than they need'),
      ('enable_nestloop', '^(off|false|0|no)$', false, 'claims read more than they need'),
      ('zero_damaged_pages', '^(on|true|1|yes)$', true, 'damaged pages are emptied, with the jobs on them'),
      ('ignore_checksum_failure', '^(on|true|1|yes)$', true, 'damaged pages are read as if they were whole')
    ) k(name, pattern, severe, effect) on k.name = s.name and lower(s.value) ~ k.pattern
    union all
    -- Zero switches a timeout off.
    select s.place, s.name, s.value, setting_ms(s.value) < t.least_ms / 10,
      format('calls that take longer are cut off and sent again; %s s or more leave them room', t.least_ms / 1000)
    from settings_in_force() s
    join (values ('statement_timeout', 5000), ('transaction_timeout', 5000), ('lock_timeout', 1000),
        ('idle_in_transaction_session_timeout', 1000)) t(name, least_ms)
      on t.name = s.name
    where setting_ms(s.value) > 0 and setting_ms(s.value) < t.least_ms
    union all
    select s.place, s.name, s.value, false, 'idle connections are cut, and made again for the next job'
    from settings_in_force() s where s.name = 'idle_session_timeout' and setting_ms(s.value) > 0 and setting_ms(s.value) < 60000
    union all
    select 'role ' || r.rolname, 'connection limit', r.rolconnlimit::text, r.rolconnlimit < 5,
      'a worker process needs five connections, and its tasks more'
    from pg_roles r
    where r.rolconnlimit between 0 and 9 and r.rolcanlogin
      and exists (select from pg_roles g where g.rolname in ('leasehold_worker', 'leasehold_api') and pg_has_role(r.oid, g.oid, 'member'))
    union all
    select 'database ' || d.datname, 'connection limit', d.datconnlimit::text, false, 'a worker process needs five connections'
    from pg_database d where d.datname = current_database() and d.datconnlimit between 0 and 19
    union all
    select 'database ' || current_database(), 'encoding', current_setting('server_encoding'), true,
      'texts of jobs and log lines cannot all be stored; Leasehold needs UTF8'
    where current_setting('server_encoding') <> 'UTF8') f;
  return next finding('settings', case when bad then 'fail' when found is not null then 'warn' end,
    'no setting of the server, the database or a role is in the way', array_to_string(found, '; '),
    'alter role, alter database or alter system ... reset <setting>; docs/production.md says what each should be');
end $$;

-- Whether the server's clock was set back: then what was written before lies in its future, and what was queued waits
-- until the clock is there again.
create or replace function doctor_time() returns setof finding language plpgsql stable set enable_seqscan = off as $$
declare
  ahead double precision := extract(epoch from greatest(
    (select max(w.seen_at) from workers w),
    (select a.ended_at from attempts a order by a.ended_at desc limit 1)) - clock());
begin
  return next finding('time', case when ahead > 5 then 'fail' end,
    'nothing was written later than the server''s clock shows',
    format('the clock of the database server was set back: what was written last lies %s s in its future; jobs, retries and'
      ' schedules of that time wait until the clock is there again', ahead::integer),
    'let a time service slew the server''s clock, never step it; leasehold verify counts the jobs that wait');
end $$;

create or replace function doctor_v1() returns setof finding language sql stable as $$
  select * from doctor_server() union all select * from doctor_settings() union all select * from doctor_time()
  union all select * from doctor_schema() union all select * from doctor_vacuum() union all select * from doctor_jobs()
$$;
