-- Claim a schedule that is due, to fire it. One caller wins; the others get one of these errors at once:
-- Errors: LH002 job_unknown, LH005 job_locked, LH006 job_not_due, LH007 job_disabled, LH003 invalid_argument.
--
-- The lock comes first and the row is read after it, by a statement of its own, which sees the row as it
-- is now. A state that was read before the lock may be one that the holder before us has changed. The advisory lock ends
-- with the transaction; locked_until outlives it, and lets the next one in when its holder never fired.

-- Serialises the claims of one schedule. A collision of the hash only means job_locked, and another try.
create or replace function schedule_lock(key text) returns bigint language sql stable
return hashtextextended(current_schema() || '.schedule.' || key, 0);

create or replace function refuse_schedule(key text) returns void language sql
as $$ select refuse('LH002', 'job_unknown', format('no schedule has the key %L', key), 'schedule_list() names them') $$;

-- `claim_id` is the fencing token for schedule_fire, chosen by the caller or made here; with the same one again, the
-- same answer. `judged_at` is when the schedule was first claimed since it was last fired: which runs are missed is
-- judged as of then, so that the successor of a scheduler that died does what that one would have done.
create or replace function schedule_claim_v1(key text, worker text, claim_id uuid default null) returns table (
  token uuid, kind text, every interval, cron text, time_zone text, starts_at timestamptz, ends_at timestamptz,
  missed text, grace interval, max_missed integer, due_after timestamptz, next_run_at timestamptz,
  judged_at timestamptz, locked_until timestamptz
) language plpgsql as $$
declare
  wanted constant text := schedule_claim_v1.key;
  new_token uuid := coalesce(schedule_claim_v1.claim_id, gen_random_uuid());
  at timestamptz;
  s schedules;
begin
  perform check_worker(worker);
  if not pg_try_advisory_xact_lock(schedule_lock(wanted)) then
    perform refuse('LH005', 'job_locked', format('another session is claiming schedule %L', wanted));
  end if;
  select * into s from schedules t where t.key = wanted for no key update skip locked;
  if not found then
    if exists (select from schedules t where t.key = wanted) then
      perform refuse('LH005', 'job_locked', format('another session is writing schedule %L', wanted));
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
    update schedules t
    set locked_by = worker, locked_until = at + make_interval(secs => lease_of(s.kind)), claim_id = new_token,
        claimed_at = coalesce(t.claimed_at, at)
    where t.key = wanted returning * into s;
  end if;
  return query select s.claim_id, s.kind, s.every, s.cron, s.time_zone, s.starts_at, s.ends_at, s.missed, s.grace,
    s.max_missed, s.due_after, s.next_run_at, s.claimed_at, s.locked_until;
end $$;

