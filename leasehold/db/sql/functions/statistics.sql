-- Counts and durations that workers report, and series of them. Approximate: see docs/statistics.md.
-- Error: LH003 invalid_argument.

-- Where the histograms' classes end, in seconds: five to a factor of ten, from 1 ms to 100,000 s. One class more than
-- bounds: the last is for what took longer.
create or replace function histogram_bounds() returns double precision[] language sql immutable parallel safe
return array[0.001, 0.0016, 0.0025, 0.004, 0.0063, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63,
  1, 1.6, 2.5, 4, 6.3, 10, 16, 25, 40, 63, 100, 160, 250, 400, 630, 1000, 1600, 2500, 4000, 6300, 10000, 16000, 25000,
  40000, 63000, 100000]::double precision[];

-- The beginning of the step that a moment is in: the same for all workers.
create or replace function moment_of(moment timestamptz, step integer) returns timestamptz language sql immutable parallel safe
return date_bin(step * interval '1 second', moment, '2000-01-01 00:00:00+00');

-- Histograms are added class by class.
create or replace function add_arrays(a bigint[], b bigint[]) returns bigint[] language sql immutable strict parallel safe
as $$ select array_agg(t.a + t.b order by t.place) from unnest(a, b) with ordinality t(a, b, place) $$;

create or replace aggregate add_up(bigint[]) (sfunc = add_arrays, stype = bigint[], parallel = safe);

-- Return the rows of a tally; a count that is left out is 0.
create or replace function tally_of(rows jsonb) returns setof statistics language sql stable
as $$
  select * from jsonb_populate_recordset(null::statistics, (
    select jsonb_agg('{"success": 0, "failed": 0, "dead": 0, "snoozed": 0, "cancelled": 0, "released": 0}' || e)
    from jsonb_array_elements(rows) e))
$$;

create or replace function check_tally(number bigint, age double precision, rows jsonb) returns void language plpgsql as $$
declare
  classes constant integer := cardinality(histogram_bounds()) + 1;
begin
  perform require(number >= 1 and age between 0 and 86400, format('number %s, age %s', number, age),
    'number counts from 1, age is 0 to 86400 seconds');
  perform require(case jsonb_typeof(rows) when 'array' then jsonb_array_length(rows) <= 10000 end,
    'rows is not a JSON array of at most 10000', 'send an array of objects');
  perform require(false, format('the tally of queue %L, kind %L', left(t.queue, 100), left(t.kind, 100)),
    format('queue and kind have names; nothing is negative; waits and runs have %s classes', classes))
  from tally_of(rows) t
  where coalesce(t.queue, '') = '' or octet_length(t.queue) > max_name_bytes() or coalesce(t.kind, '') = '' or octet_length(t.kind) > max_name_bytes()
     or least(t.success, t.failed, t.dead, t.snoozed, t.cancelled, t.released) < 0
     or num_nulls(t.success, t.failed, t.dead, t.snoozed, t.cancelled, t.released) > 0
     or cardinality(t.waits) is distinct from classes or cardinality(t.runs) is distinct from classes
     or 0 > any(t.waits || t.runs) or array_position(t.waits || t.runs, null) is not null;
end $$;

-- A worker reports its `number`th tally, of a time whose middle was `age` seconds ago.
-- rows: [{"queue", "kind", "success", "failed", "dead", "snoozed", "cancelled", "released", "waits": […], "runs": […]}]
-- The same number again is not counted again. Returns the seconds until the next ten seconds begin here: workers that
-- follow it report one tally for each.
create or replace function statistics_add_v1(worker text, number bigint, age double precision, rows jsonb)
returns double precision language plpgsql set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  perform check_worker(worker);
  perform check_tally(number, age, rows);
  update workers w set tally = number, seen_at = at where w.id = worker and coalesce(w.tally, 0) < number;
  if found or not exists (select from workers w where w.id = worker) then
    with counted as materialized (
      select k.depth, k.queue, k.kind, sum(t.success) as success, sum(t.failed) as failed, sum(t.dead) as dead,
        sum(t.snoozed) as snoozed, sum(t.cancelled) as cancelled, sum(t.released) as released, add_up(t.waits) as waits, add_up(t.runs) as runs
      from tally_of(rows) t
      cross join lateral (values (1, t.queue, t.kind), (2, t.queue, ''), (3, '', '')) k(depth, queue, kind)
      group by k.depth, k.queue, k.kind)
    -- What most workers write comes last, and is locked for the shortest time; every worker writes in this order.
    insert into statistics as s (step, queue, kind, at, success, failed, dead, snoozed, cancelled, released, waits, runs)
    select l.step, c.queue, c.kind, moment_of(at - age * interval '1 second', l.step), c.success, c.failed, c.dead, c.snoozed,
      c.cancelled, c.released, c.waits, c.runs
    from counted c cross join unnest(array[10, 60, 600]) l(step)
    order by c.depth, c.queue, c.kind, l.step
    on conflict (step, queue, kind, at) do update
    set success = s.success + excluded.success, failed = s.failed + excluded.failed, dead = s.dead + excluded.dead,
        snoozed = s.snoozed + excluded.snoozed, cancelled = s.cancelled + excluded.cancelled,
        released = s.released + excluded.released, waits = add_arrays(s.waits, excluded.waits),
        runs = add_arrays(s.runs, excluded.runs);
  end if;
  return 10 - date_part('epoch', at - moment_of(at, 10));
end $$;

create or replace function check_span(since timestamptz, until timestamptz, step integer) returns void language plpgsql as $$
begin
  perform check_moment('since', since), check_moment('until', until);
  perform require(since is not null and step between 10 and 86400 and step % 10 = 0 and coalesce(until >= since, true)
      and coalesce(date_part('epoch', until - since) / nullif(step, 0) <= 2000, true),
    format('since %s, until %s, step %s', since, until, step),
    'step is 10 to 86400 seconds, a multiple of 10, and at most 2000 of them lie between since and until');
end $$;

-- What was tallied, by moments `step` seconds apart; moments without anything are left out. Null queues or kinds: all.
-- Steps of 10 s reach back two hours, whole minutes two days, multiples of ten minutes two weeks.
create or replace function statistics_v1(
  since timestamptz, until timestamptz default null, step integer default 60, queues text[] default null, kinds text[] default null
) returns table (
  at timestamptz, success bigint, failed bigint, dead bigint, snoozed bigint, cancelled bigint, released bigint,
  waits bigint[], runs bigint[]
) language plpgsql stable set enable_seqscan = off as $$
declare
  ends timestamptz := coalesce(statistics_v1.until, clock());
  begins timestamptz;
  length integer := case when statistics_v1.step % 600 = 0 then 600 when statistics_v1.step % 60 = 0 then 60 else 10 end;
begin
  perform check_span(statistics_v1.since, ends, statistics_v1.step);
  begins := moment_of(statistics_v1.since, statistics_v1.step);
  return query
    select moment_of(c.at, statistics_v1.step), sum(c.success), sum(c.failed), sum(c.dead), sum(c.snoozed), sum(c.cancelled),
      sum(c.released), add_up(c.waits), add_up(c.runs)
    from (
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
        and (statistics_v1.queues is null or s.queue = any(statistics_v1.queues))) c
    group by 1 order by 1;
end $$;
