-- Exclusive keys: at most one job of a key runs at a time, and jobs of other keys do not wait behind a busy one.
-- `is_current` marks the running job of a key; a unique index lets only one row carry it, and a CHECK lets no row of a key run
-- without it. What ends a job takes the mark away: a claim need not write the row of an ended job, which a session may keep locked.
--
-- A job found behind a busy key is *parked*: it stays queued but leaves the index that claims read, so that a backlog of such jobs is
-- read once and not by every claim. Whenever a job of a key stops running, or one that could run next leaves the queue, the best parked
-- job of that key in each lane is put back. So while a key has parked jobs, it also has one that runs or may run.
--
-- A claim that parks behind a running job and the end of that job must not miss each other, and the row of the running job stays
-- unlocked for its renewal meanwhile. So neither locks it for the other: a claim parks only while it holds the lock of the key
-- (exclusive_lock), and a session that ends a running job takes that lock after its update and before it reads the parked jobs.
-- Either the claim comes first and the end sees what it parked, or the end comes first and the claim does not get the lock.

-- Serialises the claims of one exclusive key. A collision of the hash only makes a claim try other jobs.
create or replace function exclusive_lock(exclusive_key text) returns bigint language sql stable
return hashtextextended(current_schema() || '.exclusive.' || exclusive_key, 0);

-- Return those of the locked candidates that may run now, make them current, and park their siblings. 7 statements for any number of
-- jobs. `taken` are the jobs that the same claim took before and has not yet marked as running: their keys are not free, though no row
-- says so.
create or replace function settle_exclusive(candidates uuid[], at timestamptz, taken uuid[]) returns uuid[] language plpgsql as $$
declare
  keys text[];      -- the keys of the candidates that no other session is settling
  heads uuid[];     -- the best candidate of each
  busy text[];      -- the keys that cannot be taken now
  held text[];      -- those of them whose holder runs: its end waits for this commit, because of the key's lock
  won uuid[];
begin
  with head as materialized (
    select distinct on (j.exclusive_key) j.exclusive_key, j.id  -- at most 100: fitting
    from jobs j where j.id = any(candidates) and j.exclusive_key is not null
      and j.exclusive_key <> all(array(select t.exclusive_key from jobs t where t.id = any(taken) and t.exclusive_key is not null))
    order by j.exclusive_key, -j.priority, j.id
  )
  select array_agg(h.exclusive_key), array_agg(h.id) into keys, heads
  from head h where pg_try_advisory_xact_lock(exclusive_lock(h.exclusive_key));

  -- From here on each statement sees what the previous holders of these locks have committed.
  perform isolated('expire', array(
    select j.id from jobs j
    where j.exclusive_key = any(keys) and j.is_current and j.state is not distinct from 'running' and j.lease_expires_at <= at));
  -- Only functions of an earlier release leave a mark behind.
  with idle as materialized (
    select j.id from jobs j
    where j.exclusive_key = any(keys) and j.is_current and j.state <> 'running' and j.id <> all(heads)
    for no key update skip locked)
  update jobs j set is_current = false from idle where j.id = idle.id;
  busy := array(select j.exclusive_key from jobs j where j.exclusive_key = any(keys) and j.is_current and j.id <> all(heads));
  held := array(
    select j.exclusive_key from jobs j
    where j.exclusive_key = any(busy) and j.is_current and j.state is not distinct from 'running');
  -- The job that had the key last has ended, and its row is locked. No end of a job will unpark those that this claim has locked:
  -- unpark them here.
  update jobs j set parked = false
  where j.id = any(heads) and j.parked and j.exclusive_key = any(busy) and j.exclusive_key <> all(held);
  won := array(select h from unnest(keys, heads) t(k, h) where k <> all(busy));
  with waiting as materialized (
    select j.id from jobs j
    where j.exclusive_key = any(array(select k from unnest(keys) k where k <> all(busy)) || held)
      and j.state is not distinct from 'queued' and j.parked is distinct from true and j.id <> all(won)
    limit 1000  -- a long backlog of a key is parked by several claims
    for no key update skip locked)
  update jobs j set parked = true, parked_under = null from waiting where j.id = waiting.id;

  return array(select j.id from jobs j where j.id = any(candidates) and j.exclusive_key is null) || won;
end $$;

-- The end of a job waits for a claim that holds the lock of its key: from the claim's locks to its commit. If the claim does not end
-- (an idle transaction), the key is noted in unpark_later instead.
create or replace function wait_for_keys(keys text[]) returns void language plpgsql set lock_timeout = '100ms' as $$
begin
  perform pg_advisory_xact_lock(exclusive_lock(k)) from unnest(keys) k;
end $$;

