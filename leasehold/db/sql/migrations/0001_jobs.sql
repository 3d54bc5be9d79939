-- The heart: jobs, their attempts, the kinds' leases, the workers. See docs/state-machine.md.

-- PostgreSQL 18 brings uuidv7(); before it, ours stands in its place under the same name. Same layout:
-- 48 bits of milliseconds, 12 bits of the sub-millisecond, 62 random bits.
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

-- One row a job, for ever: every transition is an update of it. What never changes stands first and what
-- changes stands last, because an update's WAL leaves out the bytes that the old and the new row begin
-- with. fillfactor keeps the new version on the same page, which is what makes that possible: 980 against
-- 1,298 bytes of WAL for a claim and a finish (docs/decisions/0003-one-table.md).
create table jobs (
  -- What was asked for.
  id               uuid primary key default uuidv7(),
  created_at       timestamptz not null default clock_timestamp(),
  priority         smallint not null default 0,
  max_attempts     smallint not null default 5,
  queue            text collate "C" not null default 'default',
  kind             text collate "C" not null,
  payload          jsonb not null default '{}',
  idempotency_key  text collate "C",
  exclusive_key    text collate "C",
  tags             text[],
  -- What became of it.
  run_at           timestamptz not null default clock_timestamp(),
  updated_at       timestamptz not null default clock_timestamp(),
  state            job_state not null default 'created',
  attempt          integer not null default 0,          -- claims so far; the fencing token
  retry_count      smallint not null default 0,         -- failures so far
  accepted         boolean not null default true,       -- false: submitted, the answer not yet given
  parked           boolean not null default false,      -- queued behind the running job of its exclusive key
  is_current       boolean not null default false,      -- the latest claimed job of its exclusive key
  claim_id         uuid,                                -- the claim call that took the present attempt
  claimed_at       timestamptz,
  lease_expires_at timestamptz,
  finished_at      timestamptz,
  lease_owner      text collate "C",
  finished_by      text collate "C",                    -- who reported the outcome; tells a repeated finish
  reason           text collate "C",                    -- why dead: cancelled, exhausted, fatal, lease_expired
  reason_detail    text,
  progress         real,
  progress_note    text,
  result           jsonb,

  constraint jobs_lease_iff_running check (
    (state = 'running') = (lease_owner is not null) and (state = 'running') = (lease_expires_at is not null)),
  constraint jobs_finished_iff_over check (
    (state in ('success', 'dead')) = (finished_at is not null)
    and (state = 'dead') = (reason is not null) and (result is null or state = 'success')),
  constraint jobs_within_budget check (
    attempt >= 0 and retry_count between 0 and attempt
    and (retry_count < max_attempts or state not in ('queued', 'running'))),
  -- With the unique index below: two jobs of one key can never both be running, whoever writes.
  constraint jobs_exclusive check (
    case when exclusive_key is null then not (is_current or parked)
         else (is_current or state <> 'running') and (state = 'queued' or not parked) end)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

-- The primary key costs an entry for each of a job's three row versions. Every other index is partial: an
-- entry is written only when a row version enters it.
-- Uniqueness of intent. Free without a key; partial, because a constraint would index the NULLs of keyless
-- jobs three times over (+150 bytes of WAL a job).
create unique index jobs_idempotency_key on jobs (idempotency_key) where idempotency_key is not null;
-- The claim's only way in, one range per queue and kind in claim order. One entry per time a job is queued.
create index jobs_runnable on jobs (queue, kind, (-priority), id) where state = 'queued' and not parked;
-- Expired leases for sweep, live ones for limits. One entry per claim and per heartbeat.
create index jobs_lease on jobs (queue, lease_expires_at) where state = 'running';
-- What promote waits for. Costs jobs with a future run_at and failed attempts only.
create index jobs_due on jobs (run_at) where state in ('created', 'retry') and accepted;
-- Monitoring and pruning by outcome and time. One entry a job, always at the index's right end.
create index jobs_finished on jobs (state, finished_at) where state in ('success', 'dead');
-- At most one current job per exclusive key. Costs jobs with an exclusive key only.
create unique index jobs_current on jobs (exclusive_key) where is_current;
-- Who waits for an exclusive key, lane by lane. Costs jobs with an exclusive key only.
create index jobs_exclusive_waiting on jobs (exclusive_key, queue, kind, (-priority), id)
  where state = 'queued' and exclusive_key is not null;

-- The audit trail: one row for each attempt that did not end in success. Only prune ever deletes.
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

-- What tasks said while they ran. Apart from attempts: a successful attempt may have lines and leaves no row there.
create table job_logs (
  job_id  uuid not null,
  attempt integer not null,
  lines   jsonb not null,     -- [[when, level, text], …]
  primary key (job_id, attempt)
);

-- Exclusive keys whose parked jobs could not be put back because somebody was writing them. Almost always empty; no key
-- of its own, or two that note the same one would wait for each other.
create table unpark_later (exclusive_key text collate "C" not null);

-- What tasks declare about their kind. lease_seconds() reads it, and nothing else decides a lease's length.
create table kinds (
  kind          text collate "C" primary key,
  lease_seconds double precision not null check (lease_seconds between 0.1 and 86400),
  updated_at    timestamptz not null
);

-- One row per worker process: who lives and what it can do, and its last claim, so that a claim whose
-- answer was lost can be repeated. Updated in place (HOT), hence the room on its pages.
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
  claim_id   uuid,
  claimed    uuid[]
) with (fillfactor = 50);

-- Roles belong to the whole cluster: another database or schema may have made them already, or be making
-- them this very moment.
do $$
declare
  role_name text;
begin
  foreach role_name in array array['leasehold_producer', 'leasehold_worker', 'leasehold_operator', 'leasehold_viewer'] loop
    if to_regrole(role_name) is null then
      begin
        execute format('create role %I nologin', role_name);
      exception when duplicate_object or unique_violation then
        null;
      end;
    end if;
  end loop;
end $$;
