-- Exclusive keys: at most one job a key runs at a time, and nobody waits in line behind a busy one.
-- `is_current` marks the latest claimed job of a key; a unique index lets only one row carry it, and a CHECK
-- lets no row of a key run without it.
--
-- A job found behind a busy key is *parked*: it stays queued but leaves the index that claims read, so that
-- a backlog of such jobs is walked once and not by every claim. Whenever a job of a key stops running, or
-- leaves the queue without running, the best parked job of that key in each lane is put back. So while a key
-- has parked jobs, it also has one that runs or may run.
--
-- Parking behind a running job and the end of that job must not miss each other, and the running job's row stays free
-- for its renewal meanwhile. So neither locks it for the other: a claim parks only while it holds the lock of the key
-- (exclusive_lock), and a session that ends a running job takes that lock after its update and before it looks who is parked.
-- Either the claim comes first and its parking is seen, or the end does and the claim does not get the lock.

-- Of the given locked jobs, those that may run now; keys are taken over, siblings parked. 7 statements for
-- any number of jobs. `taken` are the jobs that the same claim took before and has not yet marked as running:
-- their keys are not free, though no row says so.
create or replace function settle_exclusive(candidates uuid[], at timestamptz, taken uuid[]) returns uuid[]
language plpgsql
as $$
declare
  keys text[];      -- the keys in question that nobody else is settling at this moment
  heads uuid[];     -- the best candidate of each
  busy text[];      -- the keys that cannot be taken now
  held text[];      -- those of them whose holder runs: its end waits for our commit, since we have the key's lock
  won uuid[];
begin
  with head as materialized (
    select distinct on (j.exclusive_key) j.exclusive_key, j.id  -- at most 100: before_too_many_keys
    from jobs j where j.id = any(candidates) and j.exclusive_key is not null
      and j.exclusive_key <> all(array(
        select t.exclusive_key from jobs t where t.id = any(taken) and t.exclusive_key is not null))
    order by j.exclusive_key, -j.priority, j.id
  )
  select array_agg(h.exclusive_key), array_agg(h.id) into keys, heads
  from head h where pg_try_advisory_xact_lock(exclusive_lock(h.exclusive_key));

  -- From here on each statement sees what the previous holders of these locks have committed.
  perform take_back(array(
    select j.id from jobs j
    where j.exclusive_key = any(keys) and j.is_current and j.state is not distinct from 'running' and j.lease_expires_at <= at));
  with idle as materialized (
    select j.id from jobs j
    where j.exclusive_key = any(keys) and j.is_current and j.state <> 'running' and j.id <> all(heads)
    for update skip locked)
  update jobs j set is_current = false from idle where j.id = idle.id;
  busy := array(
    select j.exclusive_key from jobs j where j.exclusive_key = any(keys) and j.is_current and j.id <> all(heads));
  held := array(
    select j.exclusive_key from jobs j
    where j.exclusive_key = any(busy) and j.is_current and j.state is not distinct from 'running');
  -- The job that had the key last has ended, and its row is locked. No end will unpark a job that we hold: do it here.
  update jobs j set parked = false
  where j.id = any(heads) and j.parked and j.exclusive_key = any(busy) and j.exclusive_key <> all(held);
  won := array(select h from unnest(keys, heads) t(k, h) where k <> all(busy));
  with waiting as materialized (
    select j.id from jobs j
    where j.exclusive_key = any(array(select k from unnest(keys) k where k <> all(busy)) || held)
      and j.state is not distinct from 'queued' and j.parked is distinct from true and j.id <> all(won)
    limit 1000  -- a long backlog of a key is parked by several claims
    for update skip locked)
  update jobs j set parked = true, parked_under = null from waiting where j.id = waiting.id;

  return array(select j.id from jobs j where j.id = any(candidates) and j.exclusive_key is null) || won;
end $$;

-- The end of a job waits for a claim that has the lock of its key: a claim's time from its locks to its commit. With a
-- claim that does not end (an idle transaction) the key is noted for later instead.
create or replace function wait_for_keys(keys text[]) returns void language plpgsql
set lock_timeout = '100ms'
as $$
begin
  perform pg_advisory_xact_lock(exclusive_lock(k)) from unnest(keys) k;
end $$;

-- Jobs of these keys have stopped running: take the locks of the keys, as many as are to be had, and put parked jobs
-- back. A caller that holds limits, or must not wait for another reason, is not `patient`. No more than 500 keys at once:
-- each takes a place in the server's lock table until the commit, and there are some 8,000 with stock settings. Keys that are left are noted, and a patient caller wakes
-- the upkeep of the workers for them; upkeep itself, which is not patient, knows when to look again.
create or replace function unpark_ended(keys text[], patient boolean) returns void language plpgsql
as $$
declare
  open_keys text[];
  later text[];   -- in use by a claim at this moment
  beyond text[];  -- more than are locked at once
