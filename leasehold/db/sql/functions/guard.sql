-- The state machine, held against everybody, a superuser's plain UPDATE included. The functions' own WHERE
-- clauses never rely on it: where triggers are not allowed the guard is absent and nothing else changes.
-- Error: LH001 illegal_transition.
--
-- AFTER, not BEFORE: a BEFORE trigger locks the row first, which costs a lock record in the WAL for each
-- update. The legal pairs are in WHEN, so on a legal path no function is called at all. The trigger itself: zz_triggers.sql.

create or replace function refuse_transition() returns trigger language plpgsql
security definer set search_path from current
as $$
begin
  perform refuse('LH001', 'illegal_transition',
    case when new.attempt < old.attempt then format('job %s: attempt %s -> %s', new.id, old.attempt, new.attempt)
         else format('job %s: %s -> %s', new.id, old.state, new.state) end,
    'docs/state-machine.md lists the legal transitions; use the functions of this schema');
  return null;
end $$;
