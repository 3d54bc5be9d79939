"""Laws of the names without a version: each is the newest version of its function, with the same form and access."""

from psycopg.rows import namedtuple_row

from leasehold.db.migrations.migrate import migrate

FORMS = """
select p.proname::text, pg_get_function_arguments(p.oid) as arguments, pg_get_function_result(p.oid) as result,
  p.provolatile::text, p.prosecdef, p.prorows, p.proconfig, p.proretset, l.lanname::text, p.prosrc,
  array(select a.grantee::regrole::text from aclexplode(p.proacl) a order by 1) as granted
from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'leasehold'::regnamespace
"""
SAME = ("arguments", "result", "provolatile", "prosecdef", "prorows", "granted")


def newest(session):
    """Each name with its newest version."""
    with session.cursor(row_factory=namedtuple_row) as cursor:
        rows = cursor.execute(FORMS).fetchall()
    functions = {row.proname: row for row in rows}
    assert len(functions) == len(rows), "one form of each name"
    versions = {}
    for name, row in functions.items():
        base, mark, number = name.rpartition("_v")
        if mark and number.isdecimal():
            versions[base] = max(versions.get(base, (0, None)), (int(number), row), key=lambda found: found[0])
    return functions, {name: row for name, (_, row) in versions.items()}


def test_each_name_has_one_form_and_the_arguments_result_and_access_of_its_newest_version(session):
    functions, versions = newest(session)
    assert len(versions) > 70
    for name, version in versions.items():
        face = functions[name]
        assert [getattr(face, field) for field in SAME] == [getattr(version, field) for field in SAME], name
        assert face.proconfig == ["search_path=leasehold, pg_temp"], name
        assert f"{version.proname}(" in face.prosrc, name


def test_a_name_follows_a_new_version_and_keeps_one_form(db, session):
    session.execute(
        "create function cancel_v2(id uuid, why text default null, more integer default 1) returns text"
        " language sql as $$ select format('%s %s', why, more) $$"
    )
    session.execute("update function_files set checksum = 'changed' where name = 'zz_current.sql'")
    migrate(db.dsn)
    _, versions = newest(session)
    assert session.values("select pg_get_function_arguments(oid) from pg_proc where proname = 'cancel'") == [
        versions["cancel"].arguments
    ]
    assert session.values("select cancel(null, 'so', more => 2)") == ["so 2"]


def test_a_migration_leaves_names_alone_that_are_as_they_should_be(db, session):
    query = "select array_agg(oid order by oid) from pg_proc where pronamespace = 'leasehold'::regnamespace"
    before = session.values(query)
    session.execute("update function_files set checksum = 'changed' where name = 'zz_current.sql'")
    assert "zz_current.sql" in migrate(db.dsn).functions
    assert session.values(query) == before
