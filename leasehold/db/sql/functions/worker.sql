-- Workers announce themselves, so that people can see who lives and what nobody handles. Ownership never
-- depends on it: that is what leases are for.
-- Errors: LH003 invalid_argument.

create or replace function check_worker(worker text) returns void language plpgsql
as $$
begin
  if worker is null or worker = '' or octet_length(worker) > 200 then
    perform refuse('LH003', 'invalid_argument', format('worker %L', left(worker, 300)), 'a worker has a name of 1 to 200 bytes');
  end if;
end $$;

-- Lock the worker's row and say whether this claim was answered before. So was one that the network held back while its
-- worker went on to a later one: ids of version 7 are in the order in which they were sent. It takes nothing.
create or replace function begin_claim(worker text, claim_id uuid) returns boolean language plpgsql
as $$
declare
  last_claim uuid;
begin
  select w.claim_id into last_claim from workers w where w.id = worker for no key update;
  if not found then
    insert into workers (id, started_at, seen_at) values (worker, clock(), clock()) on conflict do nothing;
    select w.claim_id into last_claim from workers w where w.id = worker for no key update;
  end if;
  return coalesce(last_claim = claim_id
    or last_claim > claim_id and substr(last_claim::text, 15, 1) = '7' and substr(claim_id::text, 15, 1) = '7', false);
end $$;

create or replace function start_worker_v1(
  worker text,
  host text default null,
  pid integer default null,
  queues text[] default null,
  kinds text[] default null,
  lease_seconds double precision[] default null,
  slots integer default null
) returns void language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
declare
  at timestamptz := clock();
begin
  perform check_worker(worker);
  perform check_names('queues', queues);
  perform check_names('kinds', kinds);
  if lease_seconds is not null then
    perform declare_kinds_v1(kinds, lease_seconds);
  end if;
  insert into workers as w (id, host, pid, queues, kinds, slots, started_at, seen_at)
  values (worker, shortened(host, 255), pid, queues, kinds, slots, at, at)
  on conflict (id) do update
  set host = excluded.host, pid = excluded.pid, queues = excluded.queues, kinds = excluded.kinds,
      slots = excluded.slots, seen_at = at, stopped_at = null;
end $$;

create or replace function start_worker(
  worker text, host text default null, pid integer default null, queues text[] default null, kinds text[] default null,
  lease_seconds double precision[] default null, slots integer default null
) returns void language sql
security definer set search_path from current
as $$ select start_worker_v1(worker, host, pid, queues, kinds, lease_seconds, slots) $$;

create or replace function stop_worker_v1(worker text) returns void language plpgsql
security definer set search_path from current
set lock_timeout = '3s'
as $$
declare
  at timestamptz := clock();
begin
  update workers w set stopped_at = at, seen_at = at where w.id = worker;
end $$;

create or replace function stop_worker(worker text) returns void language sql
security definer set search_path from current
as $$ select stop_worker_v1(worker) $$;
