-- A paused queue: none of its jobs is claimed; what runs goes on; what is enqueued waits.
-- Every claim that starts after pause has returned obeys it. Pausing waits for nobody: a claim that is under way at
-- that moment may still take its jobs, and does not hold up whoever wants to stop more of them.
-- Error: LH003 invalid_argument.

create or replace function check_queue(queue text) returns void language plpgsql
as $$
begin
  if queue is null or queue = '' or octet_length(queue) > 200 then
    perform refuse('LH003', 'invalid_argument', format('queue %L', left(queue, 100)), 'a queue has a name of 1 to 200 bytes');
  end if;
end $$;

-- The lanes that are not of a paused queue, or null if there are none.
create or replace function lanes_not_paused(lanes jsonb) returns jsonb language plpgsql stable
as $$
begin
  return (
    select jsonb_agg(e) from jsonb_array_elements(lanes) e
    where not exists (select from queues p where p.queue = e ->> 'queue'));
end $$;

-- Pausing again changes the reason; since when it is paused stays.
create or replace function pause_v1(queue text, reason text default null, by text default null) returns void
language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
  at timestamptz := clock();
begin
  perform check_queue(pause_v1.queue);
  insert into queues as p (queue, paused_at, paused_by, reason)
  values (pause_v1.queue, at, shortened(pause_v1.by, 200), shortened(pause_v1.reason, 1000))
  on conflict (queue) do update set reason = excluded.reason, paused_by = excluded.paused_by;
end $$;

create or replace function pause(queue text, reason text default null, by text default null) returns void language sql
security definer set search_path from current
as $$ select pause_v1(queue, reason, by) $$;

-- Let its jobs be claimed again, and wake those who wait for work. False: it was not paused.
create or replace function resume_v1(queue text, notify boolean default true) returns boolean language plpgsql
security definer set search_path from current set lock_timeout = '3s'
as $$
#variable_conflict use_column
begin
  perform check_queue(resume_v1.queue);
  delete from queues p where p.queue = resume_v1.queue;
  if found and notify then
    perform announce(array[resume_v1.queue]);
  end if;
  return found;
end $$;

create or replace function resume(queue text, notify boolean default true) returns boolean language sql
security definer set search_path from current
as $$ select resume_v1(queue, notify) $$;