-- Enqueue a claimed schedule's jobs and move it on, in one transaction: both or neither.
-- Errors: LH002 job_unknown, LH005 job_locked (the claim is no longer the caller's), LH003 invalid_argument.
--
-- Once for each due time, three times over: only the claim that holds the schedule fires, and only from where it stood
-- when it was claimed; a call that is repeated because its answer was lost changes nothing and returns the same jobs; and
-- the idempotency key is made of the schedule's key and the due time, so that a due time never has two jobs.

create or replace function schedule_intent_key(key text, due timestamptz) returns text language sql stable
return 'schedule:' || key || ':' || to_char(due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- How long after its due time a run begins: always the same for one due time.
create or replace function schedule_jitter(s schedules, due timestamptz) returns interval language sql stable
as $$ select s.jitter * ((hashtextextended(schedule_intent_key(s.key, due), 0) & 2147483647) / 2147483648.0::double precision) $$;

-- Record one job of a schedule. Without a due time: asked for by a person, right now. `checked`: another one of the same schedule was
-- recorded in this call, and this one differs in nothing that could be refused.
create or replace function schedule_record(s schedules, due timestamptz, intent_key text, id uuid, notify boolean, checked boolean)
returns uuid language plpgsql as $$
declare
  at timestamptz := coalesce(due, clock());
  added jsonb := case when s.due_argument is null then '{}'
    else jsonb_build_object(s.due_argument, to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) end;
  -- The fields that a schedule and an intent share have the same names.
  asked intent[] := array[jsonb_populate_record(null::intent, to_jsonb(s) || jsonb_build_object('payload', s.payload || added,
    'run_at', due + schedule_jitter(s, due), 'idempotency_key', intent_key, 'id', coalesce(id, uuidv7()), 'strict', false,
    'exclusive_key', case s.overlap when 'exclusive' then coalesce(s.exclusive_key, 'schedule:' || s.key) else s.exclusive_key end,
    'scheduled', true, 'place', 1))];
begin
  return recorded(asked, true, notify, checked);
end $$;

create or replace function unfinished_of(ids uuid[]) returns uuid[] language sql stable
as $$ select array(select j.id from jobs j where j.id = any(ids) and j.state not in ('success', 'dead')) $$;

create or replace function check_fire(due timestamptz[], next_run_at timestamptz, missed integer) returns void
language plpgsql as $$
begin
  if due is null or cardinality(due) > 10000 or missed is null or missed < 0
     or exists (select from unnest(due) with ordinality d(at, n) where d.at is null or d.at <= due[d.n::integer - 1])
     or next_run_at <= due[cardinality(due)] or not is_readable(next_run_at)
     or exists (select from unnest(due) d where not is_readable(d)) then
    perform refuse('LH003', 'invalid_argument', format('due times %s, next %s, missed %s', left(due::text, 200), next_run_at, missed),
      'at most 10000 due times in their order, the next after them, and how many were missed');
  end if;
end $$;

-- `token` and `was` are what schedule_claim gave (`was` its next_run_at); `due` are the due times to enqueue a job for;
-- `next_run_at` the first due time after judged_at, null: there is none; `missed` how many were skipped. Returns each
-- due time with its job: null where an unfinished one kept it from being enqueued. At most 1,000 jobs and 16 MB of payload in one call,
-- and none after a second, which some payloads take for a few jobs: the due times behind them stay due, and the next claim finds
-- them. So no call takes so long that its caller gives it up.
create or replace function schedule_fire_v1(
  key text, worker text, token uuid, was timestamptz, due timestamptz[], next_run_at timestamptz,
  missed integer default 0, notify boolean default true
) returns table (due_at timestamptz, job_id uuid) language plpgsql set lock_timeout = '1s' as $$
declare
  wanted constant text := schedule_fire_v1.key;
  s schedules;
  still uuid[];
  checked boolean := false;
  most integer;
  upcoming timestamptz := schedule_fire_v1.next_run_at;
  deadline timestamptz;
begin
  perform check_fire(schedule_fire_v1.due, schedule_fire_v1.next_run_at, schedule_fire_v1.missed);
  select * into s from schedules t where t.key = wanted for no key update;
  if not found then
    perform refuse_schedule(wanted);
  end if;
  if s.last_claim_id = token then
    return query select d, (select j.id from jobs j where j.idempotency_key = schedule_intent_key(wanted, d))
      from unnest(schedule_fire_v1.due) d where coalesce(d < s.next_run_at, true);
    return;
  end if;
  if s.locked_by is distinct from worker or s.claim_id is distinct from token or s.next_run_at is distinct from was then
    perform refuse('LH005', 'job_locked', format('schedule %L is not under the claim %s', wanted, token));
  end if;
  most := greatest(1, least(1000, 16000000 / octet_length(s.payload::text)));
  deadline := clock_timestamp() + interval '1 second';
  still := unfinished_of(s.unfinished);
  for n in 1 .. cardinality(schedule_fire_v1.due) loop
    due_at := schedule_fire_v1.due[n];
    if n > most or n > 1 and clock_timestamp() > deadline then
      upcoming := due_at;
      exit;
    end if;
    job_id := null;
    if s.overlap = 'skip' and cardinality(still) > 0 then
      s.overlapped := s.overlapped + 1;
    else
      job_id := schedule_record(s, due_at, schedule_intent_key(s.key, due_at), null, notify,
        checked and is_readable(due_at + s.jitter));
      checked := true;
      still := array[job_id];
      s.last_run_at := due_at;
      s.last_job := job_id;
      s.fired := s.fired + 1;
    end if;
    return next;
  end loop;
  update schedules t
  set next_run_at = upcoming, over = upcoming is null, due_after = s.claimed_at,
      locked_by = null, locked_until = null, claim_id = null, claimed_at = null, last_claim_id = token,
      last_run_at = s.last_run_at, last_job = s.last_job, unfinished = still, fired = s.fired, overlapped = s.overlapped,
      missed_runs = t.missed_runs + schedule_fire_v1.missed, problem = null
  where t.key = wanted;
end $$;

-- Record why a claimed schedule cannot be fired, which is because of its own rule. The claim stays until it
-- expires, and then another scheduler, perhaps of a release that can read the rule, claims it. False: the claim is not the caller's.
create or replace function schedule_problem_v1(key text, worker text, token uuid, problem text) returns boolean
language plpgsql set lock_timeout = '1s' as $$
begin
  update schedules t set problem = shortened(schedule_problem_v1.problem, 1000)
  where t.key = schedule_problem_v1.key and t.locked_by = worker and t.claim_id = token;
  return found;
end $$;

-- Enqueue one job now, independently of the rule, and leave the next run of the rule as it is. With an id or an idempotency
-- key of this schedule that was used before, the job that has it: nothing is changed, and the schedule may be gone.
-- Errors: LH002 job_unknown, LH003 invalid_argument, LH004 idempotency_conflict.
create or replace function schedule_run_now_v1(
  key text, id uuid default null, idempotency_key text default null, notify boolean default true
) returns uuid language plpgsql set lock_timeout = '3s' as $$
declare
  wanted constant text := schedule_run_now_v1.key;
  -- Hashed: a key of any length fits, and none equals the key of a due time.
  intent_key constant text := 'schedule:' || wanted || ':run:'
    || encode(sha256(convert_to(schedule_run_now_v1.idempotency_key, 'UTF8')), 'hex');
  s schedules;
  job uuid;
begin
  perform require(coalesce(octet_length(schedule_run_now_v1.idempotency_key) between 1 and max_key_bytes(), true),
    format('idempotency_key of %s bytes', octet_length(schedule_run_now_v1.idempotency_key)),
    format('give 1 to %s bytes; nothing was recorded', max_key_bytes()));
  -- Callers with one key wait for each other here, and the second finds the job of the first.
  select * into s from schedules t where t.key = wanted for no key update;
  select j.id into job from jobs j where j.idempotency_key = intent_key;
  if job is not null then
    perform vouch();
    return job;
  end if;
  if s.key is null then
    perform refuse_schedule(wanted);
  end if;
  job := schedule_record(s, null, intent_key, schedule_run_now_v1.id, notify, false);
  update schedules t set last_job = job, unfinished = array_remove(unfinished_of(s.unfinished), job) || job where t.key = s.key;
  return job;
end $$;
