-- What workers tally, and pictures of it. Never the truth about jobs: see docs/statistics.md.
-- Error: LH003 invalid_argument.

-- Where the histograms' classes end, in seconds: five to a factor of ten, from 1 ms to 100,000 s. One class more than
-- bounds: the last is for what took longer.
create or replace function histogram_bounds() returns double precision[] language sql immutable parallel safe
return array[0.001, 0.0016, 0.0025, 0.004, 0.0063, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63,
  1, 1.6, 2.5, 4, 6.3, 10, 16, 25, 40, 63, 100, 160, 250, 400, 630, 1000, 1600, 2500, 4000, 6300, 10000, 16000, 25000,
  40000, 63000, 100000]::double precision[];

-- Where a length of time begins: the same for everybody.
create or replace function moment_of(moment timestamptz, step integer) returns timestamptz language sql immutable parallel safe
return date_bin(step * interval '1 second', moment, '2000-01-01 00:00:00+00');

create or replace function add_arrays(a integer[], b integer[]) returns integer[] language sql immutable parallel safe
as $$ select array_agg(t.a + t.b order by t.place) from unnest(a, b) with ordinality t(a, b, place) $$;

-- The rows of a tally. Stable and plain, so that it is inlined.
create or replace function tally_of(rows jsonb) returns table (
  queue text, kind text, success integer, failed integer, dead integer, snoozed integer, cancelled integer,
  released integer, waits integer[], runs integer[]
) language sql stable
as $$
  select t.queue, t.kind, coalesce(t.success, 0), coalesce(t.failed, 0), coalesce(t.dead, 0), coalesce(t.snoozed, 0),
    coalesce(t.cancelled, 0), coalesce(t.released, 0), t.waits, t.runs
  from jsonb_to_recordset(rows) as t(queue text, kind text, success integer, failed integer, dead integer,
    snoozed integer, cancelled integer, released integer, waits integer[], runs integer[])
$$;

create or replace function check_tally(number bigint, age double precision, rows jsonb) returns void language plpgsql
as $$
declare
  classes constant integer := cardinality(histogram_bounds()) + 1;
  bad record;
begin
  if number is null or number < 1 or age is null or age not between 0 and 86400 then
    perform refuse('LH003', 'invalid_argument', format('number %s, age %s', number, age),
      'number counts from 1, age is 0 to 86400 seconds');
  end if;
  if jsonb_typeof(rows) is distinct from 'array' or jsonb_array_length(rows) > 10000 then
    perform refuse('LH003', 'invalid_argument', 'rows is not a JSON array of at most 10000', 'send an array of objects');
  end if;
  select * into bad from tally_of(rows) t
  where coalesce(t.queue, '') = '' or octet_length(t.queue) > 200 or coalesce(t.kind, '') = '' or octet_length(t.kind) > 200
     or least(t.success, t.failed, t.dead, t.snoozed, t.cancelled, t.released) < 0
     or cardinality(t.waits) is distinct from classes or cardinality(t.runs) is distinct from classes
     or 0 > any(t.waits || t.runs) or array_position(t.waits || t.runs, null) is not null
  limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('the tally of queue %L, kind %L', left(bad.queue, 100), left(bad.kind, 100)),
      format('queue and kind have names; nothing is negative; waits and runs have %s classes', classes));
  end if;
end $$;

-- A worker hands in what it tallied: its `number`th tally, of a time whose middle was `age` seconds ago.
-- rows: [{"queue", "kind", "success", "failed", "dead", "snoozed", "cancelled", "released", "waits": […], "runs": […]}]
-- The same number again is not counted again. Gives the seconds until the next ten seconds begin here: workers that
-- keep time with it hand in one tally for each.
create or replace function statistics_add_v1(worker text, number bigint, age double precision, rows jsonb)
returns double precision language plpgsql
security definer set search_path from current
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  perform check_worker(worker);
  perform check_tally(number, age, rows);
  update workers w set tally = number, seen_at = at where w.id = worker and coalesce(w.tally, 0) < number;
  if found or not exists (select from workers w where w.id = worker) then
    with keyed as materialized (
      select k.depth, k.queue, k.kind, t.success, t.failed, t.dead, t.snoozed, t.cancelled, t.released, t.waits, t.runs
      from tally_of(rows) t
      cross join lateral (values (1, t.queue, t.kind), (2, t.queue, ''), (3, '', '')) k(depth, queue, kind)
    ), counted as (
      select k.depth, k.queue, k.kind, sum(k.success)::integer as success, sum(k.failed)::integer as failed,
        sum(k.dead)::integer as dead, sum(k.snoozed)::integer as snoozed, sum(k.cancelled)::integer as cancelled,
        sum(k.released)::integer as released
      from keyed k group by k.depth, k.queue, k.kind
    ), classes as (
      select c.queue, c.kind, array_agg(c.waits order by c.place) as waits, array_agg(c.runs order by c.place) as runs
      from (select k.queue, k.kind, t.place, sum(t.waits)::integer as waits, sum(t.runs)::integer as runs
            from keyed k cross join unnest(k.waits, k.runs) with ordinality t(waits, runs, place)
            group by k.queue, k.kind, t.place) c
      group by c.queue, c.kind)
    -- What most workers write comes last, and is held the shortest; everybody goes in this order.
    insert into statistics as s (step, queue, kind, at, success, failed, dead, snoozed, cancelled, released, waits, runs)
    select l.step, c.queue, c.kind, moment_of(at - age * interval '1 second', l.step), c.success, c.failed, c.dead, c.snoozed,
      c.cancelled, c.released, h.waits, h.runs
    from counted c join classes h on h.queue = c.queue and h.kind = c.kind
    cross join unnest(array[10, 60, 600]) l(step)
    order by c.depth, c.queue, c.kind, l.step
    on conflict (step, queue, kind, at) do update
    set success = s.success + excluded.success, failed = s.failed + excluded.failed, dead = s.dead + excluded.dead,
        snoozed = s.snoozed + excluded.snoozed, cancelled = s.cancelled + excluded.cancelled,
        released = s.released + excluded.released, waits = add_arrays(s.waits, excluded.waits),
        runs = add_arrays(s.runs, excluded.runs);
  end if;
  return 10 - date_part('epoch', at - moment_of(at, 10));
