-- Who may call what. Runs after every change of a function: a new one is PUBLIC's until it is revoked here, in
-- the same transaction. Tables are nobody's.
do $$
declare
  schema_name text := current_schema();
  name text;
  grants constant jsonb := '{
    "leasehold_producer": ["enqueue", "enqueue_many", "submit", "accept", "hint", "status", "lease_seconds"],
    "leasehold_worker": ["claim", "claim_job", "heartbeat", "owned", "complete", "fail", "fail_many", "release",
      "sweep", "promote", "next_due", "upkeep", "hint", "add_logs", "start_worker", "stop_worker", "declare_kinds",
      "status", "lease_seconds"],
    "leasehold_operator": ["accept", "cancel", "retry", "sweep", "promote", "next_due", "declare_kinds", "status",
      "counts", "explain", "logs", "set_limit", "drop_limit", "lease_seconds"],
    "leasehold_viewer": ["counts", "explain", "lease_seconds"]
  }';
begin
  execute format('revoke all on schema %I from public', schema_name);
  execute format('revoke all on all tables in schema %I from public', schema_name);
  execute format('revoke all on all functions in schema %I from public', schema_name);
  for name in select jsonb_object_keys(grants) loop
    execute format('revoke all on all tables in schema %I from %I', schema_name, name);
    execute format('revoke all on all functions in schema %I from %I', schema_name, name);
    execute format('grant usage on schema %I to %I', schema_name, name);
  end loop;
  for name in
    select format('grant execute on function %s to %I', p.oid::regprocedure, r.key)
    from jsonb_each(grants) r
    cross join lateral jsonb_array_elements_text(r.value) f(name)
    join pg_proc p on p.pronamespace = schema_name::regnamespace and p.proname in (f.name, f.name || '_v1')
    order by 1
  loop
    execute name;
  end loop;
  for name in
    select format('grant execute on function %s to public', p.oid::regprocedure)
    from pg_proc p where p.pronamespace = schema_name::regnamespace and p.proname = 'schema_version'
  loop
    execute name;
  end loop;
  grant select on job_overview, attempt_overview, worker_overview, limit_overview to leasehold_viewer, leasehold_operator;
end $$;
