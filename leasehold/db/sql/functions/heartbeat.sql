-- Renew the leases of running jobs.  running -> running.  Gives the ids still owned; any id that is missing
-- has lost its lease: stop working on it, write nothing more.
-- An expired lease is not renewed, swept or not: its slot and its key may already be somebody else's.
-- The claim_ids are optional; with them a token stays unique even after a failover that lost commits.

create or replace function heartbeat_v1(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null
) returns setof uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  at timestamptz;
  leases jsonb;
  held uuid[];
begin
  -- Locked in id order, as everywhere: a heartbeat and a finish of the same jobs must not deadlock. The
  -- clock is read after the wait.
  select array_agg(t.id), leases_of(array_agg(t.kind)) into held, leases
  from (
    select j.id, j.kind
    from (select * from unnest(ids, attempts, claim_ids) t(id, attempt, claim_id) order by t.id) t
    join jobs j on j.id = t.id
    where j.attempt = t.attempt and j.lease_owner = worker and j.state = 'running'
      and (t.claim_id is null or j.claim_id = t.claim_id)
    for no key update of j) t;
  at := clock();
  update workers w set seen_at = at where w.id = worker;
  return query
    update jobs j
    set lease_expires_at = at + (leases ->> j.kind)::double precision * interval '1 second'
    where j.id = any(held) and j.state = 'running' and j.lease_expires_at > at
    returning j.id;
end $$;

create or replace function heartbeat(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null
) returns setof uuid language sql
security definer set search_path from current
as $$ select heartbeat_v1(worker, ids, attempts, claim_ids) $$;

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
