-- Take up to `count` runnable jobs under a lease.  queued -> running.
-- Order: priority (higher first), then creation. Only the given queues and kinds (null: any), and no paused queue.
-- Repeating a call with the same claim_id returns the same jobs: the first response may have been lost. Claim ids of version 7
-- that one worker name sends must grow: an id older than the last one takes nothing. Ids of other versions have no order.
-- `lanes` restricts the scan to some queue/kind pairs, each behind the last job that the caller was given:
-- [{"queue": …, "kind": …, "priority": …, "id": …}]. Such a claim does not scan the dead index entries of jobs that were claimed
-- before, which vacuum cannot remove while a session holds an old snapshot. A claim without lanes scans all.
-- Waits at most five seconds for an earlier attempt of the same claim, and at most a quarter of a second for all limits that other
-- transactions have locked; then it takes jobs that are not under those limits. A claim that raises takes nothing: claim_each
-- then claims row by row, without waiting, and sets the faulty job aside.
-- At most 64 MB of payload at once, but always one job; if that leaves jobs behind, their queues are announced.
-- Errors: LH003 invalid_argument, 55P03 lock_not_available.
--
-- claim_lanes.sql finds the jobs. Only where they apply: limits_take.sql (limits, pauses), exclusive.sql and limits_keys.sql
-- (exclusive keys).

create or replace function claim_v1(
  worker text, queues text[] default null, kinds text[] default null, count integer default 1,
  claim_id uuid default null, lanes jsonb default null
) returns setof claimed_job language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set lock_timeout = '5s' as $$
declare
  token constant uuid := coalesce(claim_v1.claim_id, gen_random_uuid());
  bounds claim_bounds;
  ready lane[];
  swept integer := 0;
  room integer := claim_v1.count;
  waited boolean := false;
  taken uuid[];
begin
  perform check_worker(worker, claim_v1.count);
  bounds := bounds_in_force();
  ready := case when lanes is null then lanes_ready(queues, kinds) else lanes_of(lanes) end;
  -- Return without writing, so that the commit does not wait for the disk. Safe for a repeated claim: EXISTS has a newer snapshot
  -- than lanes_ready had, and finds the note of a first try whose commit had emptied the lanes.
  if cardinality(ready) = 0 and not bounds.key_limits
     and not exists (select from workers w where w.id = worker and w.claim_id = token) then
    return;
  end if;
  if claim_v1.claim_id is not null and begin_claim(worker, token) then
    return query select * from taken_by(worker, token);
    return;
  end if;
  if bounds.key_limits then
    swept := expire_for_parked();
    if swept > 0 and lanes is null then
      ready := lanes_ready(queues, kinds);  -- the sweep may have put jobs back
    end if;
  end if;
  if bounds.lane_limits or bounds.key_limits or bounds.pauses then
    select a.lanes, a.room, a.waited into ready, room, waited from admit_lanes(ready, room, swept = 0, bounds, null) a;
  end if;
  taken := lock_runnable(ready, room, bounds.key_limits, waited);
  if cardinality(taken) > 0 then
    if claim_v1.claim_id is not null then
      perform note_claim(worker, token);
    end if;
    return query select * from take(taken, kinds_of(ready), worker, token);
  end if;
end $$;

-- The steps that claim_each and claim_job share with it.

create or replace function check_worker(worker text, count integer default 1) returns void language plpgsql as $$
begin
  if worker is null or worker = '' or octet_length(worker) > max_name_bytes() then
    perform refuse('LH003', 'invalid_argument', format('worker %L', left(worker, 300)),
      'a worker has a name of 1 to ' || max_name_bytes() || ' bytes');
  end if;
  if count is null or count not between 1 and 10000 then
    perform refuse('LH003', 'invalid_argument', format('count %s', count), 'ask for 1 to 10000 jobs');
  end if;
end $$;

-- The first number of the advisory lock that claims share and set_limit takes alone for a new limit. The table's own number keeps
-- schemas apart.
create or replace function limits_lock() returns integer language sql immutable parallel safe
return 'limits'::regclass::oid::bigint::bit(32)::integer;

