-- Who may call what. Runs after every change of a function: a new one is PUBLIC's until it is revoked here, in
-- the same transaction. Tables are nobody's.
do $$
declare
  schema_name text := current_schema();
  name text;
  grants constant jsonb := '{
    "leasehold_producer": ["enqueue", "enqueue_many", "enqueue_batch", "submit", "submit_many", "accept", "accept_many", "hint", "status",
      "statuses", "lease_seconds"],
    "leasehold_worker": ["claim", "claim_job", "heartbeat", "renew", "owned", "complete", "fail", "fail_many", "release",
      "sweep", "promote", "next_due", "upkeep", "hint", "add_logs", "start_worker", "stop_worker", "declare_kinds", "declare_tasks",
      "status", "lease_seconds", "schedule_due", "schedule_claim", "schedule_fire", "schedule_problem", "schedule_sync",
      "statistics_add", "canary_step"],
    "leasehold_operator": ["events", "history", "history_enabled", "prune", "prune_workers", "verify",
      "doctor", "names", "accept", "cancel", "retry", "sweep", "promote", "next_due", "declare_kinds", "declare_tasks", "status",
      "counts", "explain", "logs", "set_limit", "drop_limit", "lease_seconds", "pause", "resume", "run_now",
      "retry_many", "cancel_many", "list_jobs", "job_detail", "errors", "queue_list", "worker_list", "stats",
      "create_token", "revoke_token", "schedule_put", "schedule_enable", "schedule_disable", "schedule_run_now",
      "schedule_remove", "schedule_list",
      "statistics", "flow", "rates", "system", "holders", "canary_start", "canary_step", "canary_stop", "canary_list"],
    "leasehold_viewer": ["events", "history_enabled", "verify", "names", "counts", "explain", "lease_seconds", "queue_list", "worker_list", "stats",
      "statistics", "flow", "rates", "system", "canary_list"],
    "leasehold_api": ["events", "history_enabled", "verify", "names", "enqueue_many", "submit", "submit_many", "accept", "accept_many", "hint", "status", "statuses", "lease_seconds",
      "cancel", "retry", "counts", "explain", "logs", "set_limit", "drop_limit", "pause", "resume", "run_now",
      "retry_many", "cancel_many", "list_jobs", "job_detail", "errors", "queue_list", "worker_list", "stats",
      "create_token", "revoke_token", "token", "tokens_exist", "schedule_put", "schedule_enable", "schedule_disable", "schedule_run_now",
      "schedule_remove", "schedule_list",
      "statistics", "flow", "rates", "system", "holders", "canary_start", "canary_stop", "canary_list"]
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
  grant select on job_overview, attempt_overview, worker_overview, limit_overview, schedule_overview
    to leasehold_viewer, leasehold_operator, leasehold_api;
  grant select on token_overview to leasehold_operator, leasehold_api;
end $$;
