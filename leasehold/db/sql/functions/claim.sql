-- Take up to `count` runnable jobs under a lease.  queued -> running.
-- Order: priority (higher first), then creation. Only the given queues and kinds (null: any), and no paused queue.
-- Repeating a call with the same claim_id gives the same jobs: the answer may have been lost. The claim ids of version 7 that
-- one worker name sends must grow: after a later one an older one takes nothing. Ids of other versions are in no order.
-- `lanes` narrows the look to some queue/kind pairs, each after a place in claim order that the caller has
-- already been given: [{"queue": …, "kind": …, "priority": …, "id": …}]. A claim that starts there does not
-- walk over the dead index entries of what was claimed before, which vacuum cannot remove while somebody
-- holds an old snapshot. A claim without lanes looks everywhere.
-- Waits for an earlier try of the same claim five seconds at most; for all its limits together that other transactions hold a
-- quarter of a second, then it takes what they do not bear upon. A claim that raises takes nothing; claim_each then does the same row by
-- row, without waiting, and finds the job at fault.
-- At most 64 MB of payload at once, but always one job; where that leaves jobs behind, their queues are announced.
-- Errors: LH003 invalid_argument, 55P03 lock_not_available.

create or replace function check_lanes(lanes jsonb) returns void language plpgsql
as $$
begin
  if (case when jsonb_typeof(lanes) = 'array' then jsonb_array_length(lanes) > 10000 or exists (
      select from jsonb_array_elements(lanes) e
      where jsonb_typeof(e -> 'queue') is distinct from 'string' or jsonb_typeof(e -> 'kind') is distinct from 'string'
        or jsonb_typeof(e -> 'priority') not in ('number', 'null') or jsonb_typeof(e -> 'id') not in ('string', 'null')
        or e - array['queue', 'kind', 'priority', 'id'] <> '{}'
        or e ->> 'priority' !~ '^-?[0-9]{1,5}$' or abs((e ->> 'priority')::integer) > 32767
        or e ->> 'id' !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
    else true end)
  then
    perform refuse('LH003', 'invalid_argument', 'lanes is not an array of at most 10000 queues and kinds with places',
      'give [{"queue": text, "kind": text, "priority": number, "id": uuid}], the last two if there is a place');
  end if;
end $$;

-- The queue/kind pairs that have runnable jobs. One index probe a pair, however deep any of them is.
create or replace function lanes_ready(queues text[], kinds text[]) returns table (queue text, kind text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  if queues is null then
    queues := array(
      with recursive q(queue) as (
        select min(j.queue) from jobs j where j.state = 'queued' and not j.parked
        union all
        select (select min(j.queue) from jobs j where j.state = 'queued' and not j.parked and j.queue > q.queue)
        from q where q.queue is not null)
      select q.queue from q where q.queue is not null);
  end if;
  if kinds is null then
    return query
      with recursive lane(queue, kind) as (
        select q, (select min(j.kind) from jobs j where j.queue = q and j.state = 'queued' and not j.parked)
        from unnest(queues) q
        union all
        select l.queue, (select min(j.kind) from jobs j
          where j.queue = l.queue and j.kind > l.kind and j.state = 'queued' and not j.parked)
        from lane l where l.kind is not null)
      select l.queue, l.kind from lane l where l.kind is not null;
  else
    return query
      -- LIMIT, not EXISTS: that would become a join, free to read the whole index.
      select q, k from unnest(queues) q cross join unnest(kinds) k
      cross join lateral (
        select from jobs j where j.queue = q and j.kind = k and j.state = 'queued' and not j.parked limit 1) j;
  end if;
end $$;

-- Lock the next `wanted` runnable jobs of one lane, after a place in claim order. Others' rows are skipped.
create or replace function lock_in_lane(
  queue text, kind text, after_rank smallint, after_id uuid, wanted integer, at timestamptz,
  out ids uuid[], out exclusive boolean, out last_rank smallint, out last_id uuid, out bytes bigint
) language plpgsql
as $$
#variable_conflict use_column
begin
  select array_agg(t.id), bool_or(t.exclusive_key is not null), max(t.rank), (array_agg(t.id))[count(*)], sum(t.bytes)
  into ids, exclusive, last_rank, last_id, bytes
  from (
    select j.id, j.exclusive_key, -j.priority as rank, most_bytes(j.payload) as bytes
    from jobs j
    where j.queue = lock_in_lane.queue and j.kind = lock_in_lane.kind and j.state = 'queued' and not j.parked
      and (-j.priority, j.id) > (lock_in_lane.after_rank, lock_in_lane.after_id)
      and j.run_at <= lock_in_lane.at and j.retry_count < j.max_attempts
    order by -j.priority, j.id
    limit wanted
    for update skip locked) t;
end $$;

-- The same across several lanes, in claim order over all of them: read the head of each lane, merge, cut
-- where the merge stops being certain or a queue or kind has no more room, lock what is left. Reading first and locking afterwards keeps rows
-- that are not wanted free for others; whoever was faster is skipped and the next round goes on behind.
create or replace function lock_in_lanes(
  queues text[], kinds text[], after_ranks smallint[], after_ids uuid[], wanted integer, at timestamptz,
  queue_rooms integer[], kind_rooms integer[],
  out ids uuid[], out exclusive boolean, out last_rank smallint, out last_id uuid, out bytes bigint
) language plpgsql
as $$
#variable_conflict use_column
declare
  share double precision := wanted::double precision / cardinality(queues);
  -- More than the share of a lane, so that the merge is certain for as many as are wanted though lanes are not even; and
  -- not much more, because with a thousand lanes each row here is a thousand rows.
  per_lane integer := least(wanted, ceil(share + 3 * sqrt(share)) + 3);
  block uuid[];
  ranks smallint[];
  lanes integer[];
  fitting integer;
begin
  with head as materialized (
    select l.lane, j.rank, j.id, row_number() over (partition by l.lane order by j.rank, j.id) as nth
    from unnest(queues, kinds, after_ranks, after_ids) with ordinality l(queue, kind, rank, id, lane)
    cross join lateral (
      select -j.priority as rank, j.id
      from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
        and (-j.priority, j.id) > (l.rank, l.id) and j.run_at <= lock_in_lanes.at and j.retry_count < j.max_attempts
      order by -j.priority, j.id
      limit per_lane) j
  ), cut as (
    -- A lane that filled its share may have more; beyond its last row nothing is certain.
    select h.rank, h.id from head h where h.nth = per_lane order by h.rank, h.id limit 1
  )
  select array_agg(b.id), array_agg(b.rank), array_agg(b.lane) into block, ranks, lanes
  from (
    select h.lane, h.rank, h.id from head h
    where not exists (select from cut c where (h.rank, h.id) > (c.rank, c.id))
    order by h.rank, h.id limit wanted) b;
  if queue_rooms is not null then
    -- Up to the first job that has no room. Whoever calls goes on behind, without the lanes that are full.
    select min(t.place) - 1 into fitting
    from (select b.place, queue_rooms[b.lane] as queue_room, kind_rooms[b.lane] as kind_room,
            row_number() over (partition by queues[b.lane] order by b.place) as of_queue,
            row_number() over (partition by kinds[b.lane] order by b.place) as of_kind
          from unnest(lanes) with ordinality b(lane, place)) t
    where t.of_queue > t.queue_room or t.of_kind > t.kind_room;
    block := block[:coalesce(fitting, cardinality(block))];
  end if;
  last_rank := ranks[cardinality(block)];
  last_id := block[cardinality(block)];
  select array_agg(t.id), bool_or(t.exclusive_key is not null), sum(t.bytes) into ids, exclusive, bytes
  from (
    select j.id, j.exclusive_key, most_bytes(j.payload) as bytes from jobs j
    where j.id = any(block) and j.state is not distinct from 'queued' and j.parked is distinct from true
    order by j.id for update skip locked) t;
end $$;

-- Lock up to `wanted` jobs that may run now, exclusive keys settled. Lanes may come with the room of their queue and of
-- their kind; `keys_limited`: there are limits on keys.
create or replace function lock_runnable(lanes jsonb, wanted integer, at timestamptz, keys_limited boolean default false)
returns uuid[] language plpgsql
as $$
declare
  queues text[];
  kinds text[];
  ranks smallint[];
  ids uuid[];
  queue_rooms integer[];
  kind_rooms integer[];
  found_now record;
  won uuid[];
  under_keys record;
  rooms jsonb := '{}';        -- what is left of the key limits that we have locked
  passed boolean := false;    -- another claim was counting under a key limit
  waited boolean;             -- and this one has waited for it in vain: upkeep looks again
  fruitless integer := 0;     -- rounds in which key limits admitted nothing
  key_rounds integer := 0;    -- rounds that had exclusive keys to settle
  asked integer;
  at_end boolean;
  bytes bigint := claim_bytes();
  found_bytes bigint;
  fitting uuid[];
  cut boolean;                -- not all that was found fits into the bytes
  taken uuid[] := '{}';
begin
  select array_agg(l.queue), array_agg(l.kind), array_agg(coalesce(-l.priority, -32768)::smallint),
         array_agg(coalesce(l.id, '00000000-0000-0000-0000-000000000000')),
         case when count(coalesce(l.queue_room, l.kind_room)) > 0 then array_agg(l.queue_room) end,
         array_agg(l.kind_room), coalesce(bool_or(l.waited), false)
  into queues, kinds, ranks, ids, queue_rooms, kind_rooms, waited
  from jsonb_to_recordset(lanes) as l(queue text, kind text, priority smallint, id uuid, queue_room integer,
    kind_room integer, waited boolean);
  if queues is null then
    return taken;
  end if;
  loop
    asked := wanted - cardinality(taken);
    if cardinality(queues) = 1 then
      asked := least(asked, queue_rooms[1], kind_rooms[1]);
      found_now := lock_in_lane(queues[1], kinds[1], ranks[1], ids[1], asked, at);
    else
      found_now := lock_in_lanes(queues, kinds, ranks, ids, asked, at, queue_rooms, kind_rooms);
    end if;
    exit when found_now.last_id is null;
    at_end := cardinality(queues) = 1 and cardinality(found_now.ids) < asked;
    found_bytes := coalesce(found_now.bytes, 0);
    cut := false;
    if found_bytes > bytes then  -- perhaps: that is the most they can have
      fitting := within_bytes(found_now.ids, bytes, cardinality(taken) = 0);
      cut := cardinality(fitting) < cardinality(found_now.ids);
      found_now.ids := fitting;
      exit when cardinality(fitting) = 0;
      found_bytes := bytes_of(fitting);
    end if;
    if cut then
      select -j.priority, j.id into found_now.last_rank, found_now.last_id
      from jobs j where j.id = any(found_now.ids) order by -j.priority desc, j.id desc limit 1;
      at_end := false;
    end if;
    if found_now.exclusive then
      key_rounds := key_rounds + 1;
      if cardinality(found_now.ids) > 100 then
        found_now := before_too_many_keys(found_now.ids, found_now.last_rank, found_now.last_id);
        at_end := false;
      end if;
    end if;
    won := case when found_now.exclusive then settle_exclusive(found_now.ids, at, taken) else found_now.ids end;
    if keys_limited and found_now.exclusive then
      under_keys := admit_in_rooms(found_now.ids, won, taken, rooms);
      won := under_keys.admitted;
      rooms := under_keys.rooms;
      passed := passed or under_keys.passed and not waited;
      fruitless := case when under_keys.touched and cardinality(won) = 0 then fruitless + 1 else 0 end;
    end if;
    taken := taken || won;
    -- With no more room for bytes; but where all that fitted wait for their keys, the next ones are looked at.
    exit when at_end or cardinality(taken) >= wanted or cut and cardinality(taken) > 0;
    if cardinality(won) > 0 then
      bytes := bytes - found_bytes;
    end if;
    if fruitless >= 20 or key_rounds >= 10 then
      -- A backlog under exhausted key limits, or behind busy keys, is parked by several claims, not by one that takes for
      -- ever. And each key takes a place in the server's lock table.
      passed := true;
      exit;
    end if;
    -- Go on behind what was looked at: rows that others hold, or that wait for their key.
    select array_agg(case when p.seen then found_now.last_rank else p.rank end order by p.lane),
           array_agg(case when p.seen then found_now.last_id else p.id end order by p.lane)
    into ranks, ids
    from (select l.*, (l.rank, l.id) < (found_now.last_rank, found_now.last_id) as seen
          from unnest(ranks, ids) with ordinality l(rank, id, lane)) p;
    if queue_rooms is not null then
      -- Less room for the lanes of what was taken; the full ones are left out.
      select array_agg(l.queue order by l.lane), array_agg(l.kind order by l.lane),
             array_agg(l.rank order by l.lane), array_agg(l.id order by l.lane),
             array_agg(l.queue_room order by l.lane), array_agg(l.kind_room order by l.lane)
      into queues, kinds, ranks, ids, queue_rooms, kind_rooms
      from (
        select l.queue, l.kind, l.rank, l.id, l.lane,
          l.queue_room - (select count(*) from jobs j where j.id = any(won) and j.queue = l.queue)::integer as queue_room,
          l.kind_room - (select count(*) from jobs j where j.id = any(won) and j.kind = l.kind)::integer as kind_room
        from unnest(queues, kinds, ranks, ids, queue_rooms, kind_rooms)
          with ordinality l(queue, kind, rank, id, queue_room, kind_room, lane)) l
      where coalesce(least(l.queue_room, l.kind_room), 1) > 0;
      exit when queues is null;
    end if;
  end loop;
  if passed or cut and cardinality(taken) < wanted then  -- there is more: this was not the end
    perform announce(array(select distinct l ->> 'queue' from jsonb_array_elements(lanes) l));
  end if;
  return taken;
end $$;

create or replace function claim_v1(
  worker text,
  queues text[] default null,
  kinds text[] default null,
  count integer default 1,
  claim_id uuid default null,
  lanes jsonb default null
) returns table (
  id uuid, kind text, queue text, payload jsonb, attempt integer, retry_count smallint, max_attempts smallint,
  priority smallint, lease_seconds double precision, run_at timestamptz, claimed_at timestamptz
) language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  token uuid := coalesce(claim_v1.claim_id, gen_random_uuid());
  look jsonb := claim_v1.lanes;
  found_now record;
  lease double precision;  -- of every job, or null: each kind's is in `leases`
  leases jsonb;
  limited record;
  swept integer := 0;
  room integer := claim_v1.count;
  taken uuid[];
  at timestamptz;
begin
  perform check_worker(worker);
  if claim_v1.count is null or claim_v1.count not between 1 and 10000 then
    perform refuse('LH003', 'invalid_argument', format('count %s', claim_v1.count), 'ask for 1 to 10000 jobs');
  end if;
  if look is not null then
    perform check_lanes(look);
  end if;
  limited := holds_exist();
  if look is null and not limited.of_keys then
    select array_agg(l.queue), array_agg(l.kind) into queues, kinds from lanes_ready(queues, kinds) l;
    -- Nothing there, and this is no repetition: nothing is written, and nobody waits for the disk. A first try that is
    -- still under way has not changed what we see; one that has ended is seen by the second statement if not by the first.
    if queues is null and not exists (select from workers w where w.id = worker and w.claim_id = token) then
      return;
    end if;
  end if;
  if claim_v1.claim_id is not null and begin_claim(worker, token) then
    return query
      select j.id, j.kind, j.queue, j.payload, j.attempt, j.retry_count, j.max_attempts, j.priority,
        lease_of(j.kind), j.run_at, j.claimed_at
      from jobs j where j.state = 'running' and j.lease_owner = worker and j.claim_id = token
        and j.lease_expires_at > clock()
      order by -j.priority, j.id;
    return;
  end if;
  if limited.of_keys then
    swept := expire_for_parked();  -- first: it may put jobs back
    if look is null then
      select array_agg(l.queue), array_agg(l.kind) into queues, kinds from lanes_ready(queues, kinds) l;
    end if;
  end if;
  if look is null and cardinality(queues) = 1 then
    lease := lease_of(kinds[1]);
    if not (limited.of_queues or limited.of_lanes or limited.of_keys) then
      -- What a worker that waits finds almost always. The rest would find the same, but a first job should start soon.
      found_now := lock_in_lane(queues[1], kinds[1], '-32768', '00000000-0000-0000-0000-000000000000', room, clock());
      if found_now.exclusive is distinct from true then
        taken := case when found_now.bytes > claim_bytes() then within_bytes(found_now.ids, claim_bytes(), true)
          else coalesce(found_now.ids, '{}') end;
        if cardinality(taken) < cardinality(found_now.ids) then
          perform announce(queues);
        end if;
      end if;
    end if;
  end if;
  if look is null and taken is null then
    look := (select jsonb_agg(l) from unnest(queues, kinds) l(queue, kind));
  end if;
  if limited.of_queues then
    look := lanes_not_paused(look);
  end if;
  if limited.of_lanes or limited.of_keys then
    select a.lanes, a.room into look, room from admit_lanes(look, room, swept = 0, limited.of_keys, null) a;
  end if;
  if taken is null then
    taken := lock_runnable(look, room, clock(), limited.of_keys);
  end if;
  if cardinality(taken) = 0 then
    return;
  end if;
  if lease is null then
    leases := leases_of(array(select distinct l ->> 'kind' from jsonb_array_elements(look) l));
  end if;
  -- The clock is read only now: a lease must not be short by the time that the locks took.
  at := clock();
  if claim_v1.claim_id is not null then
    update workers w set claim_id = token, seen_at = at where w.id = worker;
  end if;
  return query
    with claimed as (
      update jobs j
      set state = 'running', attempt = j.attempt + 1, claim_id = token, claimed_at = at, updated_at = at,
          lease_owner = worker,
          lease_expires_at = at + coalesce(lease, (leases ->> j.kind)::double precision) * interval '1 second',
          is_current = j.exclusive_key is not null, progress = null, progress_note = null
      where j.id = any(taken) and j.state is not distinct from 'queued'
      returning j.id, j.kind, j.queue, j.payload, j.attempt, j.retry_count, j.max_attempts, j.priority, j.run_at)
    select c.id, c.kind, c.queue, c.payload, c.attempt, c.retry_count, c.max_attempts, c.priority,
      coalesce(lease, (leases ->> c.kind)::double precision), c.run_at, at
    from claimed c order by -c.priority, c.id;
end $$;

create or replace function claim(
  worker text, queues text[] default null, kinds text[] default null, count integer default 1,
  claim_id uuid default null, lanes jsonb default null
) returns table (
  id uuid, kind text, queue text, payload jsonb, attempt integer, retry_count smallint, max_attempts smallint,
  priority smallint, lease_seconds double precision, run_at timestamptz, claimed_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from claim_v1(worker, queues, kinds, count, claim_id, lanes) $$;
