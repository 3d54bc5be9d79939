-- Changes of many jobs at once, and of one that waits. Each call does a bounded amount: at most `max` jobs, after reading
-- no more than `scan`. `capped`: there may be more that match; call again. A locked job is skipped: a transaction that
-- holds many jobs must not wait for one, or two of them could wait for each other. Each job goes through retry or cancel
-- itself, so that both follow the same rules.
-- Errors: LH002 job_unknown, LH003 invalid_argument.

-- At most `max` jobs in these states that match, and whether there may be more.
create or replace function find_many(
  filter jsonb, allowed text[], max integer, scan integer, out ids uuid[], out capped boolean
) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  state text;
  wanted jsonb;
  here uuid[];
  scanned integer;
begin
  perform check_filter(filter);
  perform require(max between 1 and 10000 and scan between 1 and 1000000, format('max %s, scan %s', max, scan),
    'take 1 to 10000 jobs and let 1 to 1000000 be read');
  wanted := coalesce(states_of(filter), to_jsonb(allowed));
  perform require(wanted <@ to_jsonb(allowed), format('state %s', filter ->> 'state'),
    format('this is for jobs that are %s', array_to_string(allowed, ', ')));
  ids := '{}';
  capped := false;
  foreach state in array allowed loop
    continue when not wanted ? state;
    filter := filter || jsonb_build_object('state', jsonb_build_array(state));
    if state in ('created', 'retry') then
      -- From the index of jobs that wait for their time: by ids the scan would read the whole history.
      select coalesce(array_agg(t.id) filter (where t.fits and contents_fit(filter, t.id)), '{}'), count(*)
      into here, scanned
      from (select j.id, job_fits(filter, j) as fits
            from jobs j where j.state in ('created', 'retry') and j.accepted order by j.run_at limit scan) t;
      if state = 'created' then
        -- Jobs that were submitted and not accepted: only the latest are searched.
        here := here || array(select f.id from find_jobs(filter, null, max, least(scan, 10000)) f
          join jobs j on j.id = f.id where not j.accepted);
      end if;
      capped := capped or scanned >= scan;
    else
      select coalesce(array_agg(f.id) filter (where f.id is not null), '{}'), coalesce(bool_or(f.id is null), false)
      into here, capped from (select f.id from find_jobs(filter, null, max + 1 - cardinality(ids), scan) f
        union all select null where find_many.capped) f;
    end if;
    ids := ids || here;
    if cardinality(ids) > max then
      capped := true;
      ids := ids[:max];
      exit;
    end if;
  end loop;
end $$;

-- Retry or cancel the jobs that match and are in one of these states.
create or replace function change_many(
  change text, filter jsonb, allowed text[], max integer, dry_run boolean, scan integer, why text, notify boolean,
  out matched integer, out changed integer, out capped boolean
) language plpgsql as $$
declare
  found_now record := find_many(filter, allowed, max, scan);
  mine uuid[];
begin
  matched := cardinality(found_now.ids);
  capped := found_now.capped;
  changed := 0;
  if dry_run or matched = 0 then
    return;
  end if;
  -- In a statement of its own: a row that the same statement has changed, by unparking it, would be skipped.
  mine := array(
    select j.id from jobs j
    where j.id = any(found_now.ids) and j.state is distinct from 'success' and (j.state is not distinct from 'dead') = (change = 'retry')
    order by j.id for no key update skip locked);
  select count(*) filter (where case change when 'retry' then retry_v1(t.id, false) else cancel_v1(t.id, why) end)
  into changed from unnest(mine) t(id);
  capped := capped or changed < matched;
  if notify then
    perform announce(array(select distinct j.queue from jobs j where j.id = any(mine)));
  end if;
end $$;

-- Retry the dead jobs that match, the latest first where there are more than `max`.
create or replace function retry_many_v1(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, scan integer default 50000,
  notify boolean default true
) returns table (matched integer, changed integer, capped boolean) language sql
as $$ select * from change_many('retry', filter, '{dead}', max, dry_run, scan, null, notify) $$;

create or replace function cancel_many_v1(
  filter jsonb default '{}', max integer default 1000, dry_run boolean default false, why text default null,
  scan integer default 50000
) returns table (matched integer, changed integer, capped boolean) language sql
as $$ select * from change_many('cancel', filter, '{created,retry,queued,running}', max, dry_run, scan, why, false) $$;
