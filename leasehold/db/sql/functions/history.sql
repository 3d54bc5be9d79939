-- The optional history of transitions. Off by default, and then it costs nothing: its triggers do not exist.
-- (A disabled trigger with transition tables still makes PostgreSQL collect them, docs/decisions/0017.)
-- Errors: LH001 illegal_transition (the history is append-only), LH003 invalid_argument.

-- Return the present era of the history. Within one, events come in the order of their transactions' xids; a history that
-- was restored into a cluster whose xids are lower goes on in a new one. It is recognised by an event that every session sees and
-- whose transaction has not begun here. (Our own may lie beyond our snapshot.) One probe at the end of the index.
create or replace function history_era() returns bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  -- One statement: the snapshot must be that with which the event is seen.
  return coalesce((
    select e.latest / 281474976710656 + (e.latest % 281474976710656 >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
      and e.latest % 281474976710656 is distinct from pg_current_xact_id_if_assigned()::text::bigint)::integer
    from (select l.xid::text::bigint as latest from events l order by l.xid desc, l.seq desc limit 1) e), 0);
end $$;

-- The value of events.xid for the present transaction: the era in the high 16 bits, the xid in the 48 below.
create or replace function history_stamp() returns xid8 language plpgsql as $$
begin
  return (history_era() * 281474976710656 + pg_current_xact_id()::text::bigint)::text::xid8;
end $$;

-- A row whose transition is none (parked, progress noted) leaves no event; a renewed lease does.
create or replace function note_transitions() returns trigger language plpgsql
set enable_mergejoin = off set enable_nestloop = off as $$
declare
  at timestamptz := clock();
begin
  if tg_op = 'INSERT' then
    insert into events (xid, at, job_id, kind, queue, to_state, attempt, owner, claim_id, lease_expires_at, retry_count,
      max_attempts, reason, run_at, idempotency_key, exclusive_key)
    select (select history_stamp()), at, n.id, n.kind, n.queue, n.state, n.attempt, n.lease_owner, n.claim_id,
      n.lease_expires_at, n.retry_count, n.max_attempts, n.reason, n.run_at, n.idempotency_key, n.exclusive_key
    from jobs_new n;
  else
    insert into events (xid, at, job_id, kind, queue, from_state, to_state, attempt, owner, claim_id, lease_expires_at,
      retry_count, max_attempts, reason, run_at, idempotency_key, exclusive_key)
    select (select history_stamp()), at, n.id, n.kind, n.queue, o.state, n.state, n.attempt,
      coalesce(n.lease_owner, o.lease_owner), n.claim_id, n.lease_expires_at, n.retry_count, n.max_attempts, n.reason,
      n.run_at, n.idempotency_key, n.exclusive_key
    from jobs_new n join jobs_old o on o.id = n.id
    where (o.state, o.attempt, o.lease_owner, o.claim_id, o.lease_expires_at, o.retry_count, o.max_attempts, o.reason,
        o.run_at, o.idempotency_key, o.exclusive_key, o.queue, o.kind)
      is distinct from (n.state, n.attempt, n.lease_owner, n.claim_id, n.lease_expires_at, n.retry_count, n.max_attempts,
        n.reason, n.run_at, n.idempotency_key, n.exclusive_key, n.queue, n.kind);
  end if;
  return null;
end $$;

-- Refuse changes of events. They are deleted only after their job: prune deletes both. The triggers: zz_triggers.sql.
create or replace function refuse_rewriting() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    if not exists (select from events_gone g join jobs j on j.id = g.job_id) then
      return null;
    end if;
  end if;
  perform refuse('LH001', 'illegal_transition', format('%s of events', lower(tg_op)),
    'the history is append-only; prune() removes finished jobs with their events');
  return null;
end $$;

