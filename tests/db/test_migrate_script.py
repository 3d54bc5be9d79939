import subprocess

import psycopg
import pytest

from leasehold.db.migrations.files import packaged
from leasehold.db.migrations.migrate import LATEST, migrate, plan, script
from leasehold.errors import ConfigError


@pytest.fixture
def psql(program):
    """Run a script as a DBA would; returns the finished process."""
    tool = program("psql")

    def run(dsn, text, *options):
        return subprocess.run(
            [tool, "-X", "-q", *options, "-d", dsn],
            check=False,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def second_dsn(server, empty_dsn):
    """Another empty database."""
    name = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"] + "_second"
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f'create database "{name}" template template0')
        yield server.dsn(name)
        connection.execute(f'drop database "{name}" with (force)')


@pytest.mark.parametrize("schema", ["leasehold", "order"])
@pytest.mark.parametrize("kind", ["made up", "packaged"])
def test_the_script_makes_what_migrate_makes(empty_dsn, second_dsn, files, dump, psql, schema, kind):
    files.function("unfinished", "select 1 -- no semicolon")
    source = packaged() if kind == "packaged" else files.source
    ran = psql(empty_dsn, script(schema=schema, source=source), "-v", "ON_ERROR_STOP=1")
    assert (ran.returncode, ran.stderr) == (0, "")
    migrate(second_dsn, schema=schema, source=source)
    assert dump(empty_dsn) == dump(second_dsn)
    assert not plan(empty_dsn, schema=schema, source=source).steps


def test_a_script_upgrades_exactly_from_where_it_starts(empty_dsn, files, psql):
    files.migration("0002_more", "create table more ();").migration("0003_last", "create table last ();")
    migrate(empty_dsn, source=files.source.until(1))
    wrong = psql(empty_dsn, script(after=2, source=files.source))
    assert "schema leasehold is not at migration 2" in wrong.stderr
    assert plan(empty_dsn, source=files.source).before == 1
    right = psql(empty_dsn, script(after=1, source=files.source), "-v", "ON_ERROR_STOP=1")
    assert (right.returncode, right.stderr) == (0, "")
    assert not plan(empty_dsn, source=files.source).steps


def test_a_script_run_twice_changes_nothing_the_second_time(empty_dsn, files, dump, psql):
    text = script(source=files.source)
    psql(empty_dsn, text)
    before = dump(empty_dsn)
    again = psql(empty_dsn, text)
    assert "schema leasehold is installed already" in again.stderr
    assert dump(empty_dsn) == before


def test_a_script_fills_a_schema_that_was_made_for_it(empty_dsn, files, psql):
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("create schema leasehold")
    ran = psql(empty_dsn, script(source=files.source), "-v", "ON_ERROR_STOP=1")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("after", [-1, 2])
def test_a_script_cannot_start_after_what_is_unknown(files, after):
    with pytest.raises(ConfigError, match=f"after migration {after}"):
        script(after=after, source=files.source)


@pytest.mark.parametrize("start", range(1, LATEST + 1))
def test_a_database_upgraded_from_any_version_equals_a_fresh_one(empty_dsn, second_dsn, dump, start):
    migrate(empty_dsn, source=packaged().until(start))
    migrate(empty_dsn)
    migrate(second_dsn)
    assert dump(empty_dsn) == dump(second_dsn)
