-- One row never takes others with it. Calls for many jobs do them all in one statement; only when that has raised, the same
-- is done row by row, each in a subtransaction, and the row that raises is found. What becomes of it is decided here.

-- Whether an error says nothing about the row at which it happened: the connection, the transaction (read-only, rolled
-- back, deadlock, serialization), resources (memory, disk), locks, an operator or a timeout, input and output, PostgreSQL
-- itself. Such an error is raised to the caller, who tries again later; no job is set aside for it.
create or replace function is_passing(code text) returns boolean language sql immutable parallel safe
return left(code, 2) in ('08', '25', '40', '53', '55', '57', '58', 'F0', 'HV') or code = 'XX000';

-- Whether an error speaks of the schema or of the rights in it, and so of every row: a broken trigger, a function that is
-- missing while a migration runs. The row is passed over this time, and never set aside.
create or replace function is_of_schema(code text) returns boolean language sql immutable parallel safe
return left(code, 2) in ('0A', '0L', '0P', '26', '28', '2B', '2F', '34', '38', '39', '3B', '3D', '3F', '42');

-- Set a job aside that could not be claimed, swept or promoted because its row raised an error:
-- created, queued, retry, running with an expired lease -> dead, reason set_aside. A person may retry it. False: not even
-- that could be written (a trigger that refuses every change), or its row is locked; then it stays as it is.
create or replace function set_aside(id uuid, doing text, code text, message text) returns boolean language plpgsql
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
  before jobs;
  why text := left(format('%s it raised %s: %s', doing, code, message), 1000);
begin
  if is_of_schema(code) then
    raise log 'leasehold: job % was passed over: %', set_aside.id, why;
    return false;
  end if;
  select * into before from jobs j where j.id = set_aside.id and (j.state in ('created', 'queued', 'retry')
    or j.state is not distinct from 'running' and j.lease_expires_at <= at) for no key update skip locked;
  if not found then
    return false;
  end if;
  if before.state = 'running' then
    insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class, error_message)
    values (before.id, before.attempt, before.lease_owner, 'lease_expired', before.claimed_at, at, 'LeaseExpired', why);
  end if;
  update jobs j
  set state = 'dead', reason = 'set_aside', reason_detail = why, finished_at = at, updated_at = at, parked = false,
      lease_owner = null, lease_expires_at = null, retry_count = j.retry_count + (before.state = 'running')::integer
  where j.id = before.id;
  if before.exclusive_key is not null and before.state = 'running' then
    perform unpark_ended(array[before.exclusive_key], false);
  elsif before.exclusive_key is not null then
    perform unpark(array[before.exclusive_key]);
  end if;
  raise log 'leasehold: job % was set aside: %', set_aside.id, why;
  return true;
exception when others then
  if is_passing(sqlstate) then
    raise;
  end if;
  raise log 'leasehold: job % can be neither used nor set aside: %, then %: %', set_aside.id, why, sqlstate, sqlerrm;
  return false;
end $$;
