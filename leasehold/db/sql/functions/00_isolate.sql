-- One row never makes a call fail for others. Calls for many jobs change them all in one statement; only if that raises, they are
-- changed row by row, each in a subtransaction, and the row that raises is set aside here.

-- Return whether an error was not caused by the row at which it was raised: connection, transaction (read-only, rolled back, deadlock,
-- serialization), resources (memory, disk), locks, operator intervention, timeouts, input and output, PostgreSQL itself.
-- Such an error is raised to the caller, which tries again later; no job is set aside for it.
create or replace function is_passing(code text) returns boolean language sql immutable parallel safe
return left(code, 2) in ('08', '25', '40', '53', '55', '57', '58', 'F0', 'HV') or code = 'XX000';

-- Return whether an error is about the schema or privileges in it, and so concerns every row: a broken trigger, a function that is
-- missing while a migration runs. The row is skipped this time, and never set aside.
create or replace function is_of_schema(code text) returns boolean language sql immutable parallel safe
return left(code, 2) in ('0A', '0L', '0P', '26', '28', '2B', '2F', '34', '38', '39', '3B', '3D', '3F', '42');

-- Send a notice for each of these jobs, which failed without a report: no worker could log it. The worker whose call this is
-- logs it, once the call has succeeded (db/connections/link.py).
create or replace function notice_failures(ids uuid[]) returns void language plpgsql as $$
declare
  failure jsonb;
begin
  for failure in
    select jsonb_build_object('job_id', j.id, 'kind', j.kind, 'queue', j.queue, 'attempt', j.attempt, 'failures', j.retry_count,
      'max_attempts', j.max_attempts, 'state', j.state, 'reason', j.reason, 'detail', j.reason_detail)
    from jobs j where j.id = any(ids) order by j.id
  loop
    raise notice 'leasehold: unreported failure' using detail = failure;
  end loop;
end $$;

-- Set a job aside that could not be claimed, swept or promoted because its row raised an error:
-- created, queued, retry, running with an expired lease -> dead, reason set_aside. An operator may retry it. False: not even
-- that could be written (a trigger that refuses every change), or its row is locked; then nothing changes.
create or replace function set_aside(id uuid, doing text, code text, message text) returns boolean language plpgsql as $$
declare
  at timestamptz := clock();
  before jobs;
  why text := left(format('%s it raised %s: %s', doing, code, message), 1000);
begin
  if is_of_schema(code) then
    raise log 'leasehold: job % was skipped: %', set_aside.id, why;
    return false;
  end if;
  select * into before from jobs j where j.id = set_aside.id and (j.state in ('created', 'queued', 'retry')
    or j.state is not distinct from 'running' and j.lease_expires_at <= at) for no key update skip locked;
  if not found then
    return false;
  end if;
  perform end_job(before, 'set_aside', why, 'lease_expired', true);
  raise log 'leasehold: job % was set aside: %', set_aside.id, why;
  perform notice_failures(array[set_aside.id]);
  return true;
exception when others then
  if is_passing(sqlstate) then
    raise;
  end if;
  raise log 'leasehold: job % can be neither used nor set aside: %, then %: %', set_aside.id, why, sqlstate, sqlerrm;
  return false;
end $$;

-- Refuse a number of jobs to sweep or promote that is none. Null: all.
create or replace function check_most(max integer) returns void language sql as $$
  select require(false, format('max %s', max), 'give 0 or more, or null for all') where max < 0
$$;

-- Sweep (`expire`) or promote jobs that the caller has locked. A row that raises is set aside, and the others are changed.
-- Returns how many were changed.
create or replace function isolated(step text, ids uuid[]) returns integer language plpgsql as $$
declare
  changed integer := 0;
  id uuid;
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;
  begin
    return case step when 'expire' then expire(ids) else promote_these(ids) end;
  exception when others then
    if is_passing(sqlstate) then
      raise;
    end if;
  end;
  foreach id in array ids loop
    begin
      changed := changed + case step when 'expire' then expire(array[id]) else promote_these(array[id]) end;
    exception when others then
      if is_passing(sqlstate) then
        raise;
      end if;
      changed := changed + set_aside(id, case step when 'expire' then 'when its lease had expired'
        else 'when its time had come' end, sqlstate, sqlerrm)::integer;
    end;
  end loop;
  return changed;
end $$;
