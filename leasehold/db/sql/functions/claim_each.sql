-- The same as claim, row by row: called with the same arguments when a claim has raised. A job whose row raises, or whose
-- payload no worker can read, is set aside (dead, reason set_aside), and the next one is tried. Tries at most 100 jobs, the first of
-- each lane first, and does not wait for limits, keys or rows. Errors that are not caused by a row (is_passing) are raised, and so is
-- an error that three jobs or more have raised alike: no single job caused it, and none of them is set aside. If 100 have, up to
-- 100 of the last jobs are tried too: one that can be claimed shows that the others are at fault.
-- Errors: LH003 invalid_argument.

-- The first 100 jobs of these lanes: the best of each, then the second best, so that no lane hides another. Of more than 100 lanes,
-- a different choice each time. If there are more jobs, the last ones follow.
create or replace function candidates_of(lanes lane[]) returns uuid[] language plpgsql as $$
declare
  first constant uuid[] := array(
    select j.id
    from unnest(lanes) l
    cross join lateral (
      select -j.priority as rank, j.id, row_number() over (order by -j.priority, j.id) as nth
      from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
        and (-j.priority, j.id) > (l.rank, l.id) and j.run_at <= clock() and j.retry_count < j.max_attempts
      order by -j.priority, j.id limit 100) j
    order by j.nth, case when cardinality(lanes) > 100 then random() end, j.rank, j.id limit 100);
begin
  return first || case when cardinality(first) = 100 then array(
    select j.id
    from unnest(lanes) l
    cross join lateral (
      select j.id from jobs j
      where j.queue = l.queue and j.kind = l.kind and j.state = 'queued' and not j.parked
        and (-j.priority, j.id) > (l.rank, l.id) and j.run_at <= clock() and j.retry_count < j.max_attempts
      order by -j.priority desc, j.id desc limit 100) j
    where j.id <> all(first) limit 100) end;
end $$;

-- Whether no single job is at fault: three or more have raised alike, and not an error that only a payload causes.
create or replace function raised_alike(raised jsonb) returns boolean language plpgsql as $$
begin
  return jsonb_array_length(raised) >= 3 and raised #>> '{0,code}' not in ('22023', '54000')
    and (select count(distinct r ->> 'code') from jsonb_array_elements(raised) r) = 1;
end $$;

-- Set aside the jobs that have raised, unless their errors are alike. Raises the first error if no job was taken or set aside, so that
-- the caller does not repeat the claim at once.
create or replace function settle_raised(raised jsonb, taken integer) returns void language plpgsql as $$
declare
  bad record;
  aside integer := 0;
begin
  if taken > 0 or not raised_alike(raised) then
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
  worker text, queues text[] default null, kinds text[] default null, count integer default 1,
  claim_id uuid default null, lanes jsonb default null
) returns setof claimed_job language plpgsql set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s' as $$
declare
  token constant uuid := coalesce(claim_each_v1.claim_id, gen_random_uuid());
  bounds claim_bounds;
  ready lane[];
  candidate uuid;
  content jsonb;  -- its payload
  problem text;
  broken text;
  taken integer := 0;
  tried integer := 0;
  bytes bigint := max_claim_bytes();
  raised jsonb := '[]';
begin
  perform check_worker(worker, claim_each_v1.count);
  ready := case when lanes is null then lanes_ready(queues, kinds) else lanes_of(lanes) end;
  if not begin_claim(worker, token) then
    bounds := bounds_in_force();
    ready := (select a.lanes from admit_lanes(ready, claim_each_v1.count, false, bounds, '{}') a);
    foreach candidate in array candidates_of(ready) loop
      exit when taken >= claim_each_v1.count or bytes < 0 or tried >= 100 and (taken > 0 or not raised_alike(raised));
      tried := tried + 1;
      begin
        content := take_one(candidate, worker, token, false, bounds);
        if content is not null then
          problem := json_fault('the payload', content, on_record => true);
          if problem is not null then
            raise program_limit_exceeded using message = problem;
          end if;
          taken := taken + 1;
          bytes := bytes - octet_length(content::text);
        end if;
      exception when others then
        get stacked diagnostics broken = constraint_name;
        if is_passing(sqlstate) then
          raise;
        elsif broken <> 'jobs_current' then  -- jobs_current: another session has taken the key
          raised := raised || jsonb_build_object('id', candidate, 'code', sqlstate, 'message', sqlerrm);
        end if;
      end;
    end loop;
    perform settle_raised(raised, taken);
    perform note_claim(worker, token);
  end if;
  return query select * from taken_by(worker, token);
end $$;
