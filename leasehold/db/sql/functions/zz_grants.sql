-- Who may call what. Runs after every change of a function: PUBLIC may call a new one until it is revoked here, in the
-- same transaction. Tables are granted to no role. `leasehold migrate` runs it again where roles or grants are missing, as
-- after a restore, and `leasehold doctor` lists them.

-- The roles, without their prefix, and what they may call (all versions of each function) or, of views, read.
create or replace function granted() returns table (role_name text, name text) language sql immutable as $$
  select 'leasehold_' || r, n
  from (values
    ('producer api', 'enqueue enqueue_many enqueue_batch submit submit_many submit_each accept_many accept_each statuses'),
    ('producer operator api', 'accept cancel'),
    -- An operator's notification is the doctor's probe whether notifications arrive.
    ('producer worker operator api', 'notify status'),
    ('producer worker operator viewer api', 'lease_seconds'),
    ('producer worker', 'complete_in'),
    ('worker',
     'claim claim_each claim_job heartbeat renew renew_each owned complete fail fail_many release report_each upkeep
      add_logs start_worker stop_worker schedule_due schedule_claim schedule_fire schedule_problem schedule_sync
      statistics_add'),
    ('worker operator', 'sweep promote next_due declare_kinds declare_tasks'),
    ('operator viewer api',
     'events history_enabled verify names counts explain queue_list worker_list stats statistics flow rates system
      canary_list job_overview attempt_overview worker_overview limit_overview schedule_overview'),
    ('operator', 'history prune prune_workers doctor'),
    ('operator api',
     'retry logs set_limit drop_limit pause resume run_now retry_many cancel_many list_jobs job_detail errors
      create_token revoke_token token_list schedule_put schedule_enable schedule_disable schedule_run_now
      schedule_remove schedule_list holders canary_start canary_stop token_overview'),
    ('api', 'token tokens_exist')
  ) g(roles, names)
  cross join lateral string_to_table(g.roles, ' ') r
  cross join lateral regexp_split_to_table(g.names, '[[:space:]]+') n
$$;

-- What each role is to have: the object in words, the statement that grants it, and whether the role has it.
create or replace function access_wanted() returns table (role_name text, object text, statement text, there boolean)
language sql stable as $$
  select r.role_name, 'schema ' || current_schema(), format('grant usage on schema %I to %I', current_schema(), r.role_name),
    coalesce(has_schema_privilege(to_regrole(r.role_name), current_schema(), 'usage'), false)
  from (select distinct g.role_name from granted() g) r
  union all
  select g.role_name, p.oid::regprocedure::text, format('grant execute on function %s to %I', p.oid::regprocedure, g.role_name),
    coalesce(has_function_privilege(to_regrole(g.role_name), p.oid, 'execute'), false)
  from granted() g
  join pg_proc p on p.pronamespace = current_schema()::regnamespace and p.proname ~ ('^' || g.name || '(_v[0-9]+)?$')
  union all
  select g.role_name, g.name, format('grant select on %I to %I', g.name, g.role_name),
    coalesce(has_table_privilege(to_regrole(g.role_name), c.oid, 'select'), false)
  from granted() g join pg_class c on c.relnamespace = current_schema()::regnamespace and c.relname = g.name and c.relkind = 'v'
$$;

-- What is wrong with roles and grants, in words; nothing where all is well. Dumps hold no roles, and a restore that does
-- not find them, or leaves grants out (--no-acl), leaves every function to PUBLIC.
create or replace function access_problems() returns setof text language sql stable set jit = off as $$
  select distinct format('role %s is missing', g.role_name) from granted() g where to_regrole(g.role_name) is null
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
  for name in select distinct g.role_name from granted() g loop
    if to_regrole(name) is null then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        null;  -- roles belong to the whole cluster: another database was migrated at the same moment
      end;
    end if;
  end loop;
  execute format('revoke all on schema %I from public', schema_name);
  for name in select 'public' union select distinct quote_ident(g.role_name) from granted() g loop
    execute format('revoke all on all tables in schema %I from %s', schema_name, name);
    execute format('revoke all on all functions in schema %I from %s', schema_name, name);
  end loop;
  for name in select w.statement from access_wanted() w order by 1 loop
    execute name;
  end loop;
end $$;
