-- What the server does with our tables: dead rows, sizes, who holds the xmin horizon back, WAL and transactions per job.
-- What a session runs is shown by holders() to operators only. What this schema's owner is not permitted to see of other
-- sessions (pg_read_all_stats) is said to be so.

-- Who keeps dead rows from being removed: sessions of this database, standbys, replication slots, prepared transactions.
-- The oldest first. Vacuum itself and this very call hold nothing back.
create or replace function horizon() returns table (
  what text, pid integer, name text, application text, state text, xids bigint, seconds double precision, query text
) language sql stable as $$
  select h.what, h.pid, h.name, h.application, h.state, h.xids, greatest(0, h.seconds), h.query from (
    select case a.backend_type when 'walsender' then 'standby' else 'session' end as what, a.pid, a.usename::text as name,
      a.application_name as application, a.state,
      greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as xids,
      date_part('epoch', clock_timestamp() - a.xact_start) as seconds, a.query
    from pg_stat_activity a
    where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
      and (a.datname = current_database() or a.backend_type = 'walsender') and a.backend_type <> 'autovacuum worker'
    union all
    select 'slot', s.active_pid, s.slot_name::text, s.plugin::text, case when s.active then 'active' else 'not in use' end,
      greatest(age(s.xmin), age(s.catalog_xmin))::bigint, null, null
    from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
    union all
    select 'prepared', null, p.gid, null, 'prepared by ' || p.owner, age(p.transaction)::bigint,
      date_part('epoch', clock_timestamp() - p.prepared), null
    from pg_prepared_xacts p where p.database = current_database()) h
  order by h.xids desc nulls last, h.seconds desc nulls last limit 50
$$;

-- How many client connections the server has. Of sessions of other roles an owner without pg_read_all_stats does not
-- see the type; those of background processes have no user.
create or replace function connections_in_use() returns integer language sql stable as $$
  select count(*)::integer from pg_stat_activity a where coalesce(a.backend_type = 'client backend', a.usesysid is not null)
$$;

-- Return whether the owner of this schema may see what sessions of other roles run.
create or replace function sees_sessions() returns boolean language sql stable
as $$ select pg_has_role(current_user, 'pg_read_all_stats', 'usage') $$;

create or replace function holders_v1(max integer default 10) returns table (
  what text, pid integer, name text, application text, state text, xids bigint, seconds double precision, query text
) language sql stable as $$
  select h.what, h.pid, h.name, h.application, h.state, h.xids, h.seconds, left(h.query, 1000)
  from horizon() h limit least(greatest(max, 1), 50)
$$;

-- What a finished job cost over the last hour, or as much of it as there are samples: WAL of the whole server and
-- transactions of this database, divided by jobs. Null: nothing finished, or there are no two samples to compare.
create or replace function cost_per_job(at timestamptz, out wal double precision, out transactions double precision,
  out jobs bigint, out seconds double precision) language plpgsql stable set enable_seqscan = off as $$
declare
  oldest record;
  latest record;
begin
  select * into oldest from flow f where f.at >= cost_per_job.at - interval '1 hour' order by f.at limit 1;
  select * into latest from flow f where f.at >= cost_per_job.at - interval '1 hour' order by f.at desc limit 1;
  if latest.at > oldest.at and latest.transactions >= oldest.transactions then
    seconds := date_part('epoch', latest.at - oldest.at);
    jobs := (select coalesce(sum(s.success + s.dead + s.cancelled), 0) from statistics s
             where s.step = 60 and s.queue = '' and s.kind = '' and s.at >= oldest.at and s.at < latest.at);
    wal := (latest.wal - oldest.wal)::double precision / nullif(jobs, 0);
    transactions := (latest.transactions - oldest.transactions)::double precision / nullif(jobs, 0);
  end if;
end $$;

create or replace function system_v1() returns jsonb language plpgsql stable as $$
declare
  cost record := cost_per_job(clock());
begin
  return jsonb_build_object(
    'version', current_setting('server_version'), 'standby', pg_is_in_recovery(), 'sees_sessions', sees_sessions(),
    'tables', (
      select coalesce(jsonb_agg(jsonb_build_object('name', t.relname, 'live', t.n_live_tup, 'dead', t.n_dead_tup,
        'bytes', pg_table_size(t.relid), 'index_bytes', pg_indexes_size(t.relid),
        'vacuumed_at', greatest(t.last_autovacuum, t.last_vacuum),
        'analyzed_at', greatest(t.last_autoanalyze, t.last_analyze)) order by t.relname), '[]')
      from pg_stat_user_tables t where t.schemaname = current_schema()),
    'horizon', (
      select coalesce(jsonb_agg(jsonb_build_object('what', h.what, 'pid', h.pid, 'name', h.name, 'application', h.application,
        'state', h.state, 'xids', h.xids, 'seconds', h.seconds)), '[]')
      from (select * from horizon() limit 10) h),
    'connections', connections_in_use(), 'max_connections', current_setting('max_connections')::integer,
    'deadlocks', (select d.deadlocks from pg_stat_database d where d.datname = current_database()),
    'per_job', jsonb_build_object('wal_bytes', cost.wal, 'transactions', cost.transactions, 'jobs', cost.jobs,
      'seconds', cost.seconds),
    'settings', (
      select jsonb_object_agg(s.name, s.setting || coalesce(' ' || s.unit, '')) from pg_settings s
      where s.name in ('autovacuum', 'autovacuum_naptime', 'fsync', 'full_page_writes', 'idle_in_transaction_session_timeout',
        'max_wal_size', 'shared_buffers', 'synchronous_commit', 'synchronous_standby_names')));
end $$;
