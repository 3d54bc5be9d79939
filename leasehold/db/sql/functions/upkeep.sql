-- One round of upkeep in one round trip: sweep, promote, and return how many seconds later there may be more to do (null: no job
-- runs and none waits for its time). Any number of workers may call it at any time; one that passes its
-- name is marked as alive. It also takes the samples of the flow, once a minute, and the steps of canaries.

create or replace function errands(at timestamptz) returns void language plpgsql set lock_timeout = '1s' as $$
declare
  sampled constant boolean := exists (select from flow f where f.at = moment_of(errands.at, 60));
begin
  if sampled and not canaries_run() then
    return;
  end if;
  -- An error there must not stop the sweep.
  begin
    perform sample_flow(at);
    perform canary_step();
  exception when others then
    raise log 'leasehold: upkeep without samples and canaries: % (%)', sqlerrm, sqlstate;
  end;
  begin
    -- Of many workers, the one that has taken the sample.
    perform unpark_behind_locked() where not sampled and exists (select from flow f where f.at = moment_of(errands.at, 60));
  exception when others then
    raise log 'leasehold: upkeep without the keys of locked jobs: % (%)', sqlerrm, sqlstate;
  end;
end $$;

create or replace function upkeep_v1(max integer default 1000, worker text default null)
returns table (swept integer, promoted integer, next_due double precision) language plpgsql set lock_timeout = '5s' as $$
declare
  at timestamptz := clock();
begin
  -- A full queue of notifications is emptied by the next commit that notifies, and refuses each of them: this call
  -- empties it once the session that held it up has gone.
  perform pg_notification_queue_usage();
  perform errands(at);
  swept := sweep_v1(max);
  promoted := promote_v1(max);
  next_due := case when greatest(swept, promoted) >= max then 0 else next_due_v1() end;
  if next_due = 0 and swept = 0 and promoted = 0 then
    next_due := 0.5;  -- the rows of due jobs are locked: try again, but not at once
  end if;
  if canaries_run() then
    next_due := least(next_due, 1);
  end if;
  if limits_gone() then
    next_due := least(next_due, 0.1);  -- jobs are still parked under a dropped limit: put back the next ones soon
  end if;
  next_due := least(next_due, case
    when exists (select from unpark_later offset 500) then 0.05      -- more keys than promote has tried, in use by no claim
    when exists (select from unpark_later) then 0.2                  -- keys that a claim uses
    when exists (select from limits_to_recheck) then 0.5 end);       -- limits that another transaction has locked
  perform seen(worker, at);  -- last: a claim of the worker waits only a moment for its row
  return next;
end $$;