-- Return which limits and pauses there are; every claim begins with this. It takes the lock shared; set_limit takes it alone, and so
-- waits for the claims that run. A claim gives up after 80 ms, and goes on without the lock: a transaction that sets a limit
-- and stays open delays no claim, and the limit counts those that it did not wait for as having run before.
create or replace function bounds_in_force() returns claim_bounds language plpgsql as $$
begin
  for wait in 1..16 loop
    exit when pg_try_advisory_xact_lock_shared(limits_lock(), 0);
    perform pg_sleep(0.005);
  end loop;
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable')
     -- Not by reading rows: the snapshot may be older than the limit or the pause.
     and pg_relation_size('limits') + pg_relation_size('queues') > 0 then
    perform refuse('LH003', 'invalid_argument', format('transaction isolation level %s', current_setting('transaction_isolation')),
      'where there are limits or pauses, claim under READ COMMITTED: an old snapshot cannot know what holds now');
  end if;
  -- Almost always both are empty, and one statement says so.
  if not (exists (select from limits) or exists (select from queues)) then
    return row(false, false, false)::claim_bounds;
  end if;
  return (select row(exists (select from limits l where l.scope in ('global', 'queue', 'kind')),
    exists (select from limits l where l.scope = 'key'), exists (select from queues))::claim_bounds);
end $$;

-- Return whether this claim was answered before. A claim that the network delayed until its worker had sent a later one counts as
-- answered: ids of version 7 are in the order in which they were sent. It takes nothing.
-- Claims of one worker wait for each other. Not for the worker's row: a session that sleeps may keep it locked.
create or replace function begin_claim(worker text, claim_id uuid) returns boolean language plpgsql as $$
declare
  last_claim uuid;
begin
  perform pg_advisory_xact_lock('workers'::regclass::oid::bigint::bit(32)::integer, hashtext(worker));
  select w.claim_id into last_claim from workers w where w.id = worker;
  if not found then
    insert into workers (id, started_at, seen_at) values (worker, clock(), clock()) on conflict do nothing;
  end if;
  return coalesce(last_claim = claim_id
    or last_claim > claim_id and substr(last_claim::text, 15, 1) = '7' and substr(claim_id::text, 15, 1) = '7', false);
end $$;

-- Note that this claim was answered, unless the worker's row stays locked for a quarter of a second. Without the note a repetition takes
-- other jobs, and those of an answer that was lost are left to their leases.
create or replace function note_claim(worker text, token uuid) returns void language plpgsql as $$
begin
  update workers w set claim_id = token, seen_at = clock()
  from (select f.id from workers f where f.id = worker for no key update skip locked) f where w.id = f.id;
  if not found then
    perform note_claim_waiting(worker, token);
  end if;
end $$;

-- Apart: a setting and a subtransaction cost every claim.
create or replace function note_claim_waiting(worker text, token uuid) returns void language plpgsql set lock_timeout = '250ms' as $$
begin
  update workers w set claim_id = token, seen_at = clock() where w.id = worker;
exception when lock_not_available then
  null;
end $$;

-- Return how many seconds a lease of a kind lasts. The only source of lease durations, for jobs and for schedules.
create or replace function lease_of(kind text) returns double precision language plpgsql stable as $$
begin
  return coalesce((select k.lease_seconds from kinds k where k.kind = lease_of.kind), usual_lease());
end $$;

-- Start an attempt of each of these jobs.  queued -> running.  The caller has locked their rows; `kinds` has at least all their kinds.
-- The clock is read here: a lease must not be shortened by the time that the locks took.
create or replace function take(ids uuid[], kinds text[], worker text, token uuid) returns setof claimed_job language plpgsql
as $$
declare
  at constant timestamptz := clock();
  lease double precision;  -- of all these kinds, or null
  leases jsonb;
begin
  if cardinality(kinds) = 1 then
    lease := lease_of(kinds[1]);
  else
    leases := (select jsonb_object_agg(k, lease_of(k)) from unnest(kinds) k);
  end if;
  return query
    with taken as (
      update jobs j
      set state = 'running', attempt = j.attempt + 1, claim_id = token, claimed_at = at, updated_at = at,
          lease_owner = worker, lease_expires_at = at + coalesce(lease, (leases ->> j.kind)::double precision) * interval '1 second',
          parked = false, is_current = j.exclusive_key is not null, progress = null, progress_note = null
      where j.id = any(ids) and j.state is not distinct from 'queued'
      returning j.id, j.kind, j.queue, j.payload, j.attempt, j.retry_count, j.max_attempts, j.priority,
        coalesce(lease, (leases ->> j.kind)::double precision), j.run_at, j.claimed_at)
    select * from taken t order by -t.priority, t.id;
end $$;

-- The jobs that a claim took before and whose leases are alive.
create or replace function taken_by(worker text, token uuid) returns setof claimed_job language plpgsql as $$
begin
  return query
    select j.id, j.kind, j.queue, j.payload, j.attempt, j.retry_count, j.max_attempts, j.priority, lease_of(j.kind), j.run_at,
      j.claimed_at
    from jobs j
    where j.state = 'running' and j.lease_owner = worker and j.claim_id = token and j.lease_expires_at > clock()
    order by -j.priority, j.id;
end $$;
