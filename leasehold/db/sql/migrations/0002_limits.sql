-- Limits: how many jobs may run at once, in all, of a queue, of a kind, of the exclusive keys that begin alike.
-- See docs/decisions/0010-limits.md.

create table limits (
  scope       text collate "C" not null check (scope in ('global', 'queue', 'kind', 'key')),
  name        text collate "C" not null default '',     -- the queue, the kind, the beginning of the keys
  max_running integer not null check (max_running >= 0),
  ends_before text collate "C",                         -- the first text behind all that begin with the name
  updated_at  timestamptz not null,
  primary key (scope, name),
  check ((scope = 'global') = (name = '')),
  check ((scope = 'key') = (ends_before is not null))
);

-- Under which key limit a job is parked. Means nothing while it is not parked; null: it waits for its own key.
alter table jobs add column parked_under text collate "C";

-- These cost jobs with an exclusive key only: for any other the first condition fails and nothing is written. The
-- states are compared as the queries do it, so that no other partial index is taken in their place.
-- Who waits under a limit: one range per queue and kind, in claim order.
create index jobs_parked_under on jobs (parked_under, queue, kind, (-priority), id)
  where exclusive_key is not null and parked and parked_under is not null;
-- What of a key or of a range of keys may run now, without those that are parked already.
create index jobs_exclusive_runnable on jobs (exclusive_key, (-priority), id)
  where exclusive_key is not null and state is not distinct from 'queued' and parked is distinct from true;
-- What of a range of keys is running.
create index jobs_exclusive_running on jobs (exclusive_key)
  where exclusive_key is not null and state is not distinct from 'running';
