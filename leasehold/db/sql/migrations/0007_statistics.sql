-- Statistics that workers roll up, samples of the flow, canary retries. See docs/statistics.md.

-- What workers tallied: one row per length of time, moment, queue and kind. An empty kind stands for all kinds of the
-- queue, an empty queue and kind for everything, so that a picture of the whole reads one row a moment. Never the truth
-- about jobs: a worker that is killed takes up to ten seconds of it along.
create table statistics (
  step      integer not null check (step in (10, 60, 600)),    -- seconds
  queue     text collate "C" not null,
  kind      text collate "C" not null,
  at        timestamptz not null,                              -- its beginning
  success   integer not null default 0,
  failed    integer not null default 0,                        -- attempts that failed, whatever became of the job
  dead      integer not null default 0,                        -- of these: the last ones of their jobs
  snoozed   integer not null default 0,
  cancelled integer not null default 0,
  released  integer not null default 0,
  waits     integer[] not null,                                -- how many waited how long, by histogram_bounds()
  runs      integer[] not null,                                -- how many ran how long
  primary key (step, queue, kind, at)
) with (fillfactor = 50);
-- What is old, for those who remove it.
create index statistics_old on statistics (step, at);

-- The last tally that a worker has handed in: repeated, it does not count twice.
alter table workers add column tally bigint;

-- A sample a minute, by whichever worker comes first.
create table flow (
  at           timestamptz primary key,
  created      integer not null default 0,                     -- jobs in each state, counted up to a cap
  queued       integer not null default 0,
  running      integer not null default 0,
  retry        integer not null default 0,
  dead         integer not null default 0,
  arrived      bigint,                                         -- jobs created in the minute before; null: not known
  wal          bigint,                                         -- bytes of WAL since the server was made
  transactions bigint                                          -- of this database, since its statistics were reset
);

-- Canary retries of the dead jobs of one kind and error class.
create table canaries (
  id           uuid primary key,
  kind         text collate "C" not null,
  error_class  text,
  queues       text[] collate "C",                             -- null: all
  state        text collate "C" not null check (state in ('running', 'stopped', 'done')),
  stage        smallint not null default 1 check (stage between 1 and 3),
  total        integer not null,                               -- jobs found at the start
  total_capped boolean not null,
  place        jsonb,                                          -- how far the walk over them has come
  exhausted    boolean not null default false,                 -- there are no more
  retried      integer not null default 0,
  succeeded    integer not null default 0,
  failed       integer not null default 0,
  other        integer not null default 0,                     -- cancelled or pruned meanwhile
  here         integer not null default 0,                     -- of these, in the present stage: retried,
  here_well    integer not null default 0,                     -- succeeded,
  here_ill     integer not null default 0,                     -- failed
  reason       text,                                           -- why stopped
  started_by   text,
  created_at   timestamptz not null,
  updated_at   timestamptz not null,
  finished_at  timestamptz,
  constraint canaries_finished_iff_over check ((state = 'running') = (finished_at is null))
) with (fillfactor = 50);
-- One at a time for a group.
create unique index canaries_running on canaries (kind, coalesce(error_class, '')) where state = 'running';

-- The jobs that a canary has retried: the jobs themselves know nothing of it.
create table canary_jobs (
  canary     uuid not null,
  job_id     uuid not null,
  stage      smallint not null,
  retried_at timestamptz not null,
  outcome    text collate "C" check (outcome in ('success', 'failed', 'cancelled', 'gone')),
  primary key (canary, job_id)
);
create index canary_jobs_open on canary_jobs (canary) where outcome is null;
