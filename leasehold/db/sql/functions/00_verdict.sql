-- How an attempt that did not succeed ends: the reason the job is dead for, or null while it has a chance left.
-- The only place that compares failures with max_attempts; fail and sweep both ask here.
create or replace function verdict(outcome text, fatal boolean, failures integer, max_attempts integer) returns text
language sql immutable parallel safe
return case
  when outcome = 'cancelled' then 'cancelled'
  when outcome = 'snoozed' then null
  when fatal then 'fatal'
  when failures < max_attempts then null
  when outcome = 'lease_expired' then 'lease_expired'
  else 'exhausted'
end;
