-- Every table, type and index of Leasehold. docs/state-machine.md explains the states of a job.
-- Triggers are in functions/zz_triggers.sql, roles in functions/zz_grants.sql; the tables that record which migrations and
-- function files were applied are in db/migrations/compatibility.py.

-- PostgreSQL 18 has uuidv7(); older servers get the same function here, with the same layout: 48 bits of
-- milliseconds, 12 bits below the millisecond, 62 random bits.
do $$
begin
  if to_regprocedure('pg_catalog.uuidv7()') is null then
    create function uuidv7() returns uuid language sql volatile parallel safe as $body$
      select encode(
        set_byte(set_byte(
          overlay(uuid_send(gen_random_uuid()) placing substring(int8send(us / 1000) from 3) from 1 for 6),
          6, 112 | ((us % 1000 * 4096 / 1000) >> 8)::int),
          7, ((us % 1000 * 4096 / 1000) & 255)::int), 'hex')::uuid
      from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
    $body$;
  end if;
end $$;

create type job_state as enum ('created', 'queued', 'running', 'success', 'retry', 'dead');

-- A job before it is recorded. Null: left to what the task of its kind declares, or not wanted.
create type intent as (
  -- What a caller asks for: the arguments of enqueue.
  kind text, payload jsonb, queue text, priority integer, run_at timestamptz, run_after interval, idempotency_key text,
  max_attempts integer, exclusive_key text, tags text[], id uuid, strict boolean, metadata jsonb,
  -- What an API server adds: see submit_many.
  origin text, own boolean, queues text[],
  -- Whether a schedule makes it, and its place in the caller's list, from 1.
  scheduled boolean, place integer
);

-- What a client may see of a job, and the answer to the submission of one.
create type client_job as (
  id uuid, kind text, queue text, state job_state, status text, reason text, progress real, progress_note text,
  run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz, origin text
);
create type submission as (
  ord integer, error text, detail text, id uuid, kind text, queue text, state job_state, status text, reason text,
  progress real, progress_note text, run_at timestamptz, created_at timestamptz, updated_at timestamptz, finished_at timestamptz
);

