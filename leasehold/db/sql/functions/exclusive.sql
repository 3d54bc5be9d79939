-- Exclusive keys: at most one job a key runs at a time, and nobody waits in line behind a busy one.
-- `is_current` marks the latest claimed job of a key; a unique index lets only one row carry it, and a CHECK
-- lets no row of a key run without it.
--
-- A job found behind a busy key is *parked*: it stays queued but leaves the index that claims read, so that
-- a backlog of such jobs is walked once and not by every claim. Whenever a job of a key stops running, or
-- leaves the queue without running, the best parked job of that key is put back. So while a key has parked
-- jobs, it also has one that runs or may run.

-- Of the given locked jobs, those that may run now; keys are taken over, siblings parked. 6 statements for
-- any number of jobs.
create or replace function settle_exclusive(candidates uuid[], at timestamptz) returns uuid[] language plpgsql
as $$
declare
  keys text[];      -- the keys in question that nobody else is settling at this moment
  heads uuid[];     -- the best candidate of each
  busy text[];      -- the keys that cannot be taken now
  pinned text[];    -- those of them whose holder certainly runs until we commit
  won uuid[];
begin
  with head as materialized (
    select distinct on (j.exclusive_key) j.exclusive_key, j.id
    from jobs j where j.id = any(candidates) and j.exclusive_key is not null
    order by j.exclusive_key, -j.priority, j.id
  ), few as materialized (
    select * from head limit 100   -- each takes a place in the server's lock table
  )
  select array_agg(f.exclusive_key), array_agg(f.id) into keys, heads
  from few f where pg_try_advisory_xact_lock(exclusive_lock(f.exclusive_key));

  -- From here on each statement sees what the previous holders of these locks have committed.
  perform expire(array(
    select j.id from jobs j
    where j.exclusive_key = any(keys) and j.is_current and j.state = 'running' and j.lease_expires_at <= at));
  with idle as materialized (
    select j.id from jobs j
    where j.exclusive_key = any(keys) and j.is_current and j.state <> 'running' and j.id <> all(heads)
    for update skip locked)
  update jobs j set is_current = false from idle where j.id = idle.id;
  busy := array(
    select j.exclusive_key from jobs j where j.exclusive_key = any(keys) and j.is_current and j.id <> all(heads));
  -- A holder that ends now must either be seen to have ended, or see what is parked behind it: share-locking
  -- it makes its end wait for our commit. One that somebody is just writing is left alone.
  pinned := array(
    select j.exclusive_key from jobs j
    where j.exclusive_key = any(busy) and j.is_current and j.state = 'running' for share skip locked);
  won := array(select h from unnest(keys, heads) t(k, h) where k <> all(busy));
  with waiting as materialized (
    select j.id from jobs j
    where j.exclusive_key = any(array(select k from unnest(keys) k where k <> all(busy)) || pinned)
      and j.state = 'queued' and not j.parked and j.id <> all(won)
    for update skip locked)
  update jobs j set parked = true from waiting where j.id = waiting.id;

  return array(select j.id from jobs j where j.id = any(candidates) and j.exclusive_key is null) || won;
end $$;

-- Put the best parked job of each key back among the runnable ones.
create or replace function unpark(keys text[]) returns void language plpgsql
as $$
declare
  queues text[];
begin
  with best as materialized (
    select b.id from (select distinct unnest(keys) as key) k
    cross join lateral (
      select j.id from jobs j
      where j.exclusive_key = k.key and j.state = 'queued' and j.parked
      order by -j.priority, j.id limit 1 for update skip locked) b
  ), freed as (
    update jobs j set parked = false from best where j.id = best.id returning j.queue)
  select array_agg(distinct f.queue) into queues from freed f;
  perform announce(queues);
end $$;
