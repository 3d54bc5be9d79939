-- Enqueue a claimed schedule's jobs and move it on, in one transaction: both or neither.
-- Errors: LH002 job_unknown, LH005 job_locked (the claim is no longer the caller's), LH003 invalid_argument.
--
-- Once for each due time, three times over: only the claim that holds the schedule fires, and only from where it stood
-- when it was claimed; a call that is repeated because its answer was lost changes nothing and gives the same jobs; and
-- the idempotency key is made of the schedule's key and the due time, so that whatever else happens it is one job.

create or replace function schedule_intent_key(key text, due timestamptz) returns text language sql stable
return 'schedule:' || key || ':' || to_char(due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- How long after its due time a run begins: always the same for one due time, whoever asks.
create or replace function schedule_jitter(s schedules, due timestamptz) returns interval language sql stable
return s.jitter * ((hashtextextended(schedule_intent_key(s.key, due), 0) & 2147483647) / 2147483648.0::double precision);

-- The idempotency key of a job that a person asked for under a key of their own. Hashed: it fits whatever its length is,
-- and is never that of a due time.
create or replace function schedule_run_key(key text, idempotency_key text) returns text language sql stable
return 'schedule:' || key || ':run:' || encode(sha256(convert_to(idempotency_key, 'UTF8')), 'hex');

-- Record one job of a schedule. Without a due time: asked for by a person, right now.
create or replace function schedule_record(s schedules, due timestamptz, intent_key text, id uuid, notify boolean)
returns uuid language plpgsql
as $$
declare
  at timestamptz := coalesce(due, clock());
  added jsonb := case when s.due_argument is null then '{}'
    else jsonb_build_object(s.due_argument, to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) end;
begin
  return record_intent(s.kind, s.payload || added, s.queue, s.priority, due + schedule_jitter(s, due), null,
    intent_key, s.max_attempts,
    case s.overlap when 'exclusive' then coalesce(s.exclusive_key, 'schedule:' || s.key) else s.exclusive_key end,
    s.tags, id, true, false, notify);
end $$;

create or replace function schedule_enqueue(s schedules, due timestamptz, id uuid, notify boolean) returns uuid
language sql
as $$ select schedule_record(s, due, schedule_intent_key(s.key, due), id, notify) $$;

-- Which of these jobs are not over yet.
create or replace function unfinished_of(ids uuid[]) returns uuid[] language sql stable
as $$ select array(select j.id from jobs j where j.id = any(ids) and j.state not in ('success', 'dead')) $$;

create or replace function check_fire(due timestamptz[], next_run_at timestamptz, missed integer) returns void
language plpgsql
as $$
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
-- `next_run_at` the first due time after judged_at, null: there is none; `missed` how many were passed over. Gives each
-- due time with its job: null where an unfinished one kept it from being enqueued.
create or replace function schedule_fire_v1(
  key text, worker text, token uuid, was timestamptz, due timestamptz[], next_run_at timestamptz,
  missed integer default 0, notify boolean default true
) returns table (due_at timestamptz, job_id uuid) language plpgsql
security definer set search_path from current
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  wanted constant text := schedule_fire_v1.key;
  s schedules;
  still uuid[];
begin
  perform check_fire(schedule_fire_v1.due, schedule_fire_v1.next_run_at, schedule_fire_v1.missed);
  select * into s from schedules t where t.key = wanted for no key update;
  if not found then
    perform refuse_schedule(wanted);
  end if;
  if s.last_claim_id = token then
    return query select d, (select j.id from jobs j where j.idempotency_key = schedule_intent_key(wanted, d))
      from unnest(schedule_fire_v1.due) d;
    return;
  end if;
  if s.locked_by is distinct from worker or s.claim_id is distinct from token or s.next_run_at is distinct from was then
    perform refuse('LH005', 'job_locked', format('schedule %L is not under the claim %s', wanted, token));
  end if;
  still := unfinished_of(s.unfinished);
  foreach due_at in array schedule_fire_v1.due loop
    job_id := null;
    if s.overlap = 'skip' and cardinality(still) > 0 then
      s.overlapped := s.overlapped + 1;
    else
      job_id := schedule_enqueue(s, due_at, null, notify);
      still := array[job_id];
      s.last_run_at := due_at;
      s.last_job := job_id;
      s.fired := s.fired + 1;
    end if;
    return next;
  end loop;
  update schedules t
  set next_run_at = schedule_fire_v1.next_run_at, over = schedule_fire_v1.next_run_at is null, due_after = s.claimed_at,
      locked_by = null, locked_until = null, claim_id = null, claimed_at = null, last_claim_id = token,
      last_run_at = s.last_run_at, last_job = s.last_job, unfinished = still, fired = s.fired, overlapped = s.overlapped,
      missed_runs = t.missed_runs + schedule_fire_v1.missed, problem = null
  where t.key = wanted;
end $$;

create or replace function schedule_fire(
  key text, worker text, token uuid, was timestamptz, due timestamptz[], next_run_at timestamptz,
  missed integer default 0, notify boolean default true
) returns table (due_at timestamptz, job_id uuid) language sql
security definer set search_path from current
as $$ select * from schedule_fire_v1(key, worker, token, was, due, next_run_at, missed, notify) $$;

-- A claimed schedule cannot be fired, because of its own rule: say so where people look. The claim stays until it
-- expires, and then another scheduler, which may know better, has its turn. False: the claim is not the caller's.
create or replace function schedule_problem_v1(key text, worker text, token uuid, problem text) returns boolean
language plpgsql
security definer set search_path from current
set lock_timeout = '1s'
as $$
#variable_conflict use_column
begin
  update schedules t set problem = shortened(schedule_problem_v1.problem, 1000)
  where t.key = schedule_problem_v1.key and t.locked_by = worker and t.claim_id = token;
  return found;
end $$;

create or replace function schedule_problem(key text, worker text, token uuid, problem text) returns boolean
language sql
security definer set search_path from current
as $$ select schedule_problem_v1(key, worker, token, problem) $$;

-- Enqueue one job now, whatever the rule says, and leave the rule's own next run as it is. With an id or an idempotency
-- key of this schedule that was used before, the job that has it: nothing is changed, and the schedule may be gone.
-- Errors: LH002 job_unknown, LH003 invalid_argument, LH004 idempotency_conflict.
create or replace function schedule_run_now_v2(
  key text, id uuid default null, idempotency_key text default null, notify boolean default true
) returns uuid language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  wanted constant text := schedule_run_now_v2.key;
  intent_key constant text := schedule_run_key(wanted, schedule_run_now_v2.idempotency_key);
  s schedules;
  job uuid;
  still uuid[];
begin
  if octet_length(schedule_run_now_v2.idempotency_key) not between 1 and 500 then
    perform refuse('LH003', 'invalid_argument',
      format('idempotency_key of %s bytes', octet_length(schedule_run_now_v2.idempotency_key)),
      'give 1 to 500 bytes; nothing was recorded');
  end if;
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
  job := schedule_record(s, null, intent_key, schedule_run_now_v2.id, notify);
  still := array_remove(unfinished_of(s.unfinished), job) || job;
  update schedules t set last_job = job, unfinished = still where t.key = s.key;
  return job;
end $$;

create or replace function schedule_run_now_v1(key text, id uuid default null, notify boolean default true)
returns uuid language sql
security definer set search_path from current
as $$ select schedule_run_now_v2(key, id, null, notify) $$;

create or replace function schedule_run_now(key text, id uuid default null, notify boolean default true)
returns uuid language sql
security definer set search_path from current
as $$ select schedule_run_now_v2(key, id, null, notify) $$;