-- One row per job; every transition updates it. Columns that never change come first and columns that change come last, because the
-- WAL record of an update leaves out the bytes that the old and the new row begin with. That needs the new version on the same
-- page, hence the fillfactor: 980 instead of 1,298 bytes of WAL for a claim and a finish (docs/decisions/0003-one-table.md).
create table jobs (
  -- What was requested.
  id               uuid primary key default uuidv7(),
  created_at       timestamptz not null default clock_timestamp(),
  priority         smallint not null default 0,         -- higher is claimed first
  max_attempts     smallint not null,                   -- this many failures make the job dead
  queue            text collate "C" not null default 'default',
  kind             text collate "C" not null,           -- the name of the task
  payload          jsonb not null default '{}',         -- the arguments of the task
  idempotency_key  text collate "C",                    -- one job per key until that job is pruned
  exclusive_key    text collate "C",                    -- at most one running job per key
  tags             text[],
  -- What has happened since.
  run_at           timestamptz not null default clock_timestamp(),  -- not claimed before this
  updated_at       timestamptz not null default clock_timestamp(),
  state            job_state not null default 'created',
  attempt          integer not null default 0,          -- claims so far; the fencing token
  retry_count      smallint not null default 0,         -- failures so far
  accepted         boolean not null default true,       -- false: submitted, and its accept() has not come yet
  parked           boolean not null default false,      -- queued behind the running job of its exclusive key or a key limit
  is_current       boolean not null default false,      -- the latest claimed job of its exclusive key
  claim_id         uuid,                                -- the claim call that took the present attempt
  claimed_at       timestamptz,
  lease_expires_at timestamptz,                         -- ownership ends here, swept or not
  finished_at      timestamptz,
  lease_owner      text collate "C",                    -- the worker that owns the present attempt
  finished_by      text collate "C",                    -- the worker that reported the outcome; recognises a repeated report
  reason           text collate "C",                    -- why dead: cancelled, exhausted, fatal, lease_expired, set_aside
  reason_detail    text,
  progress         real,
  progress_note    text,
  result           jsonb,
  parked_under     text collate "C",                    -- the key limit it is parked under; null: its own key. Only valid while parked
  -- Last, because it is mostly null and never changes.
  origin           text collate "C",                    -- namespace of the token that submitted it; null: the application itself
  metadata         jsonb,                               -- of the call: headers, a trace context

  constraint jobs_lease_iff_running check (
    (state = 'running') = (lease_owner is not null) and (state = 'running') = (lease_expires_at is not null)),
  constraint jobs_finished_iff_over check (
    (state in ('success', 'dead')) = (finished_at is not null)
    and (state = 'dead') = (reason is not null) and (result is null or state = 'success')),
  constraint jobs_within_budget check (
    attempt >= 0 and retry_count between 0 and attempt
    and (retry_count < max_attempts or state not in ('queued', 'running'))),
  -- With the unique index jobs_current: two jobs of one key never run together, even if another program writes the rows.
  constraint jobs_exclusive check (
    case when exclusive_key is null then not (is_current or parked)
         else (is_current or state <> 'running') and (state = 'queued' or not parked) end)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

-- The primary key gets an entry for each of a job's three row versions. Every other index is partial: a row version gets
-- an entry only when it meets the condition.
-- A constraint instead of this partial index would store the nulls of keyless jobs three times (+150 bytes of WAL a job).
create unique index jobs_idempotency_key on jobs (idempotency_key) where idempotency_key is not null;
-- The only index of the claim: one range per queue and kind, in claim order. One entry each time a job becomes queued.
create index jobs_runnable on jobs (queue, kind, (-priority), id) where state = 'queued' and not parked;
-- Expired leases for sweep, live ones for limits. One entry per claim and per heartbeat.
create index jobs_lease on jobs (queue, lease_expires_at) where state = 'running';
-- Jobs that promote() makes queued. Only jobs with a future run_at and failed ones get an entry. The id lets a scan of a million jobs
-- with one run_at continue where it was cut.
create index jobs_due on jobs (run_at, id) where state in ('created', 'retry') and accepted;
-- Monitoring and pruning by outcome and time. One entry per job, always at the right end of the index.
create index jobs_finished on jobs (state, finished_at) where state in ('success', 'dead');
-- The remaining indexes only hold jobs with an exclusive key. Some compare the state with IS [NOT] DISTINCT FROM, as
-- their queries do, so that the planner does not choose another partial index for those.
-- At most one current job per exclusive key.
create unique index jobs_current on jobs (exclusive_key) where is_current;
-- Jobs waiting for an exclusive key, one range per queue and kind; and those of them that are parked, few among many as a rule.
create index jobs_exclusive_waiting on jobs (exclusive_key, queue, kind, (-priority), id)
  where state = 'queued' and exclusive_key is not null;
create index jobs_parked on jobs (exclusive_key, queue, kind, (-priority), id)
  where state = 'queued' and parked and exclusive_key is not null;
-- Jobs waiting under a key limit: one range per queue and kind, in claim order.
create index jobs_parked_under on jobs (parked_under, queue, kind, (-priority), id)
  where exclusive_key is not null and parked and parked_under is not null;
-- Jobs of a key or a range of keys that may run now, without those that are parked.
create index jobs_exclusive_runnable on jobs (exclusive_key, (-priority), id)
  where exclusive_key is not null and state is not distinct from 'queued' and parked is distinct from true;
-- Running jobs of a range of keys.
create index jobs_exclusive_running on jobs (exclusive_key)
  where exclusive_key is not null and state is not distinct from 'running';

-- The audit trail: one row for each attempt that did not end in success. Only prune() deletes rows.
create table attempts (
  job_id          uuid not null,
  attempt         integer not null,
  worker          text collate "C" not null,
  outcome         text collate "C" not null
    check (outcome in ('failed', 'lease_expired', 'snoozed', 'released', 'cancelled')),
  claimed_at      timestamptz not null,
  ended_at        timestamptz not null,
  error_class     text,
  error_message   text,
  error_traceback text,
  primary key (job_id, attempt)
);
-- The latest errors first.
create index attempts_ended on attempts (ended_at);

-- Lines that tasks logged. Not part of attempts, because a successful attempt may have lines and has no row there.
create table job_logs (
  job_id  uuid not null,
  attempt integer not null,
  lines   jsonb not null,                               -- [[time, level, text], …]
  primary key (job_id, attempt)
);

-- Exclusive keys whose parked jobs were locked when they should have been made claimable again. Almost always empty. The
-- primary key is a number: two transactions that note the same exclusive key must not wait for each other.
create table unpark_later (
  exclusive_key text collate "C" not null,
  seq           bigint generated always as identity primary key
);
-- Limits that a claim could not lock in the time that it waits: upkeep checks when they are free. Keyed by a number likewise.
create table limits_to_recheck (
  scope text collate "C" not null,
  name  text collate "C" not null,
  seq   bigint generated always as identity primary key
);

-- What tasks declare about their kind. A job recorded without a queue, priority or max_attempts gets these; null: not declared.
create table kinds (
  kind          text collate "C" primary key,
  lease_seconds double precision not null check (lease_seconds > 0),
  updated_at    timestamptz not null,
  queue         text collate "C",
  priority      smallint,
  max_attempts  smallint
);

-- One row per worker process, updated in place (HOT), hence the fillfactor.
create table workers (
  id         text collate "C" primary key,
  host       text,
  pid        integer,
  queues     text[],
  kinds      text[],
  slots      integer,
  started_at timestamptz not null,
  seen_at    timestamptz not null,
  stopped_at timestamptz,
  claim_id   uuid,                                      -- its last claim, so that a claim whose answer was lost can be repeated
  tally      bigint                                     -- number of its last tally, so that a repeated one does not count twice
) with (fillfactor = 50);

-- How many jobs may run at once: in all, of a queue, of a kind, of the exclusive keys with one beginning.
-- See docs/decisions/0010-limits.md.
create table limits (
  scope       text collate "C" not null check (scope in ('global', 'queue', 'kind', 'key')),
  name        text collate "C" not null default '',     -- the queue, the kind, the beginning of the keys
  max_running integer not null check (max_running >= 0),
  ends_before text collate "C",                         -- the first text after all that begin with the name
  updated_at  timestamptz not null,
  primary key (scope, name),
  check ((scope = 'global') = (name = '')),
  check ((scope = 'key') = (ends_before is not null))
);

-- Paused queues only: every claim checks whether there are any. See docs/decisions/0014-pausing-and-operations.md.
create table queues (
  queue     text collate "C" primary key,
  paused_at timestamptz not null,
  paused_by text,
  reason    text
);

-- Types that the functions of a claim pass to each other; no table uses them.
-- A job as a claim returns it.
create type claimed_job as (
  id uuid, kind text, queue text, payload jsonb, attempt integer, retry_count smallint, max_attempts smallint,
  priority smallint, lease_seconds double precision, run_at timestamptz, claimed_at timestamptz
);
-- One queue and kind of the index jobs_runnable, as a claim reads it.
create type lane as (
  queue      text,
  kind       text,
  rank       smallint,          -- read behind this position in claim order: -priority …
  id         uuid,              -- … and job id
  queue_room integer,           -- how many more of its jobs the limit of the queue admits; null: no limit
  kind_room  integer            -- and the limit of the kind
);
-- The jobs that one step of a claim has locked.
create type locked_jobs as (
  ids        uuid[],
  keyed      boolean,           -- some have an exclusive key
  last_rank  smallint,          -- where the next step goes on in claim order
  last_id    uuid,              -- null: there are no more
  bytes      bigint,            -- of all payloads, at most
  cut        boolean            -- more were found than fit into the bytes of a claim
);
-- What a claim has to respect besides exclusive keys: whether there are limits of scope global, queue or kind, limits of scope key,
-- paused queues.
create type claim_bounds as (lane_limits boolean, key_limits boolean, pauses boolean);
-- How many more jobs may start under a limit.
create type room as (scope text, name text, free integer);

-- A job as operators see it. The fields behind the cursor, which a list leaves out, are what the job carries and its attempts.
create type job_row as (
  id uuid, kind text, queue text, state job_state, status text, priority smallint, attempt integer, retry_count smallint,
  max_attempts smallint, exclusive_key text, tags text[], parked boolean, accepted boolean, reason text, error_class text,
  progress real, progress_note text, lease_owner text, lease_expires_at timestamptz, run_at timestamptz, created_at timestamptz,
  updated_at timestamptz, claimed_at timestamptz, finished_at timestamptz, metadata jsonb, cursor_here text,
  idempotency_key text, reason_detail text, payload jsonb, result jsonb, attempts jsonb
);

-- One check of doctor(): verdict is ok, warn or fail.
create type finding as (name text, verdict text, detail text, cure text);

-- Who may use the HTTP API. See docs/decisions/0022-scopes-and-namespaces.md.
create table tokens (
  id          uuid primary key,
  name        text not null,
  secret_hash bytea not null check (octet_length(secret_hash) = 32),  -- SHA-256; the secret itself is not stored
  scopes      text[] collate "C" not null check (cardinality(scopes) > 0 and scopes <@ '{submit,status,read,operate}'),
  queues      text[] collate "C",                       -- null: all
  kinds       text[] collate "C",                       -- null: all
  rate        real check (rate > 0),                    -- requests a second; null: unlimited
  created_at  timestamptz not null,
  expires_at  timestamptz,
  revoked_at  timestamptz,
  namespace   text collate "C",                         -- the origin of the jobs that it submits
  created_by  uuid,                                     -- the token that created it; null: a database login did
  session     boolean not null default false            -- of a browser that signed in; valid for the dashboard only
);
-- The tokens that are revoked together with the one that created them.
create index tokens_made on tokens (created_by) where created_by is not null;

-- Rules by which jobs are enqueued repeatedly. See docs/decisions/0013-schedules.md.
create table schedules (
  key            text collate "C" primary key check (key <> ''),
  -- The job.
  kind           text collate "C" not null,
  queue          text collate "C" not null,
  payload        jsonb not null,
  priority       smallint not null,
  max_attempts   smallint not null,
  exclusive_key  text collate "C",
  tags           text[],
  metadata       jsonb,
  due_argument   text,                                  -- the field of the payload that gets the due time
  -- The rule.
  every          interval check (every >= interval '1 second'),
  cron           text,
  time_zone      text not null,
  starts_at      timestamptz,                           -- no due time before this
  ends_at        timestamptz,                           -- no due time at this or later
  jitter         interval not null check (jitter between interval '0' and interval '24 hours'),
  -- Policies.
  missed         text collate "C" not null check (missed in ('skip', 'once', 'all')),
  grace          interval not null check (grace >= interval '0'),
  max_missed     integer not null check (max_missed between 1 and 10000),
  overlap        text collate "C" not null check (overlap in ('allow', 'skip', 'exclusive')),
  enabled        boolean not null,
  declared       jsonb,                                 -- what the application declared last; null: not declared in code
  created_at     timestamptz not null,
  updated_at     timestamptz not null,
  -- Its progress.
  due_after      timestamptz not null,                  -- due times up to this are handled
  next_run_at    timestamptz,                           -- the first due time after that; null: not computed yet
  over           boolean not null,                      -- there is no further due time
  locked_by      text collate "C",
  locked_until   timestamptz,
  claim_id       uuid,                                  -- the claim that holds it; the fencing token
  claimed_at     timestamptz,                           -- the first claim since the last fire; missed runs are judged as of then
  last_claim_id  uuid,                                  -- the claim that fired last; recognises a repeated fire
  last_run_at    timestamptz,                           -- the latest due time that was fired
  last_job       uuid,
  unfinished     uuid[] not null,                       -- its jobs that were unfinished when one was last added
  fired          bigint not null,                       -- jobs enqueued at due times
  missed_runs    bigint not null,                       -- due times skipped because they were missed
  overlapped     bigint not null,                       -- due times skipped because a job was unfinished
  problem        text,                                  -- why it cannot be fired

  constraint schedules_one_rule check ((every is null) <> (cron is null)),
  constraint schedules_window check (starts_at < ends_at),
  constraint schedules_locked_as_a_whole check (
    (locked_by is null) = (locked_until is null) and (locked_by is null) = (claim_id is null)),
  constraint schedules_over check (not over or next_run_at is null),
  constraint schedules_payload check (jsonb_typeof(payload) = 'object')
) with (fillfactor = 50);
-- When each schedule can be claimed next. greatest() ignores nulls; null: now.
create index schedules_due on schedules ((greatest(next_run_at, locked_until)) nulls first) where enabled and not over;

-- The optional history: every transition of every job, written in the same transaction. Empty until history(true).
-- Append-only. Readers page along (xid, seq) and miss nothing that commits late; seq is the order of one job's events.
-- Holds nothing that a job carries. See docs/decisions/0017-history-and-verify.md.
create table events (
  seq              bigint generated always as identity,
  xid              xid8 not null,                       -- the transaction, see history_era()
  at               timestamptz not null,
  job_id           uuid not null,
  kind             text collate "C" not null,
  queue            text collate "C" not null,
  from_state       job_state,                           -- null: the job was recorded
  to_state         job_state not null,
  attempt          integer not null,
  owner            text collate "C",                    -- the lease owner, or the one until this transition
  claim_id         uuid,
  lease_expires_at timestamptz,
  retry_count      smallint not null,
  max_attempts     smallint not null,
  reason           text collate "C",
  run_at           timestamptz not null,
  idempotency_key  text collate "C",
  exclusive_key    text collate "C",
  primary key (xid, seq)
);
-- The timeline of one job; prune() deletes by it.
create index events_job on events (job_id, seq);

-- Counts that workers report: one row per step, time, queue and kind. An empty kind is the sum of a queue, an empty queue
-- and kind the sum of all, so that a chart reads one row per point. Approximate: a worker that is killed loses up to ten
-- seconds of it. See docs/statistics.md.
create table statistics (
  step      integer not null check (step in (10, 60, 600)),    -- seconds
  queue     text collate "C" not null,
  kind      text collate "C" not null,
  at        timestamptz not null,                              -- beginning of the step
  success   integer not null default 0,
  failed    integer not null default 0,                        -- failed attempts, the last one of a job included
  dead      integer not null default 0,                        -- those of them that were the last of their job
  snoozed   integer not null default 0,
  cancelled integer not null default 0,
  released  integer not null default 0,
  waits     integer[] not null,                                -- histogram of waiting times, classes of histogram_bounds()
  runs      integer[] not null,                                -- histogram of running times
  primary key (step, queue, kind, at)
) with (fillfactor = 50);
-- Old rows, for their removal.
create index statistics_old on statistics (step, at);

-- One sample a minute, taken by the upkeep of the first worker that finds it missing.
create table flow (
  at           timestamptz primary key,
  created      integer not null default 0,                     -- jobs in each state, counted up to a cap
  queued       integer not null default 0,
  running      integer not null default 0,
  retry        integer not null default 0,
  dead         integer not null default 0,
  arrived      bigint,                                         -- jobs created in the minute before; null: unknown
  wal          bigint,                                         -- bytes of WAL since the server was made
  transactions bigint                                          -- of this database, since its statistics were reset
);

-- Canary retries: the dead jobs of one kind and error class are retried in stages.
create table canaries (
  id           uuid primary key,
  kind         text collate "C" not null,
  error_class  text,
  queues       text[] collate "C",                             -- null: all
  state        text collate "C" not null check (state in ('running', 'stopped', 'done')),
  stage        smallint not null default 1 check (stage between 1 and 3),
  total        integer not null,                               -- jobs found at the start
  total_capped boolean not null,
  place        jsonb,                                          -- position of the scan over them
  exhausted    boolean not null default false,                 -- the scan has ended
  retried      integer not null default 0,
  succeeded    integer not null default 0,
  failed       integer not null default 0,
  other        integer not null default 0,                     -- cancelled or pruned meanwhile
  stage_retried   integer not null default 0,                  -- the same three of the present stage
  stage_succeeded integer not null default 0,
  stage_failed    integer not null default 0,
  reason       text,                                           -- why stopped
  started_by   text,
  created_at   timestamptz not null,
  updated_at   timestamptz not null,
  finished_at  timestamptz,
  constraint canaries_finished_iff_over check ((state = 'running') = (finished_at is null))
) with (fillfactor = 50);
-- One running canary per group.
create unique index canaries_running on canaries (kind, coalesce(error_class, '')) where state = 'running';

-- The jobs that a canary has retried.
create table canary_jobs (
  canary     uuid not null,
  job_id     uuid not null,
  stage      smallint not null,
  retried_at timestamptz not null,
  outcome    text collate "C" check (outcome in ('success', 'failed', 'cancelled', 'gone')),
  primary key (canary, job_id)
);
create index canary_jobs_open on canary_jobs (canary) where outcome is null;
