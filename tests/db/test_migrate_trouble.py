"""Migrations that meet each other, other people's locks, missing rights and sudden death."""

import subprocess
import sys
import time
from contextlib import contextmanager

import psycopg
import pytest

from faults.waiting import until
from leasehold.db.migrations import migrate as module
from leasehold.db.migrations import plan as steps
from leasehold.db.migrations.migrate import Limits, back, check, migrate, plan, way_back
from leasehold.errors import DatabaseUnavailable, LeaseholdError, NotPermitted
from tests.db.proxy import Proxy
from tests.timing import bound

PROGRAM = """
import sys
from pathlib import Path
from leasehold.db.migrations.migrate import Source, migrate
print(len(migrate(sys.argv[1], source=Source.load(Path(sys.argv[2]))).migrations))
"""
QUICK = Limits(lock_timeout=0.2, turn_timeout=0.5, attempts=2, first_pause=0.05)
KILL = "select pg_terminate_backend(pid) from pg_stat_activity where pid = pg_backend_pid()"


def start(dsn, files):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dsn, str(files.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def role_with(dsn, *options):
    """A role of its own; yields a DSN that acts as it."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"][-40:] + "_role"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'create role "{name}" {" ".join(options)}')
        try:
            yield name, psycopg.conninfo.make_conninfo(dsn, options=f"-c role={name}")
        finally:
            connection.execute(f'drop owned by "{name}" cascade')
            connection.execute(f'drop role "{name}"')


def test_twenty_processes_at_once_do_it_once(empty_dsn, files):
    files.migration("0002_slow", "select pg_sleep(0.5);")
    processes = [start(empty_dsn, files) for _ in range(20)]
    answers = [(process.communicate(timeout=90), process.returncode) for process in processes]
    assert {(errors, code) for (_, errors), code in answers} == {("", 0)}
    assert sorted(output for (output, _), _ in answers) == ["0\n"] * 19 + ["2\n"]


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (migrate, "server_encoding"),
        (migrate, "pg_advisory"),
        (migrate, "schema_supports_from'"),  # the plan
        (migrate, "create table jobs"),
        (migrate, "COMMIT"),
        (plan, "schema_supports_from'"),
        (back, "server_encoding"),
        (way_back, "function_sets"),
        (check, "schema_supports_from'"),
    ],
)
def test_a_frozen_connection_is_given_up_whatever_it_carries(empty_dsn, run, what, monkeypatch, request):
    if run in (back, way_back):
        migrate(empty_dsn)
    monkeypatch.setattr(module, "_ANSWER", 1.0)
    proxy = Proxy(empty_dsn)
    request.addfinalizer(proxy.close)
    proxy.freeze_at(what)
    limits = {"limits": Limits(turn_timeout=0.5, step_timeout=1.0)} if run in (migrate, back) else {}
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match=r"no answer from PostgreSQL within 1(\.5)? s"):
        run(proxy.dsn, **limits)
    assert time.monotonic() - began < bound(10)
    monkeypatch.undo()
    proxy.freeze_at("")
    proxy.thaw()  # the server, too, sees the end of the other migration
    migrate(empty_dsn)


def test_a_migrator_whose_network_is_gone_releases_its_locks(empty_dsn, monkeypatch, request):
    """The server is not asked to commit and hears nothing any more, and another migration gets its turn."""
    monkeypatch.setattr(steps, "_SETTINGS", steps._SETTINGS.replace("'30s'", "'1s'"))
    monkeypatch.setattr(module, "_ANSWER", 1.0)
    proxy = Proxy(empty_dsn)
    request.addfinalizer(proxy.close)
    proxy.freeze_at("COMMIT")
    with pytest.raises(DatabaseUnavailable):
        migrate(proxy.dsn)
    monkeypatch.undo()
    assert migrate(empty_dsn).migrations


def test_a_killed_migration_leaves_nothing_and_the_next_succeeds(empty_dsn, files):
    files.migration("0002_endless", "create table half (); select pg_sleep(300);")
    process = start(empty_dsn, files)
    sleeps = """select from pg_stat_activity where datname = current_database()
        and application_name = 'leasehold migrate' and wait_event = 'PgSleep'"""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        until(lambda: connection.execute(sleeps).rowcount, "the migration is under way")
    process.kill()
    process.communicate(timeout=60)
    assert plan(empty_dsn, source=files.source).steps[0].title == "schema leasehold"
    files.migration("0002_endless", "create table half ();")
    # The server notices within a second that the client of the endless one is gone.
    report = migrate(empty_dsn, source=files.source, limits=Limits(turn_timeout=20))
    assert report.migrations == ("0001_things", "0002_endless")


def test_a_blocked_migration_gives_up_and_names_who_blocks(empty_dsn, files):
    migrate(empty_dsn, source=files.source)
    files.migration("0002_alter", "alter table thing add column extra text;")
    with psycopg.connect(empty_dsn, application_name="a long report") as blocker:
        blocker.execute("select count(*) from leasehold.thing")
        begun = time.monotonic()
        with pytest.raises(LeaseholdError, match="migration 0002_alter could not get its locks") as caught:
            migrate(empty_dsn, source=files.source, limits=QUICK)
        assert time.monotonic() - begun < bound(5)
        who = f"pid {blocker.info.backend_pid} (a long report, idle in transaction, its transaction is "
        assert who in str(caught.value)
        assert "s old): select count(*)" in str(caught.value)
    assert plan(empty_dsn, source=files.source).before == 1


def test_a_blocked_migration_tries_again_and_succeeds_when_the_way_is_free(empty_dsn, files):
    migrate(empty_dsn, source=files.source)
    files.migration("0002_alter", "alter table thing add column extra text;")
    patient = Limits(lock_timeout=0.2, attempts=20, first_pause=0.001)
    with psycopg.connect(empty_dsn) as blocker:
        # Ends by itself, while the migration waits or pauses.
        blocker.execute("set idle_in_transaction_session_timeout = '700ms'")
        blocker.commit()
        blocker.execute("lock table leasehold.thing in access share mode")
        assert migrate(empty_dsn, source=files.source, limits=patient).version == 2
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            blocker.execute("select 1")


def test_waiting_for_another_migration_has_an_end(empty_dsn, files):
    with psycopg.connect(empty_dsn, application_name="the other") as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('leasehold.migrate.leasehold', 0))")
        with pytest.raises(LeaseholdError, match="another migration of schema 'leasehold'") as caught:
            migrate(empty_dsn, source=files.source, limits=QUICK)
        assert f"pid {other.info.backend_pid} (the other, idle in transaction, its transaction is " in str(caught.value)
        # Another schema of the same database is not in the way.
        assert migrate(empty_dsn, schema="second", source=files.source, limits=QUICK).version == 1


def test_a_short_statement_timeout_does_not_end_the_wait_for_a_turn(empty_dsn, files):
    hurried = psycopg.conninfo.make_conninfo(empty_dsn, options="-c statement_timeout=100ms")
    with psycopg.connect(empty_dsn) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('leasehold.migrate.leasehold', 0))")
        with pytest.raises(LeaseholdError, match=r"within 0\.5 s"):
            migrate(hurried, source=files.source, limits=QUICK)


def test_timeouts_of_the_role_do_not_end_a_migration(empty_dsn, files):
    files.migration("0002_slow", "select pg_sleep(0.3);")
    hurried = psycopg.conninfo.make_conninfo(
        empty_dsn, options="-c statement_timeout=100ms -c default_transaction_isolation=serializable"
    )
    assert migrate(hurried, source=files.source).version == 2


def test_a_broken_connection_says_that_nothing_is_half_done(empty_dsn, files):
    files.migration("0002_broken", KILL)
    with pytest.raises(DatabaseUnavailable, match="broke during migration 0002_broken"):
        migrate(empty_dsn, source=files.source)
    assert plan(empty_dsn, source=files.source).steps[0].title == "schema leasehold"


def test_two_databases_that_create_the_same_role_at_once_both_succeed(server, empty_dsn, files):
    name = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"][-40:] + "_shared"
    files.migration(
        "0002_role",
        f"do $$ begin if not exists (select from pg_roles where rolname = '{name}') then"
        f' perform pg_sleep(0.2); create role "{name}"; end if; end $$; select pg_sleep(0.2);',
    )
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
        try:
            processes = [start(target, files) for target in (empty_dsn, server.dsn(name))]
            answers = [process.communicate(timeout=60) for process in processes]
            assert answers == [("2\n", ""), ("2\n", "")]
        finally:
            connection.execute(f'drop database "{name}" with (force)')
            connection.execute(f'drop role "{name}"')


def test_a_role_that_may_not_create_schemas_gets_an_error_that_says_so(empty_dsn, files):
    with role_with(empty_dsn) as (name, dsn):
        assert plan(dsn, source=files.source).version == 1
        with pytest.raises(NotPermitted, match=f"'{name}' lacks CREATE on database") as caught:
            migrate(dsn, source=files.source)
        assert "leasehold migrate --sql" in str(caught.value.hint)


def test_a_role_that_may_not_create_roles_gets_an_error_that_says_so(empty_dsn, files):
    files.migration("0002_role", "create role mig_never_made;")
    with role_with(empty_dsn) as (name, dsn), psycopg.connect(empty_dsn, autocommit=True) as admin:
        # An empty schema made for it is enough otherwise.
        admin.execute(f'create schema leasehold authorization "{name}"')
        with pytest.raises(NotPermitted, match=f"'{name}' lacks CREATEROLE: migration 0002_role"):
            migrate(dsn, source=files.source)
        assert migrate(dsn, source=files.source.until(1)).version == 1


def test_a_role_that_does_not_own_the_schema_gets_an_error_that_names_the_owner(empty_dsn, files):
    migrate(empty_dsn, source=files.source)
    with role_with(empty_dsn) as (name, dsn):
        for action in (plan, migrate):
            with pytest.raises(NotPermitted, match=f"'{name}' is not the owner of schema 'leasehold'"):
                action(dsn, source=files.source)