-- Jobs of these keys (null: none) have stopped running: lock the keys and put parked jobs back. `patient`: wait for keys that a claim
-- holds; false if the caller holds limits or must not wait. At most 500 keys at once: each takes a place in the
-- server's lock table until the commit, and that has some 8,000 with stock settings. The other keys are noted in unpark_later, and a
-- patient caller wakes the upkeep of the workers for them; upkeep itself, which is not patient, knows when to check again.
-- `brief`: the transaction ends soon. One that may stay open (complete_in, cancel) puts back jobs of these keys only, which cannot run
-- before it ends; jobs of other keys under the same limits would stay locked, and are left to upkeep.
create or replace function unpark_ended(keys text[], patient boolean, brief boolean default true) returns void language plpgsql as $$
declare
  open_keys text[];
  later text[];   -- in use by a claim at this moment
  beyond text[];  -- more than are locked at once
begin
  if keys is null then
    return;
  end if;
  select array_agg(k.key) filter (where k.locked), array_agg(k.key) filter (where not k.locked),
    array_agg(k.key) filter (where k.locked is null)
  into open_keys, later, beyond
  from (select t.key, case when t.nth <= 500 then pg_try_advisory_xact_lock(exclusive_lock(t.key)) end as locked
        from (select d.key, row_number() over (order by d.key) as nth from (select distinct unnest(keys) as key) d order by 1) t) k;
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
    perform unpark(open_keys, brief);
  end if;
  later := later || beyond;
  if later is not null then
    perform unpark_at_commit(later, wake => patient);
  end if;
end $$;

-- Note keys for upkeep, which puts their parked jobs back after the commit, and wake it.
create or replace function unpark_at_commit(keys text[], wake boolean default true) returns void language plpgsql as $$
begin
  insert into unpark_later (exclusive_key) select unnest(keys);
  perform announce(array['@due']) where wake;
end $$;

-- Put the best parked job of each key back among the runnable ones: of each queue and kind, because there may be no worker for the
-- best of all.
create or replace function unpark(keys text[], brief boolean) returns void language plpgsql as $$
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
      order by -j.priority, j.id limit 1 for no key update skip locked) b
  ), freed as (
    update jobs j set parked = false from best where j.id = best.id returning j.queue)
  select array_agg(distinct f.queue) into queues from freed f;
  perform announce(queues);
  if brief then
    -- At least one is put back for each limit of the keys: concurrent ends do not see each other, and each of them counts the
    -- other's job as running.
    perform unpark_under(l.name, greatest(1, l.max_running - running_under(l)))
    from limits l
    where l.scope = 'key' and l.max_running > 0 and l.name = any(array(select k.name from key_limits(keys) k));
  elsif exists (select from key_limits(keys)) then
    perform unpark_at_commit(keys);
  end if;
  -- A parked job that another session is writing cannot be put back, and that session may roll back and do nothing for
  -- it. And an old snapshot does not see what was parked after it.
  insert into unpark_later (exclusive_key)
  select k.key from (select distinct unnest(keys) as key) k
  where current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    or exists (select from jobs j where j.exclusive_key = k.key and j.state = 'queued' and j.parked and j.parked_under is null)
    and not exists (select from jobs j where j.exclusive_key = k.key and j.is_current and j.state is not distinct from 'running')
    and not exists (select from jobs j where j.exclusive_key = k.key and j.state = 'queued' and j.parked is distinct from true);
end $$;

-- Put back another job of each key whose next job is locked by a session that does not end (an open cancel of it, for update). Upkeep
-- calls it once a minute, for the first 5000 keys that have parked jobs.
create or replace function unpark_behind_locked() returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  key text := '';
  stuck text[] := '{}';
begin
  begin  -- a subtransaction: a job that turns out to be free is locked for a moment only
    for n in 1..5000 loop
      key := (select min(j.exclusive_key) from jobs j where j.exclusive_key > key and j.state = 'queued' and j.parked);
      exit when key is null;
      continue when exists (select from jobs j where j.exclusive_key = key and j.is_current and j.state is not distinct from 'running')
        or coalesce((select bool_or(j.xmax = '0') from (  -- no session has ever locked this version of the row; null: all are parked
          select j.xmax from jobs j where j.exclusive_key = key and j.state is not distinct from 'queued'
            and j.parked is distinct from true limit 10) j), true);
      perform from jobs j where j.exclusive_key = key and j.state is not distinct from 'queued' and j.parked is distinct from true
      limit 1 for no key update skip locked;
      stuck := stuck || case when not found then array[key] end;
    end loop;
    raise lock_not_available;
  exception when lock_not_available then
    null;
  end;
  perform unpark_ended(stuck, false);
end $$;

-- Try again for the keys that were noted in unpark_later. promote calls it.
create or replace function unpark_again() returns void language plpgsql as $$
declare
  keys text[];
begin
  with due as materialized (select u.ctid from unpark_later u limit 500 for update skip locked),
  taken as (delete from unpark_later u using due where u.ctid = due.ctid returning u.exclusive_key)
  select array_agg(t.exclusive_key) into keys from taken t;
  perform unpark_ended(keys, false);
end $$;
