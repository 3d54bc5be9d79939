-- Settings of the server, this database and its roles that get in the way of jobs, and a clock that was set back.
-- Helpers of doctor().

-- Milliseconds that a setting of a length of time means: '500', '5s', '2min'; null for anything else.
create or replace function setting_ms(value text) returns numeric language sql immutable
return case when value ~ '^[0-9]+$' then value::numeric
  when value ~ '^[0-9.]+ *(us|ms|s|min|h|d)$' then extract(epoch from value::interval) * 1000 end;

-- What is in force: for everyone, for this database, for a role, or for a role in this database. Leasehold's own
-- connections choose some settings themselves, so those of a session do not tell.
create or replace function settings_in_force() returns table (place text, name text, value text) language sql stable
as $$
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
create or replace function doctor_settings() returns table (name text, verdict text, detail text, cure text)
language plpgsql stable
as $$
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
      ('old_snapshot_threshold', '^[0-9]', false, 'long looks may end with "snapshot too old"'),
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
  return query select 'settings', case when found is null then 'ok' when bad then 'fail' else 'warn' end,
    coalesce(array_to_string(found, '; '), 'no setting of the server, the database or a role is in the way'),
    'alter role, alter database or alter system ... reset <setting>; docs/production.md says what each should be';
end $$;

-- Whether the server's clock was set back: then what was written before lies in its future, and what was queued waits
-- until the clock is there again.
create or replace function doctor_time() returns table (name text, verdict text, detail text, cure text)
language plpgsql stable
set enable_seqscan = off set jit = off
as $$
declare
  ahead double precision := extract(epoch from greatest(
    (select max(w.seen_at) from workers w),
    (select a.ended_at from attempts a order by a.ended_at desc limit 1)) - clock());
begin
  return query select 'time', case when coalesce(ahead, 0) > 5 then 'fail' else 'ok' end,
    case when coalesce(ahead, 0) > 5
      then format('the clock of the database server was set back: what was written last lies %s s in its future; jobs, retries and'
        ' schedules of that time wait until the clock is there again', ahead::integer)
      else 'nothing was written later than the server''s clock shows' end,
    'let a time service slew the server''s clock, never step it; leasehold verify counts the jobs that wait';
end $$;
