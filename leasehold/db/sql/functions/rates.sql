-- How fast each queue fills and empties. Every figure has a bounded cost, whatever the history.

-- The latest arrivals and departures of the last minute, at most `cap` of each: how many per queue, and over how many
-- seconds. What waits for its time has not arrived yet; an attempt that failed and will be repeated has not departed.
create or replace function recent_traffic(at timestamptz, cap integer, kinds text[])
returns table (queue text, arrived bigint, departed bigint, arrival_seconds double precision, departure_seconds double precision)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
  with arrivals as materialized (
    select j.queue, j.kind, j.state, greatest(j.created_at, at - interval '1 minute') as moment from jobs j
    where j.id >= id_at(at - interval '1 minute') order by j.id desc limit cap
  ), departures as materialized (
    (select j.queue, j.kind, j.finished_at as moment from finished_since('success', at - interval '1 minute') j
     order by j.finished_at desc limit cap)
    union all
    (select j.queue, j.kind, j.finished_at from finished_since('dead', at - interval '1 minute') j order by j.finished_at desc limit cap)
  ), spans as (
    -- Where the cap was reached, only the time since the earliest of them is covered.
    select case when (select count(*) from arrivals) < cap then 60
             else greatest(0.01, date_part('epoch', at - (select min(a.moment) from arrivals a))) end as arrival_seconds,
           case when (select count(*) from departures) < cap then 60
             else greatest(0.01, date_part('epoch', at - (select min(d.moment) from departures d))) end as departure_seconds
  ), both_ways as (
    select a.queue, 1 as arrived, 0 as departed from arrivals a
    where a.state <> 'created' and (recent_traffic.kinds is null or a.kind = any(recent_traffic.kinds))
    union all
    select d.queue, 0, 1 from departures d where recent_traffic.kinds is null or d.kind = any(recent_traffic.kinds))
  select b.queue, sum(b.arrived), sum(b.departed), min(s.arrival_seconds), min(s.departure_seconds)
  from both_ways b cross join spans s group by b.queue
$$;

-- Every queue of queue_list with its arrivals and departures a second, over the last minute or, with much traffic, over
-- as much of it as ten thousand jobs cover; whether a live worker serves it; and how many jobs of it finished in each of
-- the last thirty whole minutes, as tallied. Null queues or kinds: all.
create or replace function rates_v1(queues text[] default null, kinds text[] default null) returns table (
  queue text, ready integer, ready_capped boolean, running integer, oldest_seconds double precision, in_rate double precision,
  out_rate double precision, paused boolean, served boolean, max_running integer, recent integer[]
) language plpgsql stable as $$
declare
  at timestamptz := clock();
  first_minute timestamptz := moment_of(at, 60) - interval '30 minutes';
begin
  return query
    select l.queue, l.ready, l.ready_capped, l.running,
      case when l.oldest_ready_at is not null then greatest(0, date_part('epoch', at - l.oldest_ready_at)) end,
      coalesce(t.arrived / t.arrival_seconds, 0), coalesce(t.departed / t.departure_seconds, 0),
      l.paused_at is not null,
      exists (select from workers w where is_live(w, at) and (w.queues is null or l.queue = any(w.queues))),
      l.max_running,
      case when rates_v1.kinds is null then array(
        select coalesce(s.success + s.dead + s.cancelled, 0)
        from generate_series(first_minute, first_minute + interval '29 minutes', interval '1 minute') m(minute)
        left join statistics s on s.step = 60 and s.queue = l.queue and s.kind = '' and s.at = m.minute
        order by m.minute) end
    from queue_list_v1(10000, rates_v1.queues, rates_v1.kinds) l
    left join recent_traffic(at, 10000, rates_v1.kinds) t on t.queue = l.queue
    order by l.queue;
end $$;
