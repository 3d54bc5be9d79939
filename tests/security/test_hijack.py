"""Laws of whose objects the functions use: the schema's own, whatever a caller puts in front of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from tests.security.conftest import Login

HIJACKED = "EV001"
BODY = f"begin raise exception using errcode = '{HIJACKED}'; end"

# Stand-ins for what the functions call by name. Whichever of them runs ends the call with a code of its own.
FUNCTIONS = {
    "clock()": "timestamptz",
    "clock_timestamp()": "timestamptz",
    "uuidv7()": "uuid",
    "gen_random_uuid()": "uuid",
    "announce(queues text[])": "void",
    "verdict(outcome text, fatal boolean, failures integer, max_attempts integer)": "text",
    "refuse(sqlstate_code text, message text, detail text, hint text)": "void",
    "check_worker(worker text)": "void",
    "expire(ids uuid[])": "integer",
    "unpark(keys text[], brief boolean)": "void",
    "begin_claim(worker text, claim_id uuid)": "boolean",
    "lease_seconds_v1(kind text)": "double precision",
    "sweep_v1(max integer)": "integer",
    "cardinality(anyarray)": "integer",
    "jsonb_typeof(jsonb)": "text",
    "octet_length(text)": "integer",
    "equal(uuid, uuid)": "boolean",
    "equal(text, text)": "boolean",
    "equal(integer, integer)": "boolean",
    "less(timestamptz, timestamptz)": "boolean",
}
OPERATORS = [
    ("=", "equal", "uuid"),
    ("=", "equal", "text"),
    ("=", "equal", "integer"),
    ("<=", "less", "timestamptz"),
    (">", "less", "timestamptz"),
]
TABLES = {
    "jobs": "id uuid, state text, kind text, queue text",
    "attempts": "job_id uuid, attempt integer",
    "kinds": "kind text, lease_seconds double precision",
    "job_logs": "job_id uuid, attempt integer, lines jsonb",
}
WORKERS_VIEW = "select 'mine'::text as id, null::uuid as claim_id, now() as seen_at"


@contextmanager
def attacker(login: Login, owner: psycopg.Connection, names: dict[str, str], role: str) -> Iterator[psycopg.Connection]:
    """Log in, make false objects in the temporary schema and in one of one's own, and look there first."""
    database, name = sql.Identifier(owner.info.dbname), sql.Identifier(names[role])
    owner.execute(sql.SQL("grant create, temporary on database {} to {}").format(database, name))
    with login(role) as connection:
        connection.execute("create schema evil")
        for schema in ("evil", "pg_temp"):
            for signature, result in FUNCTIONS.items():
                statement = f"create function {schema}.{signature} returns {result} language plpgsql as '{BODY}'"
                connection.execute(statement.replace(f"'{BODY}'", f"$body${BODY}$body$"))
            for table, columns in TABLES.items():
                connection.execute(f"create table {schema}.{table} ({columns})")
            connection.execute(f"create view {schema}.workers as {WORKERS_VIEW}")
        connection.execute("create type evil.job_state as enum ('queued', 'created', 'running')")
        connection.execute("create type pg_temp.job_state as enum ('hijacked')")
        connection.execute(
            "create function evil.as_text(evil.job_state) returns text language plpgsql as $body$" + BODY + "$body$"
        )
        connection.execute("create cast (evil.job_state as text) with function evil.as_text as implicit")
        for operator, function, type_ in OPERATORS:
            connection.execute(
                f"create operator evil.{operator} (function = evil.{function}, leftarg = {type_}, rightarg = {type_})"
            )
        connection.execute("set search_path = evil, pg_temp, leasehold, pg_catalog")
        yield connection


def work(connection: psycopg.Connection, role: str) -> None:
    """Call what the role may call."""
    if role == "producer":
        connection.execute("select leasehold.enqueue_v1('k', idempotency_key => 'i', exclusive_key => 'x')")
        connection.execute("select leasehold.enqueue('k', idempotency_key => 'i')")
        connection.execute("""select leasehold.enqueue_many('[{"kind": "k"}, {"kind": "k", "run_after": "1 hour"}]')""")
        ((id_,),) = connection.execute("select leasehold.submit('k')").fetchall()
        connection.execute("select leasehold.accept(%s)", [id_])
        connection.execute("select * from leasehold.status(%s)", [id_])
        return
    connection.execute("select leasehold.start_worker('w', kinds => '{k}', lease_seconds => '{30}')")
    claimed = connection.execute(
        "select id from leasehold.claim('w', count => 10, claim_id => '00000000-0000-0000-0000-000000000001')"
    ).fetchall()
    ids = [id_ for (id_,) in claimed]
    assert len(ids) == 4
    attempts = [1] * len(ids)
    connection.execute("select leasehold.heartbeat('w', %s, %s)", [ids, attempts])
    connection.execute("select leasehold.complete('w', %s, %s)", [ids[:1], [1]])
    connection.execute("select leasehold.fail('w', %s, 1, retry_after => 0)", [ids[1]])
    connection.execute("select leasehold.release('w', %s, %s)", [ids[2:3], [1]])
    connection.execute("select leasehold.claim_job(%s, 'w')", [ids[2]])
    connection.execute("select leasehold.sweep(), leasehold.promote(), leasehold.next_due()")
    connection.execute("select * from leasehold.owned('w')")


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_objects_in_front_of_the_schema_are_never_used(
    login: Login, owner: psycopg.Connection, names: dict[str, str], role: str
) -> None:
    if role == "worker":
        owner.execute("select leasehold.enqueue('k', exclusive_key => 'x' || n) from generate_series(1, 4) n")
    with attacker(login, owner, names, role) as connection:
        # The false objects are what the caller itself would get.
        for call in ("clock()", "uuidv7()", "'a'::text = 'a'::text", "now() <= now()"):
            assert sqlstate_of(connection, f"select {call}") == HIJACKED, call
        work(connection, role)
        for schema in ("evil", "pg_temp"):
            for table in TABLES:
                assert connection.execute(f"select count(*) from {schema}.{table}").fetchall() == [(0,)]
    states = owner.execute("select state, count(*) from leasehold.jobs group by state").fetchall()
    if role == "producer":
        assert dict(states) == {"queued": 3, "created": 1}
    else:
        assert dict(states) == {"success": 1, "queued": 1, "running": 2}
        assert owner.execute("select id from leasehold.workers").fetchall() == [("w",)]
        assert owner.execute("select kind, lease_seconds from leasehold.kinds").fetchall() == [("k", 30)]


