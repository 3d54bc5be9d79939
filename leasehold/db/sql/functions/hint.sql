-- Say that queues have work, apart from the transaction that recorded it.
-- A NOTIFY makes all committing transactions that have one stand in line, each until its commit is on disk. Producers
-- therefore enqueue most jobs with notify => false and send hints afterwards, many at once; a hint need not wait for the disk.

create or replace function hint_v1(names text[]) returns void language plpgsql
security definer set search_path from current
as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform announce(names);
end $$;

create or replace function hint(names text[]) returns void language sql
security definer set search_path from current
as $$ select hint_v1(names) $$;
