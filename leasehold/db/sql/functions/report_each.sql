-- The same reports as complete, fail_many and release, one by one: called when one of those has raised. Each report is a text:
-- {"outcome": "success" | "failed" | "snoozed" | "cancelled" | "released", "result", "retry_after", "fatal",
-- "error": {"class", "message", "traceback"}}. It is parsed in a subtransaction of its own, so that invalid JSON fails alone.
-- Never waits for a row. Returns for each job:
--   done     the report counts, now or in an earlier call; `state` is the job's state now
--   lost     the lease is gone, nothing was written
--   busy     another session has locked the row, nothing was written: repeat this report alone, later
--   refused  the report cannot be written, `detail` says why. The attempt was recorded as failed for that reason and `state` is the
--            job's state now; without a state not even that could be written, and the lease will expire
-- Errors: LH003 invalid_argument; an error that no row has caused (is_passing) is raised.

create or replace function write_report(
  worker text, id uuid, attempt integer, claim_id uuid, report jsonb, out answer text, out state job_state
) language plpgsql as $$
declare
  counts boolean;
begin
  if exists (select from jobs j where j.id = write_report.id
             and owns(j, write_report.worker, write_report.attempt, write_report.claim_id, clock())) then
    perform from jobs j where j.id = write_report.id for no key update skip locked;
    if not found then
      answer := 'busy';
      return;
    end if;
  end if;
  case coalesce(report ->> 'outcome', 'failed')
    when 'success' then
      counts := exists (select from complete_v1(worker, array[id], array[attempt], array[report -> 'result'], array[claim_id]));
    when 'released' then
      counts := exists (select from release_v1(worker, array[id], array[attempt], array[claim_id]));
    else
      counts := exists (select from fail_many_v1(worker, jsonb_build_array(report
        || jsonb_build_object('id', id, 'attempt', attempt, 'claim_id', claim_id))));
  end case;
  answer := case when counts then 'done' else 'lost' end;
  state := (select j.state from jobs j where counts and j.id = write_report.id);
end $$;

create or replace function report_one(
  worker text, id uuid, attempt integer, claim_id uuid, report text, out answer text, out state job_state, out detail text
) language plpgsql as $$
declare
  code text;
begin
  begin
    select w.answer, w.state into answer, state from write_report(worker, id, attempt, claim_id, report::jsonb) w;
    return;
  exception when others then
    if is_passing(sqlstate) then
      raise;
    end if;
    code := sqlstate;
    detail := left(sqlerrm, 900);
  end;
  begin
    select w.answer, w.state into answer, state
    from write_report(worker, id, attempt, claim_id, jsonb_build_object('error', jsonb_build_object(
      'class', 'leasehold.ReportRefused', 'message', format('the report of this attempt could not be written: %s (%s)', detail, code)))) w;
    answer := case answer when 'done' then 'refused' else answer end;
  exception when others then
    if is_passing(sqlstate) then
      raise;
    end if;
    answer := 'refused';
    detail := left(format('%s (%s), and the failure could not be recorded: %s (%s)', detail, code, sqlerrm, sqlstate), 2000);
  end;
end $$;

create or replace function report_each_v1(worker text, ids uuid[], attempts integer[], claim_ids uuid[], reports text[])
returns table (id uuid, answer text, state job_state, detail text) language plpgsql set enable_seqscan = off as $$
begin
  perform require(coalesce(cardinality(ids), 0) <= 1000, format('%s reports', cardinality(ids)), 'send at most 1000 at once');
  return query
    select t.id, o.answer, o.state, o.detail
    from unnest(ids, attempts, claim_ids, reports) t(id, attempt, claim_id, report)
    cross join lateral report_one(worker, t.id, t.attempt, t.claim_id, t.report) o;
end $$;

-- Renew leases one by one: called when renew has raised. A row that raises is tried once more without its progress; if that raises too,
-- its lease is not renewed (answer `busy`).
create or replace function renew_one(
  worker text, id uuid, attempt integer, claim_id uuid, progress real, note text, lease double precision
) returns text language plpgsql as $$
declare
  problem text;
begin
  foreach progress in array array[progress, null] loop
    begin
      return (select r.answer from renew_v1(worker, array[renew_one.id], array[attempt], array[claim_id], array[progress], array[note],
        array[lease]) r);
    exception when others then
      if is_passing(sqlstate) then
        raise;
      end if;
      problem := format('%s (%s)', sqlerrm, sqlstate);
    end;
  end loop;
  raise log 'leasehold: the lease of job % cannot be renewed: %', id, problem;
  return 'busy';
end $$;

create or replace function renew_each_v1(
  worker text, ids uuid[], attempts integer[], claim_ids uuid[] default null, progress real[] default null,
  progress_notes text[] default null, leases double precision[] default null
) returns table (id uuid, answer text) language plpgsql set enable_seqscan = off as $$
begin
  return query
    select t.id, renew_one(worker, t.id, t.attempt, t.claim_id, t.progress, t.note, t.lease)
    from unnest(ids, attempts, claim_ids, progress, progress_notes, leases) t(id, attempt, claim_id, progress, note, lease);
end $$;
