-- How many jobs are in each state, counted up to a cap: the cost never depends on how much history there is.
-- `parked` and `finished in the last ten seconds` are counted the same way.

create or replace function counts_v1(cap integer default 10000)
returns table (state text, jobs bigint, capped boolean) language sql stable
security definer set search_path from current
set enable_seqscan = off
as $$
  with counted(state, jobs) as (
    select 'created', count(*) from (select from jobs j
      where j.state in ('created', 'retry') and j.accepted and j.state = 'created' limit cap + 1) t
    union all
    select 'queued', count(*) from (select from jobs j where j.state = 'queued' and not j.parked limit cap + 1) t
    union all
    select 'parked', count(*) from (select from jobs j
      where j.state = 'queued' and j.exclusive_key is not null and j.parked limit cap + 1) t
    union all
    select 'running', count(*) from (select from jobs j where j.state = 'running' limit cap + 1) t
    union all
    select 'retry', count(*) from (select from jobs j
      where j.state in ('created', 'retry') and j.accepted and j.state = 'retry' limit cap + 1) t
    union all
    select 'success', count(*) from (select from jobs j
      where j.state in ('success', 'dead') and j.state = 'success' limit cap + 1) t
    union all
    select 'dead', count(*) from (select from jobs j
      where j.state in ('success', 'dead') and j.state = 'dead' limit cap + 1) t
    union all
    select 'success in 10 s', count(*) from (select from jobs j
      where j.state in ('success', 'dead') and j.state = 'success'
        and j.finished_at > statement_timestamp() - interval '10 seconds' limit cap + 1) t)
  select c.state, least(c.jobs, cap), c.jobs > cap from counted c
$$;

create or replace function counts(cap integer default 10000)
returns table (state text, jobs bigint, capped boolean) language sql stable
security definer set search_path from current
as $$ select * from counts_v1(cap) $$;
