-- The optional history of transitions. Off by default, and then it costs nothing: its triggers are not there at all.
-- (A disabled trigger with transition tables still makes PostgreSQL collect them, docs/decisions/0017.)
-- Errors: LH001 illegal_transition (the history is append-only), LH003 invalid_argument.

-- In which era of the history we are. Within one, events come in the order of their transactions' xids; a history that
-- was restored into a cluster whose xids are lower goes on in a new one. It is known by an event that everybody sees and
-- whose transaction has not begun here. (Our own may lie beyond our snapshot.) One probe at the end of the index.
create or replace function history_era() returns bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
declare
  era bigint;
begin
  -- One statement: the snapshot must be that with which the event is seen.
  select e.latest / 281474976710656 + (e.latest % 281474976710656 >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    and e.latest % 281474976710656 is distinct from pg_current_xact_id_if_assigned()::text::bigint)::integer
  into era
  from (select l.xid::text::bigint as latest from events l order by l.xid desc, l.seq desc limit 1) e;
  return coalesce(era, 0);
end $$;

-- What stands in events.xid for the present transaction: the era in the high 16 bits, the xid in the 48 below.
create or replace function history_stamp() returns xid8 language plpgsql
as $$
begin
  return (history_era() * 281474976710656 + pg_current_xact_id()::text::bigint)::text::xid8;
end $$;

create or replace function note_recorded() returns trigger language plpgsql
security definer set search_path from current
as $$
declare
  at timestamptz := clock();
begin
  insert into events (xid, at, job_id, kind, queue, to_state, attempt, owner, claim_id, lease_expires_at, retry_count,
    max_attempts, reason, run_at, idempotency_key, exclusive_key)
  select (select history_stamp()), at, n.id, n.kind, n.queue, n.state, n.attempt, n.lease_owner, n.claim_id,
    n.lease_expires_at, n.retry_count, n.max_attempts, n.reason, n.run_at, n.idempotency_key, n.exclusive_key
  from jobs_new n;
  return null;
end $$;

-- A row whose transition is none (parked, progress noted) leaves no event; a renewed lease does.
create or replace function note_changed() returns trigger language plpgsql
security definer set search_path from current
set enable_mergejoin = off set enable_nestloop = off
as $$
declare
  at timestamptz := clock();
begin
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
  return null;
end $$;

-- What happened has happened. Events go only after their job has gone: prune removes both. The triggers: zz_triggers.sql.
create or replace function refuse_rewriting() returns trigger language plpgsql
security definer set search_path from current
as $$
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
create or replace function history_enabled_v1() returns boolean language sql stable
security definer set search_path from current
as $$
  select count(*) = 2 from pg_trigger t
  where t.tgrelid = 'jobs'::regclass and t.tgname in ('jobs_note_recorded', 'jobs_note_changed') and t.tgenabled <> 'D'
$$;

create or replace function history_enabled() returns boolean language sql stable
security definer set search_path from current
as $$ select history_enabled_v1() $$;

-- Record transitions from now on, or no longer; what is recorded stays. Waits briefly for writes under way, and everybody
-- who comes later waits with it; where that is too long it gives up with 55P03, and can be called again. Gives whether
-- anything changed. Error: 0A000 where triggers are not allowed.
create or replace function history_v1(enabled boolean) returns boolean language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
begin
  if enabled is null then
    perform refuse('LH003', 'invalid_argument', 'enabled is null', 'give true or false');
  end if;
  -- Two callers take their turns; the second finds it done.
  perform pg_advisory_xact_lock(hashtextextended(current_schema() || '.history', 0));
  if enabled and history_enabled_v1() or not enabled and not exists (
    select from pg_trigger t
    where t.tgrelid = 'jobs'::regclass and t.tgname in ('jobs_note_recorded', 'jobs_note_changed'))
  then
    return false;
  end if;
  if enabled then
    create or replace trigger jobs_note_recorded after insert on jobs
    referencing new table as jobs_new for each statement execute function note_recorded();
    create or replace trigger jobs_note_changed after update on jobs
    referencing old table as jobs_old new table as jobs_new for each statement execute function note_changed();
  else
    drop trigger if exists jobs_note_recorded on jobs;
    drop trigger if exists jobs_note_changed on jobs;
  end if;
  return true;
end $$;

create or replace function history(enabled boolean) returns boolean language sql
security definer set search_path from current
as $$ select history_v1(enabled) $$;

-- A page of the history, after the place (xid, seq) of the last event that was read; of one job, if it is given. Events
-- of transactions that are younger than the oldest one under way are held back, so that a reader who goes on from the
-- last row misses nothing that is committed later. `xid` is a place, not always a transaction of this cluster: history_era.
-- Error: LH003 invalid_argument.
create or replace function events_v1(
  after_xid bigint default 0, after_seq bigint default 0, max integer default 1000, job uuid default null
) returns table (
  xid bigint, seq bigint, at timestamptz, job_id uuid, kind text, queue text, from_state job_state, to_state job_state,
  attempt integer, owner text, claim_id uuid, lease_expires_at timestamptz, retry_count smallint, max_attempts smallint,
  reason text, run_at timestamptz
) language plpgsql stable
security definer set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  horizon xid8 := (history_era() * 281474976710656 + pg_snapshot_xmin(pg_current_snapshot())::text::bigint)::text::xid8;
begin
  if events_v1.max is null or events_v1.max not between 1 and 10000 or after_xid is null or after_xid < 0 or after_seq is null then
    perform refuse('LH003', 'invalid_argument', format('after %s, %s; max %s', after_xid, after_seq, events_v1.max),
      'read 1 to 10000 events after the xid and seq of the last one');
  end if;
  if events_v1.job is not null then
    -- One job has few. Its own index finds them; the other one would be walked from end to end.
    return query
      select e.xid::text::bigint, e.seq, e.at, e.job_id, e.kind, e.queue, e.from_state, e.to_state, e.attempt, e.owner,
        e.claim_id, e.lease_expires_at, e.retry_count, e.max_attempts, e.reason, e.run_at
      from (select * from events e where e.job_id = events_v1.job offset 0) e
      where (e.xid, e.seq) > (events_v1.after_xid::text::xid8, events_v1.after_seq) and e.xid < horizon
      order by e.xid, e.seq limit events_v1.max;
    return;
  end if;
  return query
    select e.xid::text::bigint, e.seq, e.at, e.job_id, e.kind, e.queue, e.from_state, e.to_state, e.attempt, e.owner,
      e.claim_id, e.lease_expires_at, e.retry_count, e.max_attempts, e.reason, e.run_at
    from events e
    where (e.xid, e.seq) > (events_v1.after_xid::text::xid8, events_v1.after_seq) and e.xid < horizon
    order by e.xid, e.seq limit events_v1.max;
end $$;

create or replace function events(
  after_xid bigint default 0, after_seq bigint default 0, max integer default 1000, job uuid default null
) returns table (
  xid bigint, seq bigint, at timestamptz, job_id uuid, kind text, queue text, from_state job_state, to_state job_state,
  attempt integer, owner text, claim_id uuid, lease_expires_at timestamptz, retry_count smallint, max_attempts smallint,
  reason text, run_at timestamptz
) language sql stable
security definer set search_path from current
as $$ select * from events_v1(after_xid, after_seq, max, job) $$;
