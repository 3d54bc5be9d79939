-- One round of upkeep in one round trip: sweep, promote, and how many seconds until there may be more to do (null:
-- nothing runs and nothing waits for its time). Any number of workers may call it at any time; one that gives its name
-- is seen to be alive. Along with it goes what somebody has to do now and then: the samples of the flow, once a minute,
-- and the steps of canaries.

create or replace function errands(at timestamptz) returns void language plpgsql
set lock_timeout = '1s'
as $$
begin
  if exists (select from flow f where f.at = moment_of(errands.at, 60)) and not canaries_run() then
    return;
  end if;
  -- Whatever goes wrong there, jobs are swept.
  begin
    perform sample_flow(at);
    perform canary_step_v1();
  exception when others then
    raise log 'leasehold: upkeep without samples and canaries: % (%)', sqlerrm, sqlstate;
  end;
end $$;

create or replace function upkeep_v1(max integer default 1000, worker text default null)
returns table (swept integer, promoted integer, next_due double precision) language plpgsql
security definer set search_path from current
set lock_timeout = '5s'
as $$
declare
  at timestamptz := clock();
begin
  -- First: the worker's own claims wait for its row, and must not wait for these.
  perform errands(at);
  perform seen(worker, at);
  swept := sweep_v1(max);
  promoted := promote_v1(max);
  next_due := case when greatest(swept, promoted) >= max then 0 else next_due_v1() end;
  if next_due = 0 and swept = 0 and promoted = 0 then
    next_due := 0.5;  -- what is due cannot be moved, because its row is locked: look again, but not at once
  end if;
  if canaries_run() then
    next_due := least(next_due, 1);
  end if;
  if limits_gone() then
    next_due := least(next_due, 0.1);  -- under a limit that was dropped: more than a sweep puts back at once, or locked
  end if;
  if exists (select from unpark_later) then
    -- Keys that were in use when their job ended; or more of them than promote has tried, which are in use by no claim.
    -- And limits that claims have waited for in vain.
    next_due := least(next_due, case when exists (select from unpark_later offset 500) then 0.05
      when exists (select from unpark_later u where not starts_with(u.exclusive_key, chr(1) || 'limit ')) then 0.2
      else 0.5 end);
  end if;
  return next;
end $$;

create or replace function upkeep(max integer default 1000, worker text default null)
returns table (swept integer, promoted integer, next_due double precision) language sql
security definer set search_path from current
as $$ select * from upkeep_v1(max, worker) $$;
