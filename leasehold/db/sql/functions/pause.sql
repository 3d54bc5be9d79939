-- Of a paused queue no job is claimed. Running jobs go on, and new ones wait.
-- Every claim that starts after pause has committed obeys it. Pausing does not wait: a claim that is running at that
-- moment may still take its jobs, and does not delay the pause.
-- Error: LH003 invalid_argument.

create or replace function check_queue(queue text) returns void language sql as $$
  select require(octet_length(queue) between 1 and max_name_bytes(), format('queue %L', left(queue, 100)),
    'a queue has a name of 1 to ' || max_name_bytes() || ' bytes')
$$;

-- Pausing again changes the reason; since when it is paused stays.
create or replace function pause_v1(queue text, reason text default null, by text default null) returns void
language plpgsql set lock_timeout = '3s' as $$
#variable_conflict use_column
begin
  perform check_queue(pause_v1.queue);
  insert into queues as p (queue, paused_at, paused_by, reason)
  values (pause_v1.queue, clock(), shortened(pause_v1.by, 200), shortened(pause_v1.reason, 1000))
  on conflict (queue) do update set reason = excluded.reason, paused_by = excluded.paused_by;
end $$;

-- Let its jobs be claimed again, and notify its idle workers. False: it was not paused.
create or replace function resume_v1(queue text, notify boolean default true) returns boolean language plpgsql
set lock_timeout = '3s' as $$
begin
  perform check_queue(resume_v1.queue);
  delete from queues p where p.queue = resume_v1.queue;
  if found and notify then
    perform announce(array[resume_v1.queue]);
  end if;
  return found;
end $$;
