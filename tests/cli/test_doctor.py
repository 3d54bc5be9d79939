"""`leasehold doctor`: what is wrong is found, said in words with its cure, and ends with 1 if it fails."""

import re
import shutil
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from leasehold.cli import system
from leasehold.db.migrations.migrate import migrate
from leasehold.embedded import EmbeddedServer
from tests.cli.terminal import terminal
from tests.survival.test_pgbouncer import PGBOUNCER, pgbouncer

CHECKS = {
    "settings", "time", "notifications",
    "schema", "server", "writable", "durability", "connections", "privileges", "grants", "indexes", "autovacuum",
    "horizon", "workers", "leases", "due", "kinds", "queues", "lanes", "schedules", "clock", "listen",
}  # fmt: skip


@pytest.fixture
def findings(cli, dsn, sql):
    """What the doctor finds, by name. The tests' own server does without fsync, for speed: that alone is excused."""
    name = sql("select current_database()")[0][0]
    sql(f"alter database {name} set synchronous_commit = on")

    def look(*arguments: str, code: int = 1) -> dict[str, dict[str, str]]:
        found = {row["name"]: row for row in cli("doctor", *arguments, "--json", code=code).json}
        assert found.keys() == CHECKS
        return found

    return look


def test_all_is_well_but_for_what_the_tests_do_to_their_server(findings):
    found = findings()
    wrong = {name for name, row in found.items() if row["verdict"] != "ok"}
    assert wrong <= {"durability", "workers", "horizon"}
    assert "fsync = off" in found["durability"]["detail"]
    assert found["listen"]["detail"].startswith("a NOTIFY arrives")
    assert found["server"]["detail"].startswith("PostgreSQL 1")


def test_jobs_that_no_worker_handles_are_found(findings, sql):
    sql("select start_worker('w1', queues => '{mail}', kinds => '{SEND}', lease_seconds => '{60}')")
    sql.enqueue("SEND", "mail")
    assert findings()["kinds"]["verdict"] == findings()["queues"]["verdict"] == "ok"
    sql.enqueue("UNKNOWN", "mail")
    sql.enqueue("SEND", "elsewhere")
    sql.enqueue("LATE", "late")
    job = sql.claim("w2", queue="late")[0]
    sql("update jobs set lease_expires_at = now() - interval '1 minute' where id = %s", job)
    due = sql.enqueue("SEND", run_at="2040-01-01")
    sql("update jobs set run_at = now() - interval '1 minute' where id = %s", due)
    sql("select schedule_put('daily', 'SEND', cron => '0 6 * * *')")
    sql("update schedules set next_run_at = now() - interval '1 hour'")
    found = findings()
    assert (found["kinds"]["verdict"], "UNKNOWN" in found["kinds"]["detail"]) == ("warn", True)
    assert (found["queues"]["verdict"], "elsewhere" in found["queues"]["detail"]) == ("warn", True)
    assert (found["leases"]["verdict"], found["leases"]["detail"][:8]) == ("fail", "1 leases")
    assert (found["due"]["verdict"], found["due"]["cure"]) == ("fail", "start a worker: each of them promotes")
    assert (found["schedules"]["verdict"], "daily" in found["schedules"]["detail"]) == ("warn", True)
    assert found["workers"]["verdict"] == "ok"


def test_a_schedule_that_is_claimed_and_not_fired_is_late(findings, sql):
    sql("select schedule_put('daily', 'SEND', cron => '0 6 * * *')")
    assert findings()["schedules"]["verdict"] == "ok"
    sql("update schedules set next_run_at = now() - interval '3 hours'")
    sql("select schedule_claim('daily', 'w1')")
    found = findings()["schedules"]
    assert (found["verdict"], found["cure"]) == ("warn", "start a worker; leasehold schedules list shows more")
    assert found["detail"].startswith("not fired: daily (due since 2")
    assert found["detail"].endswith(", claimed by w1)")


def test_thousands_of_queues_with_waiting_jobs_are_found(findings, sql):
    assert findings()["lanes"]["verdict"] == "ok"
    sql("select enqueue('K', '{}', queue => 'tenant ' || n, notify => false) from generate_series(1, 2001) n")
    found = findings()["lanes"]
    assert (found["verdict"], "more than 2000" in found["detail"]) == ("warn", True)


def test_what_is_wrong_with_the_server_is_found(findings, sql):
    name = sql("select current_database()")[0][0]
    sql(f"alter database {name} set synchronous_commit = off")
    sql("alter table jobs set (autovacuum_enabled = false)")
    sql("update pg_index set indisvalid = false where indexrelid = 'jobs_due'::regclass")
    found = findings()
    assert "synchronous_commit = off" in found["durability"]["detail"]
    assert found["durability"]["verdict"] == "fail"
    assert (found["autovacuum"]["verdict"], "jobs" in found["autovacuum"]["detail"]) == ("fail", True)
    assert (found["indexes"]["verdict"], found["indexes"]["cure"]) == ("fail", "reindex index concurrently jobs_due")


