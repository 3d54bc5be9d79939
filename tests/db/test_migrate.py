import psycopg
import pytest

from leasehold.db.migrations.migrate import LATEST, check, migrate, plan
from leasehold.errors import ConfigError, NotPermitted, SchemaMismatch


def rows(dsn, query):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def execute(dsn, *statements):
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_an_empty_database_gets_everything(empty_dsn, files):
    report = migrate(empty_dsn, source=files.source)
    assert (report.before, report.version) == (0, 1)
    assert report.migrations == ("0001_things",)
    assert report.functions == ("things.sql",)
    assert report.changed
    assert rows(empty_dsn, "select leasehold.things(), leasehold.schema_version()") == [(0, 1)]
    # The text went to the server untouched, percent sign and all.
    execute(empty_dsn, "insert into leasehold.thing (id) values (1)")
    assert rows(empty_dsn, "select note from leasehold.thing") == [("a%b",)]


def test_the_second_time_nothing_is_done(empty_dsn, files, dump):
    migrate(empty_dsn, source=files.source)
    before = dump(empty_dsn), rows(empty_dsn, "select * from leasehold.function_files")
    report = migrate(empty_dsn, source=files.source)
    assert not report.changed
    assert report.version == 1
    assert (dump(empty_dsn), rows(empty_dsn, "select * from leasehold.function_files")) == before


def test_a_failing_file_rolls_back_everything(empty_dsn, files):
    files.migration("0002_wrong", "create table fine ();\nselect 1;\nselect nonsense;\n")
    with pytest.raises(Exception, match=r"migration 0002_wrong failed in line 3: .*nonsense"):
        migrate(empty_dsn, source=files.source)
    assert rows(empty_dsn, "select from pg_namespace where nspname = 'leasehold'") == []
    files.migration("0002_wrong", "create table fine ();")
    assert migrate(empty_dsn, source=files.source).version == 2


def test_an_applied_migration_that_changed_is_refused(empty_dsn, files):
    migrate(empty_dsn, source=files.source)
    files.migration("0001_things", "create table other ();").migration("0002_more", "create table more ();")
    for action in (plan, migrate):
        with pytest.raises(SchemaMismatch, match="0001_things differs") as caught:
            action(empty_dsn, source=files.source)
        assert caught.value.exit_code == 4
    assert rows(empty_dsn, "select to_regclass('leasehold.more')") == [(None,)]


def test_a_hole_in_the_bookkeeping_is_refused(empty_dsn, files):
    files.migration("0002_more", "create table more ();")
    migrate(empty_dsn, source=files.source)
    execute(empty_dsn, "delete from leasehold.migrations where version = 1")
    with pytest.raises(SchemaMismatch, match="lacks 0001_things"):
        migrate(empty_dsn, source=files.source)


def test_only_changed_function_files_run_again_and_the_closing_ones(empty_dsn, files):
    log = "insert into log select '{}'"
    files.migration("0001_things", "create table log (line text);")
    for name in ("things", "calm", "zz_grants"):
        files.function(name, log.format(name))
    assert migrate(empty_dsn, source=files.source).functions == ("calm.sql", "things.sql", "zz_grants.sql")

    files.function("things", log.format("things again"))
    assert migrate(empty_dsn, source=files.source).functions == ("things.sql", "zz_grants.sql")
    assert not migrate(empty_dsn, source=files.source).changed

    files.migration("0002_more", "select 1")
    assert migrate(empty_dsn, source=files.source).functions == ("zz_grants.sql",)
    assert [line for (line,) in rows(empty_dsn, "select line from leasehold.log")] == [
        *("calm", "things", "zz_grants"),
        *("things again", "zz_grants"),
        "zz_grants",
    ]


def test_a_removed_function_file_is_forgotten_but_its_function_stays(empty_dsn, files):
    migrate(empty_dsn, source=files.source)
    (files.root / "functions" / "things.sql").unlink()
    assert migrate(empty_dsn, source=files.source).forgotten == ("things.sql",)
    assert not migrate(empty_dsn, source=files.source).changed
    assert rows(empty_dsn, "select leasehold.things()") == [(0,)]


def test_an_earlier_release_does_not_take_back_the_functions_of_a_later_one(empty_dsn, files, monkeypatch):
    old = files.source
    migrate(empty_dsn, source=old)
    files.function("things", "create or replace function later() returns int language sql as 'select 1';")
    monkeypatch.setattr("leasehold.db.migrations.migrate.__version__", "99.10.0rc1")
    migrate(empty_dsn, source=files.source)
    monkeypatch.setattr("leasehold.db.migrations.migrate.__version__", "99.9.0")
    report = migrate(empty_dsn, source=old)
    assert report.superseded
    assert not report.changed
    assert not plan(empty_dsn, source=old).changed


def test_a_plan_changes_nothing(empty_dsn, files, dump):
    before = dump(empty_dsn)
    todo = plan(empty_dsn, source=files.source)
    assert todo.migrations == ("0001_things",)
    assert todo.functions == ("things.sql",)
    assert (todo.before, todo.version, todo.changed) == (0, 1, True)
    assert dump(empty_dsn) == before
    migrate(empty_dsn, source=files.source)
    assert not plan(empty_dsn, source=files.source).steps


