"""The way back from a release: the functions of the release before are kept in the database, and can be restored.

Tables stay as they are: a release only adds to them, so that programs of the release before work with them. Before a
migration changes functions, all of them are kept as the server has them. Restoring them also restores which files
they came from, so that `migrate` of the release after applies its own again.
"""

from dataclasses import dataclass

from psycopg import Connection, sql

# pg_get_functiondef returns `create or replace function` with the schema in the name. The latest five sets are kept.
KEEP = """
insert into function_sets (release, files, functions, triggers)
select coalesce((select max(f.release) from function_files f), ''),
  (select coalesce(jsonb_agg(to_jsonb(f)), '[]') from function_files f),
  (select coalesce(jsonb_agg(jsonb_build_object(
     'signature', p.oid::regprocedure::text, 'name', p.proname, 'definition', pg_get_functiondef(p.oid),
     'form', format('%s(%s) %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)),
     'grantees', array(select coalesce(r.rolname::text, 'public')
       from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a left join pg_roles r on r.oid = a.grantee
       where a.grantee <> p.proowner and a.privilege_type = 'EXECUTE'))), '[]')
   from pg_proc p where p.pronamespace = current_schema()::regnamespace and p.prokind = 'f'),
  (select coalesce(jsonb_agg(jsonb_build_object(
     'name', t.tgname, 'relation', c.relname, 'definition', pg_get_triggerdef(t.oid))), '[]')
   from pg_trigger t join pg_class c on c.oid = t.tgrelid
   where c.relnamespace = current_schema()::regnamespace and not t.tgisinternal and t.tgconstraint = 0);
delete from function_sets where number <= (select max(number) from function_sets) - 5;
""".strip()

# Functions that came later stay, as the tables do: programs of the release after still call them. Only another form of
# a name is dropped: a second one makes calls ambiguous, and `create or replace` cannot change a result.
RESTORE = """
set local check_function_bodies = off;
do $$
declare
  kept function_sets;
  statement text;
begin
  select * into strict kept from function_sets order by number desc limit 1;
  for statement in
    select format('drop function %s', p.oid::regprocedure) from pg_proc p
    where p.pronamespace = current_schema()::regnamespace
      and p.proname in (select f ->> 'name' from jsonb_array_elements(kept.functions) f)
      and format('%s(%s) %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
        not in (select f ->> 'form' from jsonb_array_elements(kept.functions) f)
  loop
    execute statement;
  end loop;
  for statement in select f ->> 'definition' from jsonb_array_elements(kept.functions) f loop
    execute statement;
  end loop;
  for statement in
    select format('revoke all on function %s from public', f ->> 'signature')
    from jsonb_array_elements(kept.functions) f
    union all
    select format('grant execute on function %s to %s', f ->> 'signature',
      case when g = 'public' then g else quote_ident(g) end)
    from jsonb_array_elements(kept.functions) f cross join lateral jsonb_array_elements_text(f -> 'grantees') g
    where g = 'public' or exists (select from pg_roles r where r.rolname = g)
    order by 1 desc
  loop
    execute statement;
  end loop;
  -- Only where it differs: a trigger is replaced under a lock that keeps writers waiting.
  for statement in
    select regexp_replace(k ->> 'definition', '^CREATE TRIGGER', 'create or replace trigger')
    from jsonb_array_elements(kept.triggers) k
    where not exists (select from pg_trigger t join pg_class c on c.oid = t.tgrelid
      where c.relnamespace = current_schema()::regnamespace and c.relname = k ->> 'relation' and t.tgname = k ->> 'name'
        and pg_get_triggerdef(t.oid) = k ->> 'definition')
  loop
    execute statement;
  end loop;
  delete from function_files;
  insert into function_files select * from jsonb_populate_recordset(null::function_files, kept.files);
  delete from function_sets where number = kept.number;
end
$$;
""".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSet:
    """Functions that were kept before a migration changed some of them."""

    schema: str
    release: str  # whose they are
    kept_at: str
    functions: int  # their number


def latest_set(connection: Connection, schema: str) -> FunctionSet | None:
    """Return the set that `RESTORE` restores, or None."""
    query = sql.SQL(
        "select release, to_char(kept_at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') || ' UTC',"
        " jsonb_array_length(functions) from {} order by number desc limit 1"
    )
    row = connection.execute(query.format(sql.Identifier(schema, "function_sets"))).fetchone()
    return FunctionSet(schema=schema, release=row[0], kept_at=row[1], functions=row[2]) if row else None