def test_the_session_that_holds_back_vacuum_is_named(findings, sql, dsn):
    # A test cannot wait five minutes: what the doctor sees of sessions is a view that this test puts in its own place.
    with psycopg.connect(dsn, application_name="the culprit") as held:
        held.execute("select txid_current()")
        pid = held.info.backend_pid
        sql("alter function horizon() rename to horizon_now")
        sql(
            """create function horizon() returns table (what text, pid integer, name text, application text, state text,
            xids bigint, seconds double precision, query text) language sql stable as $$
            select what, pid, name, application, state, xids, seconds + 4000, query from leasehold.horizon_now() $$"""
        )
        found = findings()["horizon"]
        assert found["verdict"] == "fail"
        assert f"session {pid} of 'the culprit'" in found["detail"]
        assert "select txid_current()" in found["detail"]
        assert found["cure"] == f"select pg_terminate_backend({pid})"


def test_an_empty_queue_of_notifications_names_no_session(sql):
    [(found, detail)] = sql("select verdict, detail from doctor_notify_queue(%s)", 0.0)
    assert (found, detail) == ("ok", "the queue of notifications is 0.0 % full")


@pytest.mark.parametrize(("usage", "verdict"), [(0, "ok"), (0.1, "warn"), (0.7, "fail")])
def test_a_queue_of_notifications_that_fills_up_is_found_with_the_session_that_holds_it(sql, dsn, usage, verdict):
    with psycopg.connect(dsn) as listener:
        listener.execute("listen x")
        [(found, detail, cure)] = sql("select verdict, detail, cure from doctor_notify_queue(%s)", usage)
        assert found == verdict
        if verdict != "ok":
            assert re.search(r"[17]0.0 % full; the oldest transaction is that of session \d+ ", detail)
            assert re.search(r"pg_terminate_backend\(\d+\)", cure)


def test_a_clock_that_is_off_is_found(findings, monkeypatch):
    real = time.time
    monkeypatch.setattr(system.time, "time", lambda: real() + 3600)
    found = findings()["clock"]
    assert found["verdict"] == "fail"
    assert "3600" in found["detail"] or "3599" in found["detail"]


def test_in_words_each_check_is_a_line_with_its_cure(cli, sql):
    done = cli("doctor", code=1)
    lines = done.out.splitlines()
    assert {line.split()[1] for line in lines if line[:4] in ("ok  ", "warn", "fail")} == CHECKS
    assert "      cure: " in lines[lines.index(next(line for line in lines if line.startswith("fail"))) + 1]
    assert f"{len(CHECKS)} checks: " in done.err


def test_a_schema_that_is_missing_is_a_finding_and_ends_with_4(bare, empty_dsn):
    done = bare("doctor", "--dsn", empty_dsn, "--json")
    assert done.code == 4
    (found,) = done.json
    assert (found["name"], found["verdict"]) == ("schema", "fail")
    assert "leasehold migrate" in found["cure"]