@pytest.mark.parametrize(
    ("at", "message"), [(None, "does not exist"), (1, "older than this release: migration 1 of 2")]
)
def test_a_program_refuses_a_schema_that_is_not_ready(empty_dsn, files, at, message):
    files.migration("0002_more", "create table more ();")
    if at:
        migrate(empty_dsn, source=files.source.until(at))
    with pytest.raises(SchemaMismatch, match=message) as caught:
        check(empty_dsn, source=files.source)
    assert "leasehold migrate" in str(caught.value.hint)
    migrate(empty_dsn, source=files.source)
    check(empty_dsn, source=files.source)


def test_a_program_meets_the_schema_of_later_releases(empty_dsn, files):
    files.migration("0002_more", "create table more ();")
    files.migration("0003_cut", "-- Old programs fail from here on.\n-- supports: 2\nselect 1;")
    files.migration("0004_last", "select 1;")
    migrate(empty_dsn, source=files.source)
    assert rows(empty_dsn, "select supports_from from leasehold.migrations order by version") == [
        *((1,), (1,), (2,), (2,))
    ]
    for known in (2, 3, 4):
        check(empty_dsn, source=files.source.until(known))
    report = migrate(empty_dsn, source=files.source.until(2))
    assert (report.version, report.changed, report.superseded) == (4, False, True)
    for action in (check, plan, migrate):
        with pytest.raises(SchemaMismatch, match="newer than this release knows") as caught:
            action(empty_dsn, source=files.source.until(1))
        assert caught.value.hint == "upgrade leasehold"


def test_a_check_leaves_the_connection_as_it_was(empty_dsn, files):
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("create table mine ()")
        with pytest.raises(SchemaMismatch):
            check(connection, source=files.source)
        connection.execute("select from mine")
        connection.rollback()
        with pytest.raises(SchemaMismatch):
            check(connection, source=files.source)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_any_role_that_may_use_the_schema_can_check_it(server, empty_dsn, files):
    role = f"mig_{psycopg.conninfo.conninfo_to_dict(empty_dsn)['dbname']}"[:60]
    files.function("zz_grants", "revoke all on all functions in schema leasehold from public;")
    migrate(empty_dsn, source=files.source)
    execute(empty_dsn, f'create role "{role}"')
    try:
        with psycopg.connect(empty_dsn, autocommit=True) as connection:
            connection.execute(f'set role "{role}"')
            with pytest.raises(NotPermitted, match="may not use schema"):
                check(connection, source=files.source)
            execute(empty_dsn, f'grant usage on schema leasehold to "{role}"')
            check(connection, source=files.source)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select from leasehold.migrations")
    finally:
        execute(empty_dsn, f'drop owned by "{role}"', f'drop role "{role}"')


@pytest.mark.parametrize("schema", ["jobs_2", "_x", "order", "a" * 40])
def test_two_schemas_live_in_one_database(empty_dsn, files, schema):
    migrate(empty_dsn, source=files.source)
    migrate(empty_dsn, schema=schema, source=files.source)
    execute(empty_dsn, f'insert into "{schema}".thing values (1)')
    assert rows(empty_dsn, f'select leasehold.things(), "{schema}".things()') == [(0, 1)]
    check(empty_dsn, schema=schema, source=files.source)


@pytest.mark.parametrize(
    "schema", ["", "Jobs", "my-jobs", 'a"b', "1a", "a" * 41, "pg_jobs", "public", "information_schema"]
)
def test_a_schema_name_that_is_not_plain_is_refused(schema):
    for action in (migrate, plan, check):
        with pytest.raises(ConfigError, match="schema name"):
            action("postgresql://127.0.0.1:1/never_asked", schema=schema)


def test_a_schema_of_another_owner_is_left_alone(empty_dsn, files):
    execute(empty_dsn, "create schema app", "create table app.migrations (id text)")
    with pytest.raises(ConfigError, match="not Leasehold's"):
        migrate(empty_dsn, schema="app", source=files.source)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("0003_gap", "select 1;", "'0003_gap.sql' is out of order"),
        ("0001_twice", "select 1;", "'0001_twice.sql' is out of order"),
        ("2_short", "select 1;", "'2_short.sql' is out of order"),
        ("0002_bad", "-- supports: 3\nselect 1;", "says it supports '3'"),
        ("0002_bad", "-- supports: all\nselect 1;", "says it supports 'all'"),
    ],
)
def test_files_that_cannot_be_right_are_refused(files, name, text, message):
    files.migration(name, text)
    with pytest.raises(ConfigError, match=message):
        _ = files.source


def test_the_packaged_files_install_and_pass_the_check(dsn):
    assert LATEST >= 1
    check(dsn)
    assert not plan(dsn).steps


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "viewer"])
def test_every_role_of_ours_can_check_the_packaged_schema(dsn, role):
    with psycopg.connect(dsn) as connection:
        connection.execute(f"set role leasehold_{role}")
        check(connection)
