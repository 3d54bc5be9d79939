-- Who may call what. Runs after every change of a function: a new one is PUBLIC's until it is revoked here, in
-- the same transaction. Tables are granted to no role. `leasehold migrate` runs it again where roles or grants are missing,
-- as after a restore, and `leasehold doctor` says which.

-- The functions of each role, all versions of each.
create or replace function granted_functions() returns jsonb language sql immutable
return '{
    "leasehold_producer": ["enqueue", "enqueue_many", "enqueue_batch", "submit", "submit_many", "submit_each", "accept", "accept_many", "accept_each", "hint", "status",
      "statuses", "lease_seconds", "cancel", "complete_in"],
    "leasehold_worker": ["claim", "claim_each", "claim_job", "heartbeat", "renew", "renew_each", "owned", "complete", "complete_in", "fail", "fail_many",
      "release", "report_each",
      "sweep", "promote", "next_due", "upkeep", "hint", "add_logs", "start_worker", "stop_worker", "declare_kinds", "declare_tasks",
      "status", "lease_seconds", "schedule_due", "schedule_claim", "schedule_fire", "schedule_problem", "schedule_sync",
      "statistics_add", "canary_step"],
    "leasehold_operator": ["events", "history", "history_enabled", "prune", "prune_workers", "verify",
      "doctor", "names", "accept", "cancel", "retry", "sweep", "promote", "next_due", "declare_kinds", "declare_tasks", "status",
      "counts", "explain", "logs", "set_limit", "drop_limit", "lease_seconds", "pause", "resume", "run_now",
      "retry_many", "cancel_many", "list_jobs", "job_detail", "errors", "queue_list", "worker_list", "stats",
      "create_token", "revoke_token", "token_list", "schedule_put", "schedule_enable", "schedule_disable", "schedule_run_now",
      "schedule_remove", "schedule_list",
      "statistics", "flow", "rates", "system", "holders", "canary_start", "canary_step", "canary_stop", "canary_list"],
    "leasehold_viewer": ["events", "history_enabled", "verify", "names", "counts", "explain", "lease_seconds", "queue_list", "worker_list", "stats",
      "statistics", "flow", "rates", "system", "canary_list"],
    "leasehold_api": ["events", "history_enabled", "verify", "names", "enqueue", "enqueue_many", "enqueue_batch", "submit", "submit_many", "submit_each", "accept", "accept_many", "accept_each", "hint", "status", "statuses", "lease_seconds",
      "cancel", "retry", "counts", "explain", "logs", "set_limit", "drop_limit", "pause", "resume", "run_now",
      "retry_many", "cancel_many", "list_jobs", "job_detail", "errors", "queue_list", "worker_list", "stats",
      "create_token", "revoke_token", "token", "token_list", "tokens_exist", "schedule_put", "schedule_enable", "schedule_disable", "schedule_run_now",
      "schedule_remove", "schedule_list",
      "statistics", "flow", "rates", "system", "holders", "canary_start", "canary_stop", "canary_list"]
  }'::jsonb;

create or replace function granted_views() returns jsonb language sql immutable
return '{
    "leasehold_viewer": ["job_overview", "attempt_overview", "worker_overview", "limit_overview", "schedule_overview"],
    "leasehold_operator": ["job_overview", "attempt_overview", "worker_overview", "limit_overview", "schedule_overview", "token_overview"],
    "leasehold_api": ["job_overview", "attempt_overview", "worker_overview", "limit_overview", "schedule_overview", "token_overview"]
  }'::jsonb;

-- What each role is to have: the object in words, the statement that grants it, and whether the role has it.
create or replace function access_wanted() returns table (role_name text, object text, statement text, there boolean)
language sql stable
as $$
  select r.name, 'schema ' || current_schema(), format('grant usage on schema %I to %I', current_schema(), r.name),
    coalesce(has_schema_privilege(to_regrole(r.name), current_schema(), 'usage'), false)
  from jsonb_object_keys(granted_functions()) r(name)
  union all
  select r.key, p.oid::regprocedure::text, format('grant execute on function %s to %I', p.oid::regprocedure, r.key),
    coalesce(has_function_privilege(to_regrole(r.key), p.oid, 'execute'), false)
  from jsonb_each(granted_functions()) r
  cross join lateral jsonb_array_elements_text(r.value) f(name)
  join pg_proc p on p.pronamespace = current_schema()::regnamespace and p.proname ~ ('^' || f.name || '(_v[0-9]+)?$')
  union all
  select r.key, v.name, format('grant select on %I to %I', v.name, r.key),
    coalesce(has_table_privilege(to_regrole(r.key), v.name, 'select'), false)
  from jsonb_each(granted_views()) r cross join lateral jsonb_array_elements_text(r.value) v(name)
$$;

-- What is wrong with roles and grants, in words; nothing where all is well. Dumps hold no roles, and a restore that does
-- not find them, or leaves grants out (--no-acl), leaves every function to PUBLIC.
create or replace function access_problems() returns setof text language sql stable
as $$
  select format('role %s is missing', r.name) from jsonb_object_keys(granted_functions()) r(name)
  where to_regrole(r.name) is null
  union all
  select format('%s has no right to %s%s', w.role_name, min(w.object),
    case when count(*) > 1 then format(' and %s more', count(*) - 1) else '' end)
  from access_wanted() w where not w.there and to_regrole(w.role_name) is not null group by w.role_name
  union all
  select format('PUBLIC may call %s functions, %s among them', count(*), min(p.oid::regprocedure::text))
  from pg_proc p cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
  where p.pronamespace = current_schema()::regnamespace and a.grantee = 0
    and p.proname not in ('schema_version', 'schema_supports_from')
  having count(*) > 0
  union all
  select format('PUBLIC has rights to %s tables or views, %s among them', count(distinct c.oid), min(c.relname))
  from pg_class c cross join lateral aclexplode(c.relacl) a
  where c.relnamespace = current_schema()::regnamespace and a.grantee = 0
  having count(*) > 0
$$;

do $$
declare
  schema_name text := current_schema();
  name text;
begin
  for name in select jsonb_object_keys(granted_functions()) loop
    if to_regrole(name) is null then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        null;  -- roles belong to the whole cluster: another database was migrated at the same moment
      end;
    end if;
  end loop;
  execute format('revoke all on schema %I from public', schema_name);
  execute format('revoke all on all tables in schema %I from public', schema_name);
  execute format('revoke all on all functions in schema %I from public', schema_name);
  for name in select jsonb_object_keys(granted_functions()) loop
    execute format('revoke all on all tables in schema %I from %I', schema_name, name);
    execute format('revoke all on all functions in schema %I from %I', schema_name, name);
  end loop;
  for name in select w.statement from access_wanted() w order by 1 loop
    execute name;
  end loop;
  for name in
    select format('grant execute on function %s to public', p.oid::regprocedure)
    from pg_proc p where p.pronamespace = schema_name::regnamespace and p.proname = 'schema_version'
  loop
    execute name;
  end loop;
end $$;
