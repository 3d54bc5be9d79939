"""Roles and grants that a restore left out are noticed and repaired; encodings that cannot hold jobs are refused."""

import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from leasehold.db.migrations.errors import ROLES, worth_repeating
from leasehold.db.migrations.migrate import migrate, plan
from leasehold.embedded import EmbeddedServer
from leasehold.errors import ConfigError, NotPermitted

DOCTOR = "select verdict, detail, cure from leasehold.doctor() where name = 'grants'"
BY_PUBLIC = """
select count(*) from pg_proc p cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
where p.pronamespace = 'leasehold'::regnamespace and a.grantee = 0
"""


def ask(dsn: str, query: str) -> tuple:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query).fetchone()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Iterator[EmbeddedServer]:
    """A cluster in which Leasehold has never been."""
    with EmbeddedServer(tmp_path_factory.mktemp("fresh"), settings={"fsync": False}) as server:
        yield server


def test_an_owner_without_createrole_needs_the_roles_and_nothing_else(fresh):
    with psycopg.connect(fresh.dsn(), autocommit=True) as admin:
        admin.execute("create role plain login")
        admin.execute("create database plain owner plain template template0")
    mine = make_conninfo(fresh.dsn("plain"), user="plain")
    with pytest.raises(NotPermitted) as refused:
        migrate(mine)
    assert "lacks CREATEROLE" in str(refused.value)
    assert all(role in str(refused.value) for role in ROLES)
    with psycopg.connect(fresh.dsn(), autocommit=True) as admin:
        for role in ROLES:
            admin.execute(f"create role {role} nologin")
    assert migrate(mine).changed
    assert ask(mine, DOCTOR)[0] == "ok"
    with psycopg.connect(fresh.dsn(), autocommit=True) as admin:
        admin.execute("drop database plain")
        for role in ROLES:
            admin.execute(f"drop role {role}")


def test_a_restore_where_the_roles_are_missing_is_repaired(fresh, dsn, program):
    text = subprocess.run([program("pg_dump"), dsn], check=True, capture_output=True, timeout=60).stdout
    fresh.ensure_database("restored")
    there = fresh.dsn("restored")
    restored = subprocess.run(
        [program("psql"), "-q", "-d", there], input=text, capture_output=True, timeout=60, check=True
    )
    assert b'role "leasehold_worker" does not exist' in restored.stderr
    verdict, detail, cure = ask(there, DOCTOR)
    assert (verdict, "role leasehold_worker is missing" in detail) == ("fail", True)
    assert "leasehold migrate" in cure
    assert "role leasehold_api is missing" in plan(there).repairs
    report = migrate(there)
    assert report.changed
    assert "role leasehold_worker is missing" in report.repairs
    assert ask(there, DOCTOR)[0] == "ok"
    assert not migrate(there).changed


def test_a_restore_without_grants_is_noticed_and_repaired(admin, dsn, program):
    whole = [program("pg_dump"), "--no-acl", "--no-owner", dsn]
    text = subprocess.run(whole, check=True, capture_output=True, timeout=60).stdout
    with admin.database() as name:
        there = admin.server.dsn(name)
        subprocess.run([program("psql"), "-q", "-d", there], input=text, capture_output=True, timeout=60, check=True)
        assert ask(there, BY_PUBLIC)[0] > 100
        verdict, detail, _ = ask(there, DOCTOR)
        assert (verdict, "PUBLIC may call" in detail) == ("fail", True)
        assert "leasehold_worker has no right to" in detail
        assert any(problem.startswith("PUBLIC may call") for problem in migrate(there).repairs)
        assert ask(there, BY_PUBLIC)[0] == 2  # schema_version, schema_supports_from
        assert ask(there, DOCTOR)[0] == "ok"


def test_one_grant_that_was_revoked_is_granted_again(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("revoke execute on all functions in schema leasehold from leasehold_viewer")
    assert migrate(dsn).repairs[0].startswith("leasehold_viewer has no right to ")
    assert migrate(dsn).repairs == ()


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
def test_an_encoding_that_cannot_hold_every_text_is_refused_before_anything_changes(admin, encoding):
    name = sql.Identifier(f"test_{encoding.lower()}")
    create = "create database {} encoding {} lc_collate 'C' lc_ctype 'C' locale_provider libc template template0"
    admin.connection.execute(sql.SQL(create).format(name, sql.Literal(encoding)))
    try:
        there = admin.server.dsn(f"test_{encoding.lower()}")
        with pytest.raises(ConfigError, match=f"encoding {encoding}, and Leasehold needs UTF8") as refused:
            migrate(there)
        assert "encoding 'UTF8'" in str(refused.value)
        assert ask(there, "select to_regnamespace('leasehold')") == (None,)
    finally:
        admin.connection.execute(sql.SQL("drop database {} with (force)").format(name))


@pytest.mark.parametrize("message", ["tuple concurrently updated", "Tupel gleichzeitig aktualisiert"])
def test_whether_to_try_again_follows_from_the_code_in_every_language(dsn, message):
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.raises(errors.InternalError_) as raised:
        connection.execute(f"do $$ begin raise exception '{message}' using errcode = 'XX000'; end $$")
    assert worth_repeating(raised.value)