end $$;

create or replace function statistics_add(worker text, number bigint, age double precision, rows jsonb)
returns double precision language sql
security definer set search_path from current
as $$ select statistics_add_v1(worker, number, age, rows) $$;

create or replace function check_span(since timestamptz, until timestamptz, step integer) returns void language plpgsql
as $$
begin
  perform check_moment('since', since), check_moment('until', until);
  if since is null or step is null or step not between 10 and 86400 or step % 10 <> 0
     or until < since or date_part('epoch', until - since) / step > 2000 then
    perform refuse('LH003', 'invalid_argument', format('since %s, until %s, step %s', since, until, step),
      'step is 10 to 86400 seconds, a multiple of 10, and at most 2000 of them lie between since and until');
  end if;
end $$;

-- What was tallied, by moments `step` seconds apart; moments without anything are left out. Null queues or kinds: all.
-- Steps of 10 s reach back two hours, whole minutes two days, multiples of ten minutes two weeks.
create or replace function statistics_v1(
  since timestamptz, until timestamptz default null, step integer default 60, queues text[] default null,
  kinds text[] default null
) returns table (
  at timestamptz, success bigint, failed bigint, dead bigint, snoozed bigint, cancelled bigint, released bigint,
  waits bigint[], runs bigint[]
) language plpgsql stable
security definer set search_path from current
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  ends timestamptz := coalesce(statistics_v1.until, clock());
  begins timestamptz;
  length integer := case when statistics_v1.step % 600 = 0 then 600 when statistics_v1.step % 60 = 0 then 60 else 10 end;
begin
  perform check_span(statistics_v1.since, ends, statistics_v1.step);
  begins := moment_of(statistics_v1.since, statistics_v1.step);
  return query
    with chosen as materialized (
      select s.* from statistics s
      where statistics_v1.queues is null and statistics_v1.kinds is null
        and s.step = length and s.queue = '' and s.kind = '' and s.at >= begins and s.at < ends
      union all
      select s.* from unnest(statistics_v1.queues) q join statistics s
        on s.step = length and s.queue = q and s.kind = '' and s.at >= begins and s.at < ends
      where statistics_v1.kinds is null and q <> ''
      union all
      select s.* from statistics s
      where statistics_v1.kinds is not null and s.step = length and s.at >= begins and s.at < ends
        and s.kind <> '' and s.kind = any(statistics_v1.kinds)
        and (statistics_v1.queues is null or s.queue = any(statistics_v1.queues))
    ), summed as (
      select moment_of(c.at, statistics_v1.step) as at, sum(c.success) as success, sum(c.failed) as failed,
        sum(c.dead) as dead, sum(c.snoozed) as snoozed, sum(c.cancelled) as cancelled, sum(c.released) as released
      from chosen c group by 1
    ), classes as (
      select h.at, array_agg(h.waits order by h.place) as waits, array_agg(h.runs order by h.place) as runs
      from (select moment_of(c.at, statistics_v1.step) as at, t.place, sum(t.waits) as waits, sum(t.runs) as runs
            from chosen c cross join unnest(c.waits, c.runs) with ordinality t(waits, runs, place) group by 1, 2) h
      group by h.at)
    select s.at, s.success, s.failed, s.dead, s.snoozed, s.cancelled, s.released, h.waits, h.runs
    from summed s join classes h on h.at = s.at order by s.at;
end $$;

create or replace function statistics(
  since timestamptz, until timestamptz default null, step integer default 60, queues text[] default null,
  kinds text[] default null
) returns table (
  at timestamptz, success bigint, failed bigint, dead bigint, snoozed bigint, cancelled bigint, released bigint,
  waits bigint[], runs bigint[]
) language sql stable
security definer set search_path from current
as $$ select * from statistics_v1(since, until, step, queues, kinds) $$;