def test_without_a_pinned_search_path_the_same_objects_are_used(
    login: Login, owner: psycopg.Connection, names: dict[str, str]
) -> None:
    owner.execute("alter function leasehold.enqueue_v1 reset search_path")
    with attacker(login, owner, names, "producer") as connection:
        owner.execute("grant usage on schema evil to public")
        with pytest.raises(psycopg.Error) as caught:
            work(connection, "producer")
        assert caught.value.sqlstate == HIJACKED


def test_a_temporary_table_is_not_used_though_the_callers_path_finds_it_first(login: Login) -> None:
    with login("producer") as connection:
        connection.execute("create temp table jobs (id uuid, kind text)")
        ((id_,),) = connection.execute("select leasehold.enqueue('k')").fetchall()
        assert connection.execute("select count(*) from jobs").fetchall() == [(0,)]
        assert connection.execute("select state from leasehold.status(%s)", [id_]).fetchall() == [("queued",)]


HARMLESS_SETTINGS = {
    "'transaction_isolation'",  # claims under limits refuse all but one
    "'server_version'", "'server_version_num'", "'max_connections'", "'superuser_reserved_connections'",  # no caller's
    "'lock_timeout'",  # only put back after a claim has waited for a limit
    "'server_encoding'",  # of the database
    "s.setting",  # only shown, by doctor and system
}  # fmt: skip


def test_no_setting_of_the_caller_moves_the_time(login: Login, owner: psycopg.Connection) -> None:
    read = owner.execute(
        "select distinct m[1] from pg_proc, regexp_matches(prosrc, 'current_setting\\(([^)]*)\\)', 'g') m"
        " where pronamespace = 'leasehold'::regnamespace"
    ).fetchall()
    assert {setting for (setting,) in read} <= HARMLESS_SETTINGS, (
        "a function that reads settings lets its callers decide"
    )
    with login("producer") as connection:
        for setting in ("leasehold.clock", "leasehold.now", "leasehold.time", "clock.now"):
            connection.execute(f"set {setting} = '2000-01-01'")
        connection.execute("set timezone = 'Pacific/Kiritimati'")
        connection.execute("set datestyle = 'SQL, DMY'")
        connection.execute("select leasehold.enqueue('k')")
    ((at,),) = owner.execute("select created_at from leasehold.jobs").fetchall()
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)


def test_notifications_name_the_queue_and_nothing_of_the_job(login: Login) -> None:
    with login("nobody") as listener, login("producer") as producer, login("worker") as worker:
        listener.execute("listen leasehold")
        producer.execute(
            "select leasehold.enqueue('secret-kind', '{\"a\": \"secret\"}', 'mail', idempotency_key => 'secret',"
            " exclusive_key => 'secret', tags => '{secret}')"
        )
        producer.execute("select leasehold.enqueue('secret-kind', run_after => '1 hour')")
        producer.execute("""select leasehold.enqueue_many('[{"kind": "secret-kind", "exclusive_key": "secret"}]')""")
        ((id_,),) = worker.execute("select id from leasehold.claim('secret-worker', '{mail}')").fetchall()
        worker.execute("select leasehold.claim('secret-worker')")
        worker.execute("select leasehold.release('secret-worker', array[%s], '{1}')", [id_])
        # Sent last, so that everything before it has arrived when it does.
        worker.execute("notify leasehold, 'end'")
        told = []
        for notification in listener.notifies(timeout=30):
            if notification.payload == "end":
                break
            told.append((notification.channel, notification.payload))
        else:
            pytest.fail("the last notification never came")
    assert set(told) == {("leasehold", "mail"), ("leasehold", "@due"), ("leasehold", "default")}


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "viewer"])
def test_no_role_may_change_the_functions_or_become_their_owner(login: Login, role: str) -> None:
    with login(role) as connection:
        for statement in (
            "create or replace function leasehold.clock() returns timestamptz language sql return now()",
            "create function leasehold.mine() returns integer language sql return 1",
            "create table leasehold.mine (id integer)",
            "alter function leasehold.clock() owner to current_user",
            "alter function leasehold.sweep(integer) reset all",
            "drop function leasehold.sweep(integer)",
            "alter table leasehold.jobs disable trigger jobs_transition",
            "set session_replication_role = replica",
            "create trigger mine before insert on leasehold.jobs execute function leasehold.refuse_transition()",
        ):
            assert sqlstate_of(connection, statement) == "42501", statement


def sqlstate_of(connection: psycopg.Connection, statement: str) -> str | None:
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate
    return None
