-- Say that queues have work, apart from the transaction that recorded it.
-- A NOTIFY makes all committing transactions that have one stand in line, each until its commit is on disk. Producers
-- therefore enqueue most jobs with notify => false and send hints afterwards, many at once. A hint need not wait for the
-- disk: who sends it alone switches synchronous_commit off for that one statement. Not this function: the transaction that
-- calls it may have recorded something.
-- `@queue of KIND` names the queue that the kind declares: only the database knows which one that is.
-- Error: LH003 invalid_argument.

create or replace function hint_v1(names text[]) returns void language plpgsql
security definer set search_path from current
as $$
begin
  if exists (select from unnest(names) n where octet_length(n) > 210) then
    perform refuse('LH003', 'invalid_argument', 'a name is longer than 210 bytes', 'give names of queues');
  end if;
  perform announce(array(
    select distinct case when starts_with(n, '@queue of ')
      then coalesce((select k.queue from kinds k where k.kind = substr(n, 11)), 'default') else n end
    from unnest(names) n));
end $$;

create or replace function hint(names text[]) returns void language sql
security definer set search_path from current
as $$ select hint_v1(names) $$;
