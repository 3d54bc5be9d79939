-- How a claim finds and locks jobs. A lane is one queue and kind: one range of the index jobs_runnable, in claim order. A lane whose
-- jobs the claim cannot take is never read, however deep it is (docs/decisions/0004-lanes.md).

-- A lane, read from its start.
create or replace function lane_of(queue text, kind text) returns lane language sql immutable parallel safe
return row(queue, kind, '-32768', '00000000-0000-0000-0000-000000000000', null, null)::lane;

create or replace function lanes_of(lanes jsonb) returns lane[] language plpgsql as $$
begin
  if (case when jsonb_typeof(lanes) = 'array' then jsonb_array_length(lanes) > 10000 or exists (
      select from jsonb_array_elements(lanes) e
      where jsonb_typeof(e -> 'queue') is distinct from 'string' or jsonb_typeof(e -> 'kind') is distinct from 'string'
        or jsonb_typeof(e -> 'priority') not in ('number', 'null') or jsonb_typeof(e -> 'id') not in ('string', 'null')
        or e - array['queue', 'kind', 'priority', 'id'] <> '{}'
        or e ->> 'priority' !~ '^-?[0-9]{1,5}$' or abs((e ->> 'priority')::integer) > max_number()
        or e ->> 'id' !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
    else true end) then
    perform refuse('LH003', 'invalid_argument', 'lanes is not an array of at most 10000 queues and kinds with positions',
      'send [{"queue": text, "kind": text, "priority": number, "id": uuid}], the last two if there is a position');
  end if;
  return array(
    select row(l.queue, l.kind, coalesce(-l.priority, s.rank), coalesce(l.id, s.id), null, null)::lane
    from jsonb_to_recordset(lanes) l(queue text, kind text, priority smallint, id uuid)
    cross join lateral (select (lane_of('', '')).*) s);
end $$;

create or replace function kinds_of(lanes lane[]) returns text[] language plpgsql immutable parallel safe as $$
begin
  if cardinality(lanes) = 1 then  -- usually, and without a query
    return array[lanes[1].kind];
  end if;
  return array(select distinct l.kind from unnest(lanes) l);
end $$;

-- The queues that have runnable jobs: one index probe for each. A plain query, so that it is inlined.
create or replace function ready_queues() returns setof text language sql stable as $$
  with recursive q(queue) as (
    select min(j.queue) from jobs j where j.state = 'queued' and not j.parked
    union all
    select (select min(j.queue) from jobs j where j.state = 'queued' and not j.parked and j.queue > q.queue)
    from q where q.queue is not null)
  select q.queue from q where q.queue is not null
$$;

-- The lanes that have runnable jobs. One index probe for each, however deep it is. Without `queues`, of all queues.
create or replace function lanes_ready(queues text[], kinds text[]) returns lane[] language plpgsql stable as $$
begin
  if kinds is null then
    return array(
      with recursive asked(queue) as materialized (
        select unnest(queues) union all select r.queue from ready_queues() r(queue) where queues is null
      ), l(queue, kind) as (
        select a.queue, (select min(j.kind) from jobs j where j.queue = a.queue and j.state = 'queued' and not j.parked)
        from asked a
        union all
        select l.queue, (select min(j.kind) from jobs j
          where j.queue = l.queue and j.kind > l.kind and j.state = 'queued' and not j.parked)
        from l where l.kind is not null)
      select lane_of(l.queue, l.kind) from l where l.kind is not null);
  end if;
  return array(
    -- LIMIT, not EXISTS: the planner could turn that into a join that reads the whole index.
    select lane_of(a.queue, k)
    from (select unnest(queues) union all select r.queue from ready_queues() r(queue) where queues is null) a(queue)
    cross join unnest(kinds) k
    cross join lateral (
      select from jobs j where j.queue = a.queue and j.kind = k and j.state = 'queued' and not j.parked limit 1) j);
end $$;

-- Lock the next `wanted` runnable jobs of one lane. Rows that other sessions have locked are skipped.
create or replace function lock_in_lane(lane lane, wanted integer, at timestamptz) returns locked_jobs language plpgsql as $$
declare
  locked locked_jobs;
begin
  select array_agg(t.id), bool_or(t.exclusive_key is not null), max(t.rank), (array_agg(t.id))[count(*)], sum(t.bytes), false
  into locked
  from (
    select j.id, j.exclusive_key, -j.priority as rank, most_bytes(j.payload) as bytes
    from jobs j
    where j.queue = lane.queue and j.kind = lane.kind and j.state = 'queued' and not j.parked
      and (-j.priority, j.id) > (lane.rank, lane.id) and j.run_at <= lock_in_lane.at and j.retry_count < j.max_attempts
    order by -j.priority, j.id
    limit wanted
    for no key update skip locked) t;
  if cardinality(locked.ids) < wanted then
    locked.last_id := null;
  end if;
  return locked;
end $$;

-- The same across several lanes, in claim order over all of them: read the head of each lane, merge, cut where the merge is not
-- certain any more or where a queue or kind has no more room, then lock. Reading before locking leaves the jobs that are not wanted
-- to other sessions; jobs that another session has locked meanwhile are skipped, and the next step goes on behind them.
create or replace function lock_in_lanes(lanes lane[], wanted integer, at timestamptz) returns locked_jobs language plpgsql as $$
declare
  share constant double precision := wanted::double precision / cardinality(lanes);
  -- More than a lane's share, so that the merge is certain for as many as are wanted though the lanes are uneven; not many more,
  -- because with a thousand lanes each row here is a thousand rows.
  per_lane constant integer := least(wanted, ceil(share + 3 * sqrt(share)) + 3);
  block uuid[];
  ranks smallint[];
  places integer[];  -- of each job's lane in `lanes`
  fitting integer;
  locked locked_jobs;
begin
  with head as materialized (
    select l.place, j.rank, j.id, row_number() over (partition by l.place order by j.rank, j.id) as nth
    from unnest(lanes) with ordinality l(queue, kind, rank, id, queue_room, kind_room, place)
    cross join lateral (
      select -j.priority as rank, j.id
      from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
        and (-j.priority, j.id) > (l.rank, l.id) and j.run_at <= lock_in_lanes.at and j.retry_count < j.max_attempts
      order by -j.priority, j.id
      limit per_lane) j
  ), cut as (
    -- A lane that returned per_lane rows may have more: nothing behind its last row is certain.
    select h.rank, h.id from head h where h.nth = per_lane order by h.rank, h.id limit 1
  )
  select array_agg(b.id), array_agg(b.rank), array_agg(b.place) into block, ranks, places
  from (
    select h.place, h.rank, h.id from head h
    where not exists (select from cut c where (h.rank, h.id) > (c.rank, c.id))
    order by h.rank, h.id limit wanted) b;
  if exists (select from unnest(lanes) l where coalesce(l.queue_room, l.kind_room) is not null) then
    -- Up to the first job that has no room. The next step goes on behind, without the lanes that are full.
    select min(t.nth) - 1 into fitting
    from (select b.nth, lanes[b.place].queue_room, lanes[b.place].kind_room,
            row_number() over (partition by lanes[b.place].queue order by b.nth) as of_queue,
            row_number() over (partition by lanes[b.place].kind order by b.nth) as of_kind
          from unnest(places) with ordinality b(place, nth)) t
    where t.of_queue > t.queue_room or t.of_kind > t.kind_room;
    block := block[:coalesce(fitting, cardinality(block))];
  end if;
  select array_agg(t.id), bool_or(t.exclusive_key is not null), sum(t.bytes) into locked.ids, locked.keyed, locked.bytes
  from (
    select j.id, j.exclusive_key, most_bytes(j.payload) as bytes from jobs j
    where j.id = any(block) and j.state is not distinct from 'queued' and j.parked is distinct from true
    order by j.id for no key update skip locked) t;
  locked.last_rank := ranks[cardinality(block)];
  locked.last_id := block[cardinality(block)];
  return locked;
end $$;

-- Return the lanes behind the rows that were read, their rooms without what `won` take, and no lane that is full.
create or replace function lanes_behind(lanes lane[], locked locked_jobs, won uuid[]) returns lane[] language plpgsql as $$
declare
  limited constant boolean := exists (select from unnest(lanes) l where coalesce(l.queue_room, l.kind_room) is not null);
begin
  return array(
    with started as materialized (
      select j.queue, j.kind, count(*)::integer as jobs from jobs j where limited and j.id = any(won) group by j.queue, j.kind)
    select row(l.queue, l.kind, case when l.read then locked.last_rank else l.rank end,
      case when l.read then locked.last_id else l.id end, l.queue_room, l.kind_room)::lane
    from (
      select l.queue, l.kind, l.rank, l.id, (l.rank, l.id) < (locked.last_rank, locked.last_id) as read,
        l.queue_room - coalesce((select sum(s.jobs) from started s where s.queue = l.queue), 0)::integer as queue_room,
        l.kind_room - coalesce((select sum(s.jobs) from started s where s.kind = l.kind), 0)::integer as kind_room
      from unnest(lanes) l) l
    where coalesce(least(l.queue_room, l.kind_room), 1) > 0);
end $$;

-- Lock up to `wanted` jobs that may run now: those without an exclusive key, and of each key one whose key is free. Each step locks
-- the next jobs in claim order. `key_limits`: there are limits on keys; `waited`: this claim could not lock one of them.
create or replace function lock_runnable(lanes lane[], wanted integer, key_limits boolean, waited boolean) returns uuid[]
language plpgsql as $$
declare
  at constant timestamptz := clock();
  rest lane[] := lanes;
  locked locked_jobs;
  bytes bigint := max_claim_bytes();
  taken uuid[] := '{}';
  won uuid[];
  keys record;
  rooms room[] := '{}';       -- what is left of the key limits that this claim has locked
  idle_steps integer := 0;    -- consecutive steps in which key limits admitted nothing
  key_steps integer := 0;     -- steps that settled exclusive keys
  more boolean := false;      -- this claim leaves jobs that another one could take
begin
  while cardinality(rest) > 0 loop
    if cardinality(rest) = 1 then
      locked := lock_in_lane(rest[1], least(wanted - cardinality(taken), rest[1].queue_room, rest[1].kind_room), at);
    else
      locked := lock_in_lanes(rest, wanted - cardinality(taken), at);
    end if;
    if locked.bytes > bytes or locked.keyed and cardinality(locked.ids) > 100 then
      locked := fitting(locked, bytes, cardinality(taken) = 0);
    end if;
    won := locked.ids;
    if locked.keyed then
      won := settle_exclusive(locked.ids, at, taken);
      key_steps := key_steps + 1;
      if key_limits then
        keys := admit_in_rooms(locked.ids, won, taken, rooms);
        won := keys.admitted;
        rooms := keys.rooms;
        more := more or keys.passed and not waited;
        idle_steps := case when keys.touched and cardinality(won) = 0 then idle_steps + 1 else 0 end;
      end if;
    end if;
    taken := taken || won;
    -- The bytes of a claim are used up. But if all jobs that fitted wait for their keys, the next ones are tried.
    if locked.cut and cardinality(taken) > 0 then
      more := more or cardinality(taken) < wanted;
      exit;
    end if;
    exit when locked.last_id is null or cardinality(taken) >= wanted;
    -- A backlog under exhausted key limits or behind busy keys is parked by several claims, so that none takes long; and each key
    -- takes a place in the server's lock table.
    if idle_steps >= 20 or key_steps >= 10 then
      more := true;
      exit;
    end if;
    if cardinality(won) > 0 then
      bytes := bytes - locked.bytes;
    end if;
    rest := lanes_behind(rest, locked, won);
  end loop;
  if more then
    perform announce(array(select distinct l.queue from unnest(lanes) l));
  end if;
  return taken;
end $$;

-- Return the most bytes that a payload can have as text, without reading it: what is compressed is at most 255 times as long, and the
-- text at most 64 times as long as what is stored (1e990 is 16 bytes; no number has more than 1000 digits).
create or replace function most_bytes(payload jsonb) returns double precision language sql stable parallel safe
return pg_column_size(payload)::double precision * case when pg_column_compression(payload) is null then 64 else 16320 end;

-- Return the first of locked jobs in claim order: as many as fit into `room` bytes, with `one` one at least, and only those before the
-- 101st exclusive key. At most 100 keys are settled at once.
create or replace function fitting(locked locked_jobs, room bigint, one boolean) returns locked_jobs language plpgsql as $$
declare
  kept uuid[] := locked.ids;
  size bigint;
  fits locked_jobs;
  job record;
begin
  fits.bytes := locked.bytes;
  if locked.bytes > room then  -- an upper bound: now the payloads are read, one by one, until there is no more room
    kept := '{}';
    fits.bytes := 0;
    for job in select j.id, j.payload from jobs j where j.id = any(locked.ids) order by -j.priority, j.id loop
      size := octet_length(job.payload::text);
      exit when fits.bytes + size > room and not (one and kept = '{}');
      kept := kept || job.id;
      fits.bytes := fits.bytes + size;
    end loop;
  end if;
  select array_agg(t.id order by t.rank, t.id), bool_or(t.exclusive_key is not null), max(t.rank)
  into fits.ids, fits.keyed, fits.last_rank
  from (
    select j.id, j.rank, j.exclusive_key, sum(j.first_of_key) over (order by j.rank, j.id rows unbounded preceding) as keys
    from (
      select j.id, -j.priority as rank, j.exclusive_key,
        (j.exclusive_key is not null and row_number() over (
          partition by j.exclusive_key order by -j.priority, j.id) = 1)::integer as first_of_key
      from jobs j where j.id = any(kept)) j) t
  where t.keys <= 100;
  fits.last_id := fits.ids[cardinality(fits.ids)];
  fits.cut := coalesce(cardinality(fits.ids), 0) = cardinality(kept) and cardinality(kept) < cardinality(locked.ids);
  if cardinality(fits.ids) = cardinality(locked.ids) then
    fits.last_rank := locked.last_rank;
    fits.last_id := locked.last_id;
  end if;
  return fits;
end $$;
