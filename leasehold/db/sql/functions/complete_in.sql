-- A task finishes its own job inside a transaction of its own connection.  running -> success.  Whether it counts.
-- For logins that are no workers: with the number of the claim, which only the worker and its task know, it needs no more
-- rights than enqueuing does.
-- Errors: LH003 invalid_argument.
create or replace function complete_in_v1(
  worker text, id uuid, attempt integer, claim_id uuid, result jsonb default null
) returns boolean language plpgsql
security definer set search_path from current
as $$
begin
  if claim_id is null then
    perform refuse('LH003', 'invalid_argument', 'claim_id is null', 'the claim that gave the job has it');
  end if;
  return exists (
    select from complete_v1(worker, array[complete_in_v1.id], array[complete_in_v1.attempt], array[complete_in_v1.result],
      array[complete_in_v1.claim_id]));
end $$;

create or replace function complete_in(
  worker text, id uuid, attempt integer, claim_id uuid, result jsonb default null
) returns boolean language sql
security definer set search_path from current
as $$ select complete_in_v1(worker, id, attempt, claim_id, result) $$;
