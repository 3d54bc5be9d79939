-- The same as claim, row by row: called with the same arguments when a claim has raised. A job whose row raises, or whose
-- payload no worker can read, is set aside (dead, reason set_aside), and the next one is tried. Looks at no more than 100
-- jobs, the first of each lane first, and does not wait for limits, keys or rows. What is no row's fault (is_passing) is
-- raised, and so is an error that each of three jobs or more has raised alike: that is no single job's fault either, and
-- none of them is set aside.
-- Claim ids of version 7 must grow for each worker name, as in claim: an older one takes nothing. Others are in no order.
-- Errors: LH003 invalid_argument.

-- The first jobs of these lanes: the best of each, then the second best, so that no lane hides another. Of more lanes than
-- `most`, others each time.
create or replace function first_of_lanes(look jsonb, most integer) returns uuid[] language plpgsql
as $$
begin
  return array(
    select j.id
    from jsonb_to_recordset(look) l(queue text, kind text, priority smallint, id uuid)
    cross join lateral (
      select -j.priority as rank, j.id, row_number() over (order by -j.priority, j.id) as nth
      from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
        and (-j.priority, j.id) > (coalesce(-l.priority, -32768)::smallint,
          coalesce(l.id, '00000000-0000-0000-0000-000000000000'))
        and j.run_at <= clock() and j.retry_count < j.max_attempts
      order by -j.priority, j.id limit most) j
    order by j.nth, case when jsonb_array_length(look) > most then random() end, j.rank, j.id limit most);
end $$;

-- Set aside what has raised, unless it does not look like the fault of single rows. Raises the first error if nothing
-- could be taken and nothing set aside: the caller must not spin.
create or replace function settle_raised(raised jsonb, taken integer) returns void language plpgsql
as $$
declare
  bad record;
  aside integer := 0;
begin
  if taken > 0 or jsonb_array_length(raised) < 3
     or (select count(distinct r ->> 'code') from jsonb_array_elements(raised) r) > 1
     or raised #>> '{0,code}' in ('22023', '54000') then
    for bad in select * from jsonb_to_recordset(raised) r(id uuid, code text, message text) loop
      aside := aside + set_aside(bad.id, 'when it was claimed', bad.code, bad.message)::integer;
    end loop;
  end if;
  if taken = 0 and aside = 0 and jsonb_array_length(raised) > 0 then
    raise exception using errcode = raised #>> '{0,code}', message = raised #>> '{0,message}',
      detail = format('%s jobs raised when they were claimed, the first is %s', jsonb_array_length(raised), raised #>> '{0,id}');
  end if;
end $$;

create or replace function claim_each_v1(
  worker text,
  queues text[] default null,
  kinds text[] default null,
  count integer default 1,
  claim_id uuid default null,
  lanes jsonb default null
) returns table (
  id uuid, kind text, queue text, payload jsonb, attempt integer, retry_count smallint, max_attempts smallint,
  priority smallint, lease_seconds double precision, run_at timestamptz, claimed_at timestamptz
) language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  token uuid := coalesce(claim_each_v1.claim_id, gen_random_uuid());
  look jsonb := claim_each_v1.lanes;
  candidate uuid;
  limited record;
  problem text;
  broken text;
  taken uuid[] := '{}';
  bytes bigint := claim_bytes();
  raised jsonb := '[]';
begin
  perform check_worker(worker);
  if look is not null then
    perform check_lanes(look);
  end if;
  if not begin_claim(worker, token) then
    if look is null then
      look := (select jsonb_agg(jsonb_build_object('queue', l.queue, 'kind', l.kind)) from lanes_ready(queues, kinds) l);
    end if;
    limited := holds_exist();
    if limited.of_queues then
      look := lanes_not_paused(look);
    end if;
    if limited.of_lanes then
      look := (select a.lanes from admit_lanes(look, claim_each_v1.count, false, false, null) a);
    end if;
    foreach candidate in array first_of_lanes(look, 100) loop
      exit when cardinality(taken) >= claim_each_v1.count or bytes < 0;
      begin
        if take_one(candidate, worker, token, false, limited.of_lanes, limited.of_keys, limited.of_queues) then
          -- Far above what may enter: a job that an older release recorded is given like any other.
          problem := (select json_fault('the payload', j.payload, 67108864) from jobs j where j.id = candidate);
          if problem like '%larger%' then
            raise program_limit_exceeded using message = problem;
          end if;
          taken := taken || candidate;
          bytes := bytes - (select pg_column_size(array[j.payload]) from jobs j where j.id = candidate);
        end if;
      exception when others then
        get stacked diagnostics broken = constraint_name;
        if is_passing(sqlstate) then
          raise;
        elsif broken <> 'jobs_current' then  -- that one: another session has taken the key
          raised := raised || jsonb_build_object('id', candidate, 'code', sqlstate, 'message', sqlerrm);
        end if;
      end;
    end loop;
    perform settle_raised(raised, cardinality(taken));
    update workers w set claim_id = token, seen_at = clock() where w.id = worker;
  end if;
  return query
    select j.id, j.kind, j.queue, j.payload, j.attempt, j.retry_count, j.max_attempts, j.priority,
      lease_of(j.kind), j.run_at, j.claimed_at
    from jobs j where j.state = 'running' and j.lease_owner = worker and j.claim_id = token and j.lease_expires_at > clock()
    order by -j.priority, j.id;
end $$;

create or replace function claim_each(
  worker text, queues text[] default null, kinds text[] default null, count integer default 1,
  claim_id uuid default null, lanes jsonb default null
) returns table (
  id uuid, kind text, queue text, payload jsonb, attempt integer, retry_count smallint, max_attempts smallint,
  priority smallint, lease_seconds double precision, run_at timestamptz, claimed_at timestamptz
) language sql
security definer set search_path from current
as $$ select * from claim_each_v1(worker, queues, kinds, count, claim_id, lanes) $$;
