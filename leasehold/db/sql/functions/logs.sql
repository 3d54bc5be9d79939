-- What tasks say while they run, kept beside their attempt. Bounded: about 200 lines an attempt, of 1,000 characters.
-- Written by the owner only, guarded by owns(). Gives the ids whose lines were taken.

create or replace function add_logs_v1(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[], lines jsonb[]
) returns setof uuid language plpgsql
security definer set search_path from current
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan set lock_timeout = '250ms'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  return query
    insert into job_logs as l (job_id, attempt, lines)
    select j.id, j.attempt, tidy_lines(t.lines)
    from (select * from unnest(ids, attempts, claim_ids, lines) t(id, attempt, claim_id, lines) order by t.id) t
    join jobs j on j.id = t.id
    where owns(j, worker, t.attempt, t.claim_id, at) and jsonb_typeof(t.lines) = 'array'
    on conflict (job_id, attempt) do update
    set lines = case when jsonb_array_length(l.lines) < 200 then l.lines || excluded.lines else l.lines end
    returning l.job_id;
end $$;

create or replace function add_logs(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[], lines jsonb[]
) returns setof uuid language sql
security definer set search_path from current
as $$ select add_logs_v1(worker, ids, attempts, claim_ids, lines) $$;

-- For operators: what an attempt said, oldest attempt first.
create or replace function logs_v1(job_id uuid) returns table (attempt integer, lines jsonb) language sql stable
security definer set search_path from current
as $$ select l.attempt, l.lines from job_logs l where l.job_id = logs_v1.job_id order by l.attempt $$;

create or replace function logs(job_id uuid) returns table (attempt integer, lines jsonb) language sql stable
security definer set search_path from current
as $$ select * from logs_v1(job_id) $$;
