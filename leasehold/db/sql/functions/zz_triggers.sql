-- The triggers that always exist. In the last file, because a trigger that has to be made keeps the writers of its table
-- waiting until the migration commits. (Those of the history are made by history(true).)

do $$
begin
  perform keep_trigger('jobs', 'jobs_transition', $definition$after update of state, attempt on jobs for each row
  when (new.attempt < old.attempt or old.state <> new.state and (old.state, new.state) not in (
    ('created', 'queued'),
    ('queued', 'running'),
    ('running', 'success'), ('running', 'retry'), ('running', 'queued'),
    ('retry', 'queued'),
    ('created', 'dead'), ('queued', 'dead'), ('running', 'dead'), ('retry', 'dead'),
    ('dead', 'queued')))
  execute function refuse_transition()$definition$);
  perform keep_trigger('events', 'events_append_only',
    'before update or truncate on events for each statement execute function refuse_rewriting()');
  perform keep_trigger('events', 'events_with_their_job',
    'after delete on events referencing old table as events_gone for each statement execute function refuse_rewriting()');
exception when feature_not_supported then
  raise notice 'no triggers here: the transition guard is left out, and the history can be rewritten by its owner';
end $$;
