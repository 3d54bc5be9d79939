-- Take a schedule that is due, to fire it. One wins; everybody else has an ordinary answer, at once:
-- Errors: LH002 job_unknown, LH005 job_locked, LH006 job_not_due, LH007 job_disabled, LH003 invalid_argument.
--
-- The lock comes first and the row is read after it, by a statement of its own: what is validated is what stands there
-- now. A state that was read before the lock may be one that the holder before us has changed. The advisory lock ends
-- with the transaction; locked_until outlives it, and lets the next one in when its holder never fired.

-- Serialises the claims of one schedule. A collision of the hash only means job_locked, and another try.
create or replace function schedule_lock(key text) returns bigint language sql stable
return hashtextextended(current_schema() || '.schedule.' || key, 0);

create or replace function refuse_schedule(key text) returns void language plpgsql
as $$
begin
  perform refuse('LH002', 'job_unknown', format('no schedule has the key %L', key), 'schedule_list() names them');
end $$;

-- `claim_id` is the fencing token for schedule_fire, chosen by the caller or made here; with the same one again, the
-- same answer. `judged_at` is when the schedule was first claimed since it was last fired: which runs are missed is
-- judged as of then, so that whoever takes over from a scheduler that died does what that one would have done.
create or replace function schedule_claim_v1(key text, worker text, claim_id uuid default null)
returns table (
  token uuid, kind text, every interval, cron text, time_zone text, starts_at timestamptz, ends_at timestamptz,
  missed text, grace interval, max_missed integer, due_after timestamptz, next_run_at timestamptz,
  judged_at timestamptz, locked_until timestamptz
) language plpgsql
security definer set search_path from current
as $$
#variable_conflict use_column
declare
  wanted constant text := schedule_claim_v1.key;
  new_token uuid := coalesce(schedule_claim_v1.claim_id, gen_random_uuid());
  at timestamptz;
  expiry timestamptz;
  s schedules;
begin
  perform check_worker(worker);
  if not pg_try_advisory_xact_lock(schedule_lock(wanted)) then
    perform refuse('LH005', 'job_locked', format('somebody is claiming schedule %L', wanted));
  end if;
  select * into s from schedules t where t.key = wanted for no key update skip locked;
  if not found then
    if exists (select from schedules t where t.key = wanted) then
      perform refuse('LH005', 'job_locked', format('somebody is writing schedule %L', wanted));
    end if;
    perform refuse_schedule(wanted);
  end if;
  at := clock();
  if s.claim_id is distinct from new_token or s.locked_by is distinct from worker then
    if not s.enabled then
      perform refuse('LH007', 'job_disabled', format('schedule %L is disabled', wanted), 'schedule_enable() enables it');
    end if;
    if s.locked_until > at then
      perform refuse('LH005', 'job_locked', format('schedule %L is locked until %s', wanted, s.locked_until));
    end if;
    if s.over or s.next_run_at > at then
      perform refuse('LH006', 'job_not_due', format('schedule %L is due %s', wanted, coalesce(s.next_run_at::text, 'never')));
    end if;
    expiry := at + make_interval(secs => lease_seconds_v1(s.kind));
    update schedules t
    set locked_by = worker, locked_until = expiry, claim_id = new_token, claimed_at = coalesce(t.claimed_at, at)
    where t.key = wanted
    returning * into s;
  end if;
  return query select s.claim_id, s.kind, s.every, s.cron, s.time_zone, s.starts_at, s.ends_at, s.missed, s.grace,
    s.max_missed, s.due_after, s.next_run_at, s.claimed_at, s.locked_until;
end $$;

create or replace function schedule_claim(key text, worker text, claim_id uuid default null)
returns table (
  token uuid, kind text, every interval, cron text, time_zone text, starts_at timestamptz, ends_at timestamptz,
  missed text, grace interval, max_missed integer, due_after timestamptz, next_run_at timestamptz,
  judged_at timestamptz, locked_until timestamptz
) language sql
security definer set search_path from current
as $$ select * from schedule_claim_v1(key, worker, claim_id) $$;
