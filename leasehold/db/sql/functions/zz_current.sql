-- The names without a version: name() calls the newest name_vN(), with the same arguments, defaults and result. Generated,
-- so that a signature is written once. Programs call the versions, people the names: docs/decisions/0001-functions-are-the-api.md.
-- A function of such a name in another language than SQL is written by hand and is left alone.

do $$
declare
  f record;
begin
  for f in
    with newest as (
      select distinct on (b.name) p.*, b.name, pg_get_function_arguments(p.oid) as arguments, pg_get_function_result(p.oid) as result
      from pg_proc p cross join lateral (select substring(p.proname from '^(.+)_v[0-9]+$') as name) b
      where p.pronamespace = current_schema()::regnamespace and b.name is not null
      order by b.name, substring(p.proname from '[0-9]+$')::integer desc, p.pronargs desc
    ), wanted as (
      select n.*, format(case when n.proretset and n.prorettype = 'record'::regtype then 'select * from %I(%s)' else 'select %I(%s)' end,
        n.proname, (select string_agg('$' || i, ', ' order by i) from generate_series(1, n.pronargs) i)) as body
      from newest n)
    select w.*, t.oid::regprocedure as there,
      pg_get_function_arguments(t.oid) = w.arguments and pg_get_function_result(t.oid) = w.result as same_form
    from wanted w left join pg_proc t on t.pronamespace = w.pronamespace and t.proname = w.name
    where t.oid is null or t.prolang = (select l.oid from pg_language l where l.lanname = 'sql') and
      (t.prosrc, t.provolatile, pg_get_function_arguments(t.oid), pg_get_function_result(t.oid))
        is distinct from (w.body, w.provolatile, w.arguments, w.result)
  loop
    if not f.same_form then
      execute format('drop function %s', f.there);    -- two forms of one name would make calls ambiguous
    end if;
    execute format('create or replace function %I(%s) returns %s language sql %s security definer set search_path from current as %L',
      f.name, f.arguments, f.result, case f.provolatile when 's' then 'stable' when 'i' then 'immutable' else 'volatile' end, f.body);
  end loop;
end $$;

-- What roles and triggers call runs with the privileges of its owner and finds names in this schema only. And without JIT: before
-- PostgreSQL 18 a plan that enable_seqscan = off makes dear is compiled, a second for a query of a millisecond.
do $$
declare
  f regprocedure;
begin
  for f in
    select p.oid from pg_proc p
    where p.pronamespace = current_schema()::regnamespace and not (p.prosecdef and 'jit=off' = any(coalesce(p.proconfig, '{}')))
      and (p.proname ~ '_v[0-9]+$' or p.prorettype = 'trigger'::regtype)
  loop
    execute format('alter function %s security definer set search_path from current set jit = off', f);
  end loop;
end $$;
