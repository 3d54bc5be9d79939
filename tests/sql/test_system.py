"""Laws of the report on the server: it names what holds back the horizon, and no role sees more than it may."""

import uuid

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo


def holders(session):
    return {holder.application: holder for holder in session.rows("holders", max=50)}


def test_an_idle_transaction_that_holds_the_horizon_back_is_named(dsn, session):
    with psycopg.connect(dsn, application_name="forgotten console") as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select 'the last query'")
        found = holders(session)["forgotten console"]
        assert (found.what, found.pid, found.state) == ("session", idle.info.backend_pid, "idle in transaction")
        assert found.query == "select 'the last query'"
        assert found.seconds >= 0
        before = found.xids
        for _ in range(5):
            session.execute("select txid_current()")
        assert holders(session)["forgotten console"].xids >= before + 5
        seen = session.one("system")
        (same,) = [h for h in seen["horizon"] if h["application"] == "forgotten console"]
        assert "query" not in same
        assert same["pid"] == idle.info.backend_pid
    assert "forgotten console" not in holders(session)


def test_a_replication_slot_is_named(session):
    name = f"slot_{uuid.uuid4().hex[:8]}"
    session.execute("select pg_create_physical_replication_slot(%s, true)", [name])
    try:
        # A physical slot has an xmin only once a standby has fed back; what has none holds nothing back.
        assert name not in [holder.name for holder in session.rows("holders", max=50)]
    finally:
        session.execute("select pg_drop_replication_slot(%s)", [name])


def test_the_tables_are_there_with_their_sizes_and_the_settings_that_matter(session):
    session.one("enqueue", kind="k")
    found = session.one("system")
    tables = {table["name"]: table for table in found["tables"]}
    assert {"jobs", "attempts", "workers", "statistics"} <= tables.keys()
    assert tables["jobs"]["bytes"] > 0
    assert tables["jobs"]["index_bytes"] > 0
    assert {"autovacuum", "fsync", "synchronous_commit"} <= found["settings"].keys()
    assert 0 < found["connections"] <= found["max_connections"]
    assert found["deadlocks"] >= 0
    assert found["sees_sessions"] is True, "the schema's owner is a superuser here"


def test_what_a_job_costs_is_known_from_two_samples(session, clock):
    assert session.one("system")["per_job"]["jobs"] is None
    session.rows("upkeep")
    clock.advance(30)
    row = {"queue": "q", "kind": "k", "success": 100, "waits": [0] * 42, "runs": [0] * 42}
    session.one("statistics_add", worker="w", number=1, age=5, rows=[row])
    clock.advance(40)
    session.rows("upkeep")
    cost = session.one("system")["per_job"]
    assert (cost["jobs"], cost["seconds"]) == (100, 60)
    assert cost["wal_bytes"] > 0
    assert cost["transactions"] >= 0


def test_an_owner_who_may_not_see_sessions_says_so(admin, migrated):
    """Not as nothing: as not permitted."""
    owner = f"test_{uuid.uuid4().hex[:12]}"
    name = sql.Identifier(owner)
    with admin.database(template=migrated) as database:
        admin.connection.execute(sql.SQL("create role {} login password 'x'").format(name))
        dsn = admin.server.dsn(database)
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(sql.SQL("grant usage on schema leasehold to {}").format(name))
                connection.execute(sql.SQL("grant all on all tables in schema leasehold to {}").format(name))
                for function in ("system_v1()", "holders_v1(integer)", "horizon()", "sees_sessions()", "clock()"):
                    connection.execute(sql.SQL(f"grant execute on function leasehold.{function} to {{}}").format(name))
                connection.execute(sql.SQL("grant execute on all functions in schema leasehold to {}").format(name))
                connection.execute("alter function leasehold.system_v1() security invoker")
            with psycopg.connect(dsn), psycopg.connect(make_conninfo(dsn, user=owner, password="x")) as connection:
                found = connection.execute("select leasehold.system_v1()").fetchone()[0]
            assert found["sees_sessions"] is False
            assert found["connections"] >= 2, "sessions of other roles count although their type is hidden"
        finally:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(sql.SQL("drop owned by {}").format(name))
            admin.connection.execute(sql.SQL("drop role {}").format(name))


@pytest.mark.parametrize("function", ["system", "holders"])
def test_looking_writes_nothing(session, function):
    before = session.everything()
    with session.transaction():
        session.execute("set transaction read only")
        session.rows(function)
    assert session.everything() == before
