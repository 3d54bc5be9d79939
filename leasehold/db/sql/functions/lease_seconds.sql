-- How long a lease of a kind lasts. The only source of lease durations, for jobs and for schedules.

-- For our own functions: a single expression, so that it is inlined.
create or replace function lease_of(kind text) returns double precision language sql stable
return coalesce((select k.lease_seconds from kinds k where k.kind = lease_of.kind), 15);

create or replace function lease_seconds_v1(kind text) returns double precision language sql stable
security definer set search_path from current
as $$ select lease_of(kind) $$;

create or replace function lease_seconds(kind text) returns double precision language sql stable
security definer set search_path from current
as $$ select lease_seconds_v1(kind) $$;

-- The leases of many kinds at once, as {kind: seconds}: one look-up a kind, not one a job.
create or replace function leases_of(kinds text[]) returns jsonb language sql stable
as $$ select jsonb_object_agg(k, lease_of(k)) from unnest(kinds) k $$;

-- A worker, or anybody who may operate, declares what its tasks need. The last word wins.
-- Error: LH003 invalid_argument.
create or replace function declare_kinds_v1(kinds text[], lease_seconds double precision[]) returns void language plpgsql
security definer set search_path from current
as $$
declare
  bad record;
begin
  select * into bad from unnest(kinds, lease_seconds) t(kind, lease)
  where t.kind is null or t.kind = '' or t.lease is null or t.lease not between 0.1 and 86400 limit 1;
  if found then
    perform refuse('LH003', 'invalid_argument', format('kind %L with a lease of %s s', bad.kind, bad.lease),
      'a lease lasts between 0.1 s and 86400 s');
  end if;
  -- In one order everywhere, or two workers that start together deadlock.
  insert into kinds as k (kind, lease_seconds, updated_at)
  select t.kind, t.lease, clock() from unnest(kinds, lease_seconds) t(kind, lease) order by t.kind
  on conflict (kind) do update set lease_seconds = excluded.lease_seconds, updated_at = excluded.updated_at
  where k.lease_seconds <> excluded.lease_seconds;
end $$;

create or replace function declare_kinds(kinds text[], lease_seconds double precision[]) returns void language sql
security definer set search_path from current
as $$ select declare_kinds_v1(kinds, lease_seconds) $$;
