-- Lines that tasks log while they run, stored for each attempt: at most 201 of 1,000 characters.
-- Written by the owner only, guarded by owns(). Returns the ids whose lines were stored: not those whose row another session
-- has locked.

create or replace function add_logs_v1(worker text, ids uuid[], attempts integer[], claim_ids uuid[], lines jsonb[])
returns setof uuid language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms' as $$
declare
  at timestamptz := clock();
begin
  return query
    with free as materialized (
      select o.job_id, o.attempt
      from (select * from unnest(ids, attempts) t(id, attempt) order by t.id) t
      join job_logs o on o.job_id = t.id and o.attempt = t.attempt
      for no key update of o skip locked)
    insert into job_logs as l (job_id, attempt, lines)
    select j.id, j.attempt, tidy_lines(t.lines)
    from (select * from unnest(ids, attempts, claim_ids, lines) t(id, attempt, claim_id, lines) order by t.id) t
    join jobs j on j.id = t.id
    where owns(j, worker, t.attempt, t.claim_id, at) and jsonb_typeof(t.lines) = 'array'
      and (not exists (select from job_logs o where o.job_id = t.id and o.attempt = t.attempt)
        or exists (select from free o where o.job_id = t.id and o.attempt = t.attempt))
    on conflict (job_id, attempt) do update
    set lines = case when jsonb_array_length(l.lines) < 200 then l.lines || excluded.lines else l.lines end
    returning l.job_id;
end $$;

-- Return the lines of a job's attempts, the oldest attempt first. For operators.
create or replace function logs_v1(job_id uuid) returns table (attempt integer, lines jsonb) language sql stable
as $$ select l.attempt, l.lines from job_logs l where l.job_id = logs_v1.job_id order by l.attempt $$;
