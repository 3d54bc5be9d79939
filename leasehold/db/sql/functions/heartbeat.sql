-- Renew the leases of running jobs, and record their progress.  running -> running.
-- Waits for nothing: not for a row that another session writes, not for a claim of the same worker, not for a limit; for a
-- lock on a whole table (ALTER TABLE) a second at most. One answer for each id:
--   renewed  the lease starts again now
--   busy     owned as far as can be seen, but its row is locked, so its lease was NOT renewed: try again at once
--   lost     the lease is gone, expired or another attempt's: stop working on it, write nothing more
-- An expired lease is not renewed, swept or not: another job may already have its place under a limit, and its key.
-- The claim_ids are optional; with them a token stays unique even after a failover that lost commits.
-- `leases` are the lengths, in seconds, that the claim returned: another release that declares a shorter lease for the kind
-- takes nothing from an attempt that runs, and `kinds` is not read. Without them the lease of the kind as it is now.
-- Error: 55P03 lock_not_available.

create or replace function renew_v1(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null, progress real[] default null,
  progress_notes text[] default null, leases double precision[] default null
) returns table (id uuid, answer text) language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set lock_timeout = '1s' as $$
declare
  at timestamptz := clock();
begin
  return query
    with held as materialized (
      select j.id, t.progress, t.note, t.lease
      from (select * from unnest(ids, attempts, claim_ids, progress, progress_notes, leases)
              t(id, attempt, claim_id, progress, note, lease) order by t.id) t
      join jobs j on j.id = t.id
      where owns(j, worker, t.attempt, t.claim_id, at)
      for no key update of j skip locked
    ), renewed as (
      update jobs j
      -- lease_of is not inlined: where the lease is given, `kinds` is neither read nor locked.
      set lease_expires_at = at + interval '1 second'
            * case when h.lease is null then lease_of(j.kind) else least(greatest(h.lease, min_lease()), max_lease()) end,
          progress = coalesce(tidy_progress(h.progress), j.progress),
          progress_note = case when h.progress is null then j.progress_note else shortened(h.note, 500) end,
          -- Only what clients see moves it: a renewal alone does not.
          updated_at = case when h.progress is not null and (tidy_progress(h.progress), shortened(h.note, 500))
            is distinct from (j.progress, j.progress_note) then at else j.updated_at end
      from held h where j.id = h.id
      returning j.id)
    select r.id, 'renewed' from renewed r
    union all
    select t.id, case when j.id is not null then 'busy' else 'lost' end
    from (select distinct t.id, t.attempt, t.claim_id from unnest(ids, attempts, claim_ids) t(id, attempt, claim_id)) t
    left join jobs j on j.id = t.id and owns(j, worker, t.attempt, t.claim_id, at)
    where not exists (select from held h where h.id = t.id);
  -- Last, and only if the worker's row is free: the leases matter more than when the worker was seen.
  perform seen(worker, at);
end $$;

-- The ids that are still owned, whether renewed or busy.
create or replace function heartbeat_v1(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null, progress real[] default null,
  progress_notes text[] default null
) returns setof uuid language sql
as $$ select h.id from renew_v1(worker, ids, attempts, claim_ids, progress, progress_notes) h where h.answer <> 'lost' $$;

-- The jobs that the worker owns. Called after a reconnect: the worker releases those that it does not run.
create or replace function owned_v1(worker text)
returns table (id uuid, attempt integer, claim_id uuid, kind text, lease_expires_at timestamptz) language sql stable
set enable_seqscan = off as $$
  select j.id, j.attempt, j.claim_id, j.kind, j.lease_expires_at
  from jobs j where j.state = 'running' and j.lease_owner = worker order by j.id
$$;
