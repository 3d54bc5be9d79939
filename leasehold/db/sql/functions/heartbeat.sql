-- Renew the leases of running jobs, and note their progress.  running -> running.  Gives the ids still owned; any id
-- that is missing has lost its lease: stop working on it, write nothing more.
-- An expired lease is not renewed, swept or not: its place under a limit and its key may already be somebody else's.
-- The claim_ids are optional; with them a token stays unique even after a failover that lost commits.

create or replace function heartbeat_v1(
  worker text,
  ids uuid[],
  attempts integer[],
  claim_ids uuid[] default null,
  progress real[] default null,
  progress_notes text[] default null
) returns setof uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  at timestamptz;
begin
  update workers w set seen_at = clock() where w.id = worker;
  -- The clock is read after this wait for a claim of the same worker: a lease that expired meanwhile is lost.
  at := clock();
  -- Waits for nobody: one job whose row somebody is writing (its own finish, or the task's own transaction) must not
  -- cost all the others their leases. Such a job is still owned as far as anybody can see.
  return query
    with held as materialized (
      select j.id, t.progress, t.note
      from (select * from unnest(ids, attempts, claim_ids, progress, progress_notes) t(id, attempt, claim_id, progress, note)
            order by t.id) t
      join jobs j on j.id = t.id
      where j.attempt = t.attempt and j.lease_owner = worker and j.state is not distinct from 'running'
        and (t.claim_id is null or j.claim_id = t.claim_id) and j.lease_expires_at > at
      for no key update of j skip locked
    ), renewed as (
      update jobs j
      set lease_expires_at = at + lease_seconds_v1(j.kind) * interval '1 second',
          progress = coalesce(h.progress, j.progress),
          progress_note = case when h.progress is null then j.progress_note else h.note end
      from held h where j.id = h.id
      returning j.id)
    select r.id from renewed r
    union all
    select j.id
    from unnest(ids, attempts, claim_ids) t(id, attempt, claim_id)
    join jobs j on j.id = t.id
    where j.attempt = t.attempt and j.lease_owner = worker and j.state is not distinct from 'running'
      and (t.claim_id is null or j.claim_id = t.claim_id) and j.lease_expires_at > at
      and not exists (select from held h where h.id = j.id);
end $$;

create or replace function heartbeat(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null, progress real[] default null,
  progress_notes text[] default null
) returns setof uuid language sql
security definer set search_path from current
as $$ select heartbeat_v1(worker, ids, attempts, claim_ids, progress, progress_notes) $$;

-- What the database thinks the worker is running. Asked after a reconnect: what it does not run, it releases.
create or replace function owned_v1(worker text)
returns table (id uuid, attempt integer, claim_id uuid, kind text, lease_expires_at timestamptz) language sql stable
security definer set search_path from current
set enable_seqscan = off
as $$
  select j.id, j.attempt, j.claim_id, j.kind, j.lease_expires_at
  from jobs j where j.state = 'running' and j.lease_owner = worker order by j.id
$$;

create or replace function owned(worker text)
returns table (id uuid, attempt integer, claim_id uuid, kind text, lease_expires_at timestamptz) language sql stable
security definer set search_path from current
as $$ select * from owned_v1(worker) $$;