def test_in_a_terminal_it_is_the_same_in_colour(dsn):
    with terminal("doctor", LEASEHOLD_DSN=dsn, columns=200) as screen:
        assert screen.end() == 1  # the tests' server does without fsync
        assert "ok    schema" in screen.text
        assert "\x1b[32m" in screen.raw


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (CI installs Debian's)")
def test_a_notify_that_a_pooler_swallows_is_found(tmp_path: Path, bare, monkeypatch):
    # Not below pytest's folder, which only its owner may enter; PgBouncer runs as another user.
    short = Path(tempfile.mkdtemp(prefix="leasehold-pgbouncer-"))
    monkeypatch.setenv("LEASEHOLD_PREPARE", "off")
    try:
        with EmbeddedServer(tmp_path / "home", tcp=True, settings={"fsync": False}) as server:
            server.ensure_database("pooled")
            migrate(server.dsn("pooled"))
            with pgbouncer(server, short) as dsn:
                done = bare("doctor", "--dsn", dsn, "--listen", "1", "--json")
    finally:
        shutil.rmtree(short, ignore_errors=True)
    found = {row["name"]: row for row in done.json}["listen"]
    assert found["verdict"] == "warn"
    assert "pooler" in found["detail"]


def test_each_login_is_named_with_what_it_may_do_and_the_roles_that_it_lacks(dsn, sql, bare, monkeypatch):
    run = f"t{time.time_ns()}"
    owner, operator, stranger = f"{run}_owner", f"{run}_operator", f"{run}_stranger"
    for role in (owner, operator, stranger):
        sql(f"create role {role} login")
    try:
        sql(f"grant leasehold_operator to {owner}, {operator}")
        sql(f"alter schema leasehold owner to {owner}")
        sql(f"grant usage on schema leasehold to {stranger}")
        words = {}
        for role in (owner, operator):
            sql(f"set session authorization {role}")
            words[role] = sql("select detail from doctor() where name = 'privileges'")[0][0]
            sql("reset session authorization")
        assert words[owner] == f"{owner} owns schema leasehold and may do everything in it"
        assert words[operator] == f"{operator} has leasehold_operator"
        monkeypatch.setenv("LEASEHOLD_DSN", psycopg.conninfo.make_conninfo(dsn, user=stranger))
        refused = bare("verify")
        assert (refused.code, "leasehold_viewer and leasehold_api may call verify" in refused.err) == (1, True), (
            refused.err
        )
    finally:
        sql("reset session authorization")
        sql("alter schema leasehold owner to current_user")
        sql(f"drop owned by {owner}, {operator}, {stranger}")
        sql(f"drop role {owner}, {operator}, {stranger}")


@pytest.mark.parametrize(
    ("role", "verdict", "words"),
    [("operator", "ok", "a NOTIFY arrives"), ("viewer", "warn", "not checked: this login may not call notify")],
)
def test_whether_a_notify_arrives_is_said_to_a_login_that_may_send_one(dsn, sql, bare, role, verdict, words):
    login = f"t{time.time_ns()}_{role}"
    sql(f"create role {login} login")
    try:
        sql(f"grant leasehold_{role} to {login}")
        done = bare("doctor", "--dsn", psycopg.conninfo.make_conninfo(dsn, user=login), "--json")
        found = {row["name"]: row for row in done.json}["listen"]
        assert (found["verdict"], words in found["detail"]) == (verdict, True), found
    finally:
        sql(f"drop owned by {login}")
        sql(f"drop role {login}")


@pytest.mark.parametrize(
    ("setting", "verdict", "words"),
    [
        ("default_transaction_read_only = on", "fail", "nothing can be recorded"),
        ("session_replication_role = replica", "fail", "the guard of the state machine is switched off"),
        ("default_transaction_isolation = 'serializable'", "warn", "may have to be repeated"),
        ("statement_timeout = '2s'", "warn", "cut off and sent again"),
        ("statement_timeout = 300", "fail", "cut off and sent again"),
        ("lock_timeout = '500ms'", "warn", "cut off and sent again"),
        ("idle_in_transaction_session_timeout = '100ms'", "warn", "cut off and sent again"),
        ("idle_session_timeout = '10s'", "warn", "idle connections are cut"),
        ("enable_indexscan = off", "fail", "claims read whole tables"),
        ("standard_conforming_strings = off", "warn", "backslashes"),
        ("restrict_nonsystem_relation_kind = 'view'", "warn", "limits cannot be listed"),
    ],
)
def test_a_setting_of_the_database_that_gets_in_the_way_is_named(sql, setting, verdict, words):
    name = sql("select current_database()")[0][0]
    assert sql("select verdict, detail from doctor_settings()")[0][0] == "ok"
    sql(f"alter database {name} set {setting}")
    ((found, detail),) = sql("select verdict, detail from doctor_settings()")
    assert (found, words in detail) == (verdict, True), detail
    assert setting.split()[0] in detail
    assert f"database {name}" in detail


def test_a_command_that_a_setting_refuses_says_which_without_a_traceback(sql, cli):
    name = sql("select current_database()")[0][0]
    sql(f"alter database {name} set restrict_nonsystem_relation_kind = 'view'")
    refused = cli("limits", "list", code=1)
    assert "restrict_nonsystem_relation_kind is set" in refused.err
    assert "Traceback" not in refused.err


def test_doctor_names_the_setting_with_which_nothing_can_be_recorded(sql, cli):
    name = sql("select current_database()")[0][0]
    sql(f"alter database {name} set default_transaction_read_only = on")
    found = cli("doctor", "--listen", "0.5", code=1)
    assert f"default_transaction_read_only = on for database {name}" in found.out, found


def test_a_role_whose_settings_or_connections_get_in_the_way_is_named(sql):
    role = f"t{time.time_ns()}"
    sql(f"create role {role} login connection limit 3")
    try:
        sql(f"grant leasehold_worker to {role}")
        sql(f"alter role {role} in database {sql('select current_database()')[0][0]} set synchronous_commit = off")
        ((verdict, detail),) = sql("select verdict, detail from doctor_settings()")
        assert verdict == "fail"
        assert f"connection limit = 3 for role {role}: a worker process needs five" in detail
        assert f"synchronous_commit = off for role {role} in database" in detail
    finally:
        sql(f"drop owned by {role}")
        sql(f"drop role {role}")


def test_a_clock_of_the_server_that_was_set_back_is_named(findings, sql):
    sql("select start_worker('w1', queues => '{mail}', kinds => '{SEND}', lease_seconds => '{60}')")
    assert findings()["time"]["verdict"] == "ok"
    # As after a step back of an hour: what was written before it lies in the future.
    sql("update workers set seen_at = seen_at + interval '1 hour'")
    found = findings()["time"]
    assert (found["verdict"], "was set back" in found["detail"]) == ("fail", True)
