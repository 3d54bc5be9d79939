-- The optional history: every transition of every job, in the transaction that made it. Empty until history(true).
-- See docs/decisions/0017-history-and-verify.md.

-- Append-only. (xid, seq) is the order in which a reader can page without missing what was committed late; along seq
-- the events of one job come in their order. Nothing of what a job carries is in here.
create table events (
  seq              bigint generated always as identity,
  xid              xid8 not null,                       -- the transaction
  at               timestamptz not null,
  job_id           uuid not null,
  kind             text collate "C" not null,
  queue            text collate "C" not null,
  from_state       job_state,                           -- null: the job was recorded
  to_state         job_state not null,
  attempt          integer not null,
  owner            text collate "C",                    -- who holds the lease, or held it until now
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
-- One job's events: its timeline, and what prune takes with it.
create index events_job on events (job_id, seq);
