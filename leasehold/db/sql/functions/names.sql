-- Return the queues and kinds that exist, so that the message for a misspelt name can list them: those of jobs that can run now or
-- were enqueued lately, and those that are scheduled, paused, limited, or served by a worker on record.
-- At most `max` of each; the cost does not depend on the length of the history.

-- The queues and kinds of which something can run now, with one probe of the runnable index for each.
create or replace function lanes_queued(max integer) returns table (queue text, kind text) language sql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
  with recursive lane(queue, kind, nth) as (
    (select j.queue, j.kind, 1 from jobs j where j.state = 'queued' and not j.parked order by j.queue, j.kind limit 1)
    union all
    select n.queue, n.kind, l.nth + 1 from lane l cross join lateral (
      select j.queue, j.kind from jobs j
      where j.state = 'queued' and not j.parked and (j.queue, j.kind) > (l.queue, l.kind)
      order by j.queue, j.kind limit 1) n
    where l.nth < lanes_queued.max)
  select l.queue, l.kind from lane l
$$;

create or replace function names_v1(max integer default 1000) returns table (what text, name text) language sql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
  with latest as materialized (
    select j.queue, j.kind from jobs j order by j.id desc limit 1000
  ), lanes as materialized (
    select l.queue, l.kind from lanes_queued(least(greatest(names_v1.max, 1), 10000)) l
  ), seen as materialized (
    select w.queues, w.kinds from workers w order by w.seen_at desc limit 200
  ), found(what, name) as (
    select 'queue', l.queue from latest l union select 'kind', l.kind from latest l
    union select 'queue', l.queue from lanes l union select 'kind', l.kind from lanes l
    union select 'queue', unnest(s.queues) from seen s union select 'kind', unnest(s.kinds) from seen s
    union select 'queue', s.queue from schedules s union select 'kind', s.kind from schedules s
    union select 'queue', p.queue from queues p
    union select l.scope, l.name from limits l where l.scope in ('queue', 'kind')
    union select 'kind', k.kind from kinds k union select 'queue', k.queue from kinds k)
  select t.what, t.name from (
    select f.what, f.name, row_number() over (partition by f.what order by f.name) as nth
    from found f where f.name is not null) t
  where t.nth <= least(greatest(names_v1.max, 1), 10000) order by t.what, t.name
$$;