begin
  select array_agg(k.key) filter (where k.locked), array_agg(k.key) filter (where not k.locked),
    array_agg(k.key) filter (where k.locked is null)
  into open_keys, later, beyond
  from (select t.key, case when t.nth <= 500 then pg_try_advisory_xact_lock(exclusive_lock(t.key)) end as locked
        from (select d.key, row_number() over (order by d.key) as nth
              from (select distinct unnest(keys) as key) d order by 1) t) k;
  if later is not null and patient then
    -- A subtransaction only here, where a claim has one of the keys at this moment.
    begin
      perform wait_for_keys(later);
      open_keys := open_keys || later;
      later := null;
    exception when lock_not_available then
      null;
    end;
  end if;
  if open_keys is not null then
    perform unpark(open_keys);
  end if;
  later := later || beyond;
  if later is not null then
    insert into unpark_later (exclusive_key) select unnest(later);
    if patient then
      perform announce(array['@due']);
    end if;
  end if;
end $$;

-- Put the best parked job of each key back among the runnable ones: of each queue and kind, because nobody may be
-- there to claim the best of all.
create or replace function unpark(keys text[]) returns void language plpgsql
as $$
declare
  queues text[];
begin
  with recursive lane(key, queue, kind) as (
    select k.key, f.queue, f.kind from (select distinct unnest(keys) as key) k
    cross join lateral (
      select j.queue, j.kind from jobs j
      where j.exclusive_key = k.key and j.state = 'queued' and j.parked
      order by j.queue, j.kind limit 1) f
    union all
    select l.key, n.queue, n.kind from lane l
    cross join lateral (
      select j.queue, j.kind from jobs j
      where j.exclusive_key = l.key and j.state = 'queued' and j.parked and (j.queue, j.kind) > (l.queue, l.kind)
      order by j.queue, j.kind limit 1) n
  ), best as materialized (
    select b.id from lane l
    cross join lateral (
      select j.id from jobs j
      where j.exclusive_key = l.key and j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and j.parked
      order by -j.priority, j.id limit 1 for update skip locked) b
  ), freed as (
    update jobs j set parked = false from best where j.id = best.id returning j.queue)
  select array_agg(distinct f.queue) into queues from freed f;
  perform announce(queues);
  perform unpark_limited(keys);
  -- A parked job that another session is writing cannot be put back, and that session may roll back and do nothing for
  -- it. And an old snapshot does not see what was parked after it.
  insert into unpark_later (exclusive_key)
  select k.key from (select distinct unnest(keys) as key) k
  where current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    or exists (select from jobs j where j.exclusive_key = k.key and j.state = 'queued' and j.parked
               and j.parked_under is null)
    and not exists (select from jobs j where j.exclusive_key = k.key and j.is_current
                    and j.state is not distinct from 'running')
    and not exists (select from jobs j where j.exclusive_key = k.key and j.state = 'queued'
                    and j.parked is distinct from true);
end $$;

-- Try again for the keys that had to be left. promote does it.
create or replace function unpark_again() returns void language plpgsql
as $$
declare
  keys text[];
begin
  with due as materialized (
    select u.ctid from unpark_later u
    where not exists (select from limits l where limit_mark(l.scope, l.name) = u.exclusive_key)  -- look_again
    limit 500 for update of u skip locked),
  taken as (delete from unpark_later u using due where u.ctid = due.ctid returning u.exclusive_key)
  select array_agg(t.exclusive_key) into keys from taken t;
  if keys is not null then
    perform unpark_ended(keys, false);
  end if;
end $$;

-- Of jobs that were locked up to a place in claim order: those before the one that brings in the 101st exclusive key, and
-- the place of the last of them. As many keys are settled at once; the rest is looked at again.
create or replace function before_too_many_keys(
  locked uuid[], place_rank smallint, place_id uuid, out ids uuid[], out exclusive boolean, out last_rank smallint, out last_id uuid
) language plpgsql
as $$
#variable_conflict use_column
declare
  total integer := cardinality(locked);
begin
  exclusive := true;
  select array_agg(t.id order by t.rank, t.id), max(t.rank), (array_agg(t.id order by t.rank desc, t.id desc))[1]
  into ids, last_rank, last_id
  from (
    select f.id, f.rank, sum(f.first) over (order by f.rank, f.id) as keys
    from (
      select j.id, -j.priority as rank, (j.exclusive_key is not null and row_number() over (
        partition by j.exclusive_key order by -j.priority, j.id) = 1)::integer as first
      from jobs j where j.id = any(locked)) f) t
  where t.keys <= 100;
  if cardinality(ids) = total then
    last_rank := place_rank;
    last_id := place_id;
  end if;
end $$;