-- Whether transitions are being recorded.
create or replace function history_enabled_v1() returns boolean language sql stable as $$
  select count(*) = 2 from pg_trigger t
  where t.tgrelid = 'jobs'::regclass and t.tgname in ('jobs_note_recorded', 'jobs_note_changed') and t.tgenabled <> 'D'
$$;

-- Record transitions from now on, or no longer; what is recorded stays. Waits briefly for running writes, and later writes wait for
-- it; where that is too long it raises 55P03, and can be called again. Returns whether anything changed. Until the caller's
-- transaction ends no other session can write jobs or renew leases: the server ends a caller that idles in it for a second.
-- Errors: LH003 invalid_argument; 0A000 where triggers are not allowed.
create or replace function history_v1(enabled boolean) returns boolean language plpgsql set lock_timeout = '3s' as $$
begin
  perform require(enabled is not null, 'enabled is null', 'give true or false');
  -- A second caller waits here, and then finds nothing to do.
  perform pg_advisory_xact_lock(hashtextextended(current_schema() || '.history', 0));
  if enabled and history_enabled_v1() or not enabled and not exists (
    select from pg_trigger t
    where t.tgrelid = 'jobs'::regclass and t.tgname in ('jobs_note_recorded', 'jobs_note_changed')) then
    return false;
  end if;
  perform set_config('idle_in_transaction_session_timeout', '1s', true);
  if enabled then
    create or replace trigger jobs_note_recorded after insert on jobs
    referencing new table as jobs_new for each statement execute function note_transitions();
    create or replace trigger jobs_note_changed after update on jobs
    referencing old table as jobs_old new table as jobs_new for each statement execute function note_transitions();
  else
    drop trigger if exists jobs_note_recorded on jobs;
    drop trigger if exists jobs_note_changed on jobs;
  end if;
  return true;
end $$;

-- A page of the history, after the place (xid, seq) of the last event that was read; of one job, if it is given. Events
-- of transactions that are younger than the oldest one under way are held back, so that a reader who goes on from the
-- last row misses nothing that is committed later. `claim_id` is a hash of it: the same for one claim, and no token of an attempt. `xid` is a place, not always a transaction of this cluster: history_era.
-- Error: LH003 invalid_argument.
create or replace function events_v1(
  after_xid bigint default 0, after_seq bigint default 0, max integer default 1000, job uuid default null
) returns table (
  xid bigint, seq bigint, at timestamptz, job_id uuid, kind text, queue text, from_state job_state, to_state job_state,
  attempt integer, owner text, claim_id uuid, lease_expires_at timestamptz, retry_count smallint, max_attempts smallint,
  reason text, run_at timestamptz
) language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  horizon xid8 := (history_era() * 281474976710656 + pg_snapshot_xmin(pg_current_snapshot())::text::bigint)::text::xid8;
begin
  perform require(events_v1.max between 1 and 10000 and after_xid >= 0 and after_seq is not null,
    format('after %s, %s; max %s', after_xid, after_seq, events_v1.max), 'read 1 to 10000 events after the xid and seq of the last one');
  -- Of one job, its own index: the other one would be read from end to end.
  return query
    select e.xid::text::bigint, e.seq, e.at, e.job_id, e.kind, e.queue, e.from_state, e.to_state, e.attempt, e.owner,
      left(encode(sha256(e.claim_id::text::bytea), 'hex'), 32)::uuid, e.lease_expires_at, e.retry_count, e.max_attempts, e.reason, e.run_at
    from (
      (select * from events e
       where events_v1.job is null and (e.xid, e.seq) > (events_v1.after_xid::text::xid8, events_v1.after_seq) and e.xid < horizon
       order by e.xid, e.seq limit events_v1.max)
      union all
      (select * from (select * from events e where e.job_id = events_v1.job offset 0) e
       where (e.xid, e.seq) > (events_v1.after_xid::text::xid8, events_v1.after_seq) and e.xid < horizon)) e
    order by e.xid, e.seq limit events_v1.max;
end $$;
