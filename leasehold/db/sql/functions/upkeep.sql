-- One round of upkeep in one round trip: sweep, promote, and how many seconds until there may be more to do (null:
-- nothing runs and nothing waits for its time). Any number of workers may call it at any time; one that gives its name
-- is seen to be alive.

create or replace function upkeep_v1(max integer default 1000, worker text default null)
returns table (swept integer, promoted integer, next_due double precision) language plpgsql
security definer set search_path from current
as $$
declare
  at timestamptz := clock();
begin
  update workers w set seen_at = at where w.id = worker;
  swept := sweep_v1(max);
  promoted := promote_v1(max);
  next_due := case when greatest(swept, promoted) >= max then 0 else next_due_v1() end;
  return next;
end $$;

create or replace function upkeep(max integer default 1000, worker text default null)
returns table (swept integer, promoted integer, next_due double precision) language sql
security definer set search_path from current
as $$ select * from upkeep_v1(max, worker) $$;
