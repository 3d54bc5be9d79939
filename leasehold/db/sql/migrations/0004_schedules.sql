-- Schedules: rules by which jobs are enqueued again and again. See docs/decisions/0013-schedules.md.

create table schedules (
  key            text collate "C" primary key check (octet_length(key) between 1 and 200),
  -- What is enqueued.
  kind           text collate "C" not null,
  queue          text collate "C" not null default 'default',
  payload        jsonb not null default '{}',
  priority       smallint not null default 0,
  max_attempts   smallint not null default 5,
  exclusive_key  text collate "C",
  tags           text[],
  due_argument   text,                                    -- the field of the payload that gets the due time
  -- When.
  every          interval check (every >= interval '1 second'),
  cron           text,
  time_zone      text not null default 'UTC',
  starts_at      timestamptz,                             -- no due time before it
  ends_at        timestamptz,                             -- none at it or after it
  jitter         interval not null default '0' check (jitter between interval '0' and interval '24 hours'),
  -- What if.
  missed         text collate "C" not null default 'skip' check (missed in ('skip', 'once', 'all')),
  grace          interval not null default '5 minutes' check (grace >= interval '0'),
  max_missed     integer not null default 1000 check (max_missed between 1 and 10000),
  overlap        text collate "C" not null default 'allow' check (overlap in ('allow', 'skip', 'exclusive')),
  enabled        boolean not null default true,
  declared       jsonb,                                   -- what the code said last; null: code knows nothing of it
  created_at     timestamptz not null,
  updated_at     timestamptz not null,
  -- Where it stands.
  due_after      timestamptz not null,                    -- due times up to here are dealt with
  next_run_at    timestamptz,                             -- the first due time after that; null: to be found
  over           boolean not null default false,          -- there is none
  locked_by      text collate "C",
  locked_until   timestamptz,
  claim_id       uuid,                                    -- the claim that holds it; the fencing token
  claimed_at     timestamptz,                             -- the first claim since the last fire: missed runs are judged then
  last_claim_id  uuid,                                    -- the claim that fired last; tells a repeated fire
  last_run_at    timestamptz,                             -- the latest due time that was fired
  last_job       uuid,
  unfinished     uuid[] not null default '{}',            -- its jobs that were not finished when one was last added
  fired          bigint not null default 0,               -- jobs enqueued at due times
  missed_runs    bigint not null default 0,               -- due times passed over, because they were missed
  overlapped     bigint not null default 0,               -- due times passed over, because a job was unfinished
  problem        text,                                    -- why it cannot be fired

  constraint schedules_one_rule check ((every is null) <> (cron is null)),
  constraint schedules_window check (starts_at < ends_at),
  constraint schedules_locked_as_a_whole check (
    (locked_by is null) = (locked_until is null) and (locked_by is null) = (claim_id is null)),
  constraint schedules_over check (not over or next_run_at is null),
  constraint schedules_payload check (jsonb_typeof(payload) = 'object')
) with (fillfactor = 50);

-- What the scheduler looks at: when each can be claimed next. greatest() leaves nulls out; null: now.
create index schedules_due on schedules ((greatest(next_run_at, locked_until)) nulls first) where enabled and not over;
