-- Samples of how many jobs are in which state: one a minute, by whichever worker's upkeep comes first.
-- Error: LH003 invalid_argument.

-- How many jobs were created in a span of time: counted up to a cap, beyond it estimated from how far the cap reached.
create or replace function arrivals(since timestamptz, until timestamptz, cap integer) returns bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  counted bigint;
  reached uuid;
begin
  select count(*), max(t.id::text)::uuid into counted, reached
  from (select j.id from jobs j where j.id >= id_at(since) and j.id < id_at(until) order by j.id limit cap) t;
  if counted < cap then
    return counted;
  end if;
  return counted * date_part('epoch', until - since)
    / greatest(0.001, date_part('epoch', to_timestamp(  -- when the UUIDv7 was made
      ('x' || lpad(left(replace(reached::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0) - since));
end $$;

-- Take the sample of the present minute, and remove what is old. Only one caller does; the others do not wait.
create or replace function sample_flow(at timestamptz, cap integer default 100000) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  minute constant timestamptz := moment_of(at, 60);
  waiting record;
begin
  if exists (select from flow f where f.at = minute)
     or not pg_try_advisory_xact_lock(hashtextextended(current_schema() || '.flow', 0)) then
    return;
  end if;
  -- Both in one scan: a scan for one of them would read all of the other.
  select count(*) filter (where t.state = 'created') as created, count(*) filter (where t.state = 'retry') as retry
  into waiting from (select j.state from jobs j where j.state in ('created', 'retry') and j.accepted limit cap) t;
  insert into flow (at, created, queued, running, retry, dead, arrived, wal, transactions)
  select minute, waiting.created,
    (select count(*) from (select from jobs j where j.state = 'queued' and not j.parked limit cap) t)
      + (select count(*) from (select from jobs j where j.state = 'queued' and j.exclusive_key is not null and j.parked limit cap) t),
    (select count(*) from (select from jobs j where j.state = 'running' limit cap) t), waiting.retry,
    (select count(*) from (select from jobs j where j.state in ('success', 'dead') and j.state = 'dead' limit cap) t),
    arrivals(minute - interval '1 minute', minute, cap), pg_current_wal_insert_lsn() - '0/0',
    (select d.xact_commit + d.xact_rollback from pg_stat_database d where d.datname = current_database())
  on conflict do nothing;
  delete from statistics s using (
    select o.step, o.queue, o.kind, o.at
    from (values (10, interval '2 hours'), (60, interval '2 days'), (600, interval '14 days')) k(step, kept)
    cross join lateral (select o.step, o.queue, o.kind, o.at from statistics o
      where o.step = k.step and o.at < sample_flow.at - k.kept limit 10000) o) o
  where s.step = o.step and s.queue = o.queue and s.kind = o.kind and s.at = o.at;
  delete from flow f where f.at < sample_flow.at - interval '14 days';
  delete from canary_jobs j using canaries c where c.id = j.canary and c.finished_at < sample_flow.at - interval '30 days';
  delete from canaries c where c.finished_at < sample_flow.at - interval '30 days'
    and not exists (select from canary_jobs j where j.canary = c.id);
end $$;

-- The last sample of each `step`, with how many jobs arrived in all of it. 100000: so many, and more.
create or replace function flow_v1(since timestamptz, until timestamptz default null, step integer default 60) returns table (
  at timestamptz, created integer, queued integer, running integer, retry integer, dead integer, arrived bigint
) language plpgsql stable set enable_seqscan = off as $$
declare
  ends timestamptz := coalesce(flow_v1.until, clock());
begin
  perform check_span(flow_v1.since, ends, flow_v1.step);
  return query
    select distinct on (t.moment) t.moment, t.created, t.queued, t.running, t.retry, t.dead,
      (sum(t.arrived) over (partition by t.moment))::bigint
    from (select moment_of(f.at, greatest(60, flow_v1.step)) as moment, f.* from flow f
          where f.at >= flow_v1.since and f.at < ends) t
    order by t.moment, t.at desc;
end $$;
