import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import psycopg
import pytest

from faults.waiting import until
from leasehold import __version__
from leasehold.cli import app as app_module
from leasehold.cli import main
from leasehold.cli.migrate import _summary
from leasehold.db.migrations.migrate import LATEST, Plan, check, plan, script
from leasehold.errors import SchemaMismatch
from tests.timing import bound


def leasehold(*arguments, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}
    return subprocess.run(
        [sys.executable, "-m", "leasehold", *arguments],
        check=False,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def listener(*answers):
    """A port that says `answers` in turn, each after it heard something, and then nothing."""

    def serve():
        connection, _ = server.accept()
        with connection:
            for answer in answers:
                connection.recv(4096)
                connection.sendall(answer)
            released.wait(60)

    released = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        released.set()
        thread.join()


def test_migrate_plan_and_again(empty_dsn):
    planned = leasehold("migrate", "--plan", "--dsn", empty_dsn)
    assert (planned.returncode, plan(empty_dsn).before) == (0, 0)
    assert "nothing was changed" in planned.stderr

    done = leasehold("migrate", LEASEHOLD_DSN=empty_dsn)
    assert (done.returncode, done.stdout) == (0, planned.stdout)
    assert done.stdout.startswith("migration 0001_")
    assert f"from migration 0 to {LATEST}" in done.stderr
    check(empty_dsn)

    for arguments in (("--plan",), ()):
        again = leasehold("migrate", *arguments, "--dsn", empty_dsn)
        assert (again.returncode, again.stdout) == (0, "")
        assert "nothing to do" in again.stderr


def test_json_and_the_schema_setting(empty_dsn):
    done = leasehold("migrate", "--json", LEASEHOLD_DSN=empty_dsn, LEASEHOLD_SCHEMA="order")
    report = json.loads(done.stdout)
    assert (report["schema"], report["before"], report["version"]) == ("order", 0, LATEST)
    check(empty_dsn, schema="order")


def test_sql_needs_no_database():
    printed = leasehold("migrate", "--sql", "--schema", "jobs")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout == script(schema="jobs")


def test_a_schema_of_a_release_too_new_ends_with_4(dsn):
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into leasehold.migrations (version, name, checksum, supports_from, release)"
            " values (%s, 'later', '', %s, '99')",
            (LATEST + 1, LATEST + 1),
        )
    refused = leasehold("migrate", "--dsn", dsn)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr.startswith("error: schema 'leasehold' is newer than this release knows")
    assert refused.stderr.endswith("hint: upgrade leasehold\n")


def test_a_schema_too_old_ends_with_4(empty_dsn, monkeypatch, capsys):
    monkeypatch.setattr(app_module, "app", lambda **_: check(empty_dsn))
    with pytest.raises(SystemExit) as exited:
        main([])
    assert exited.value.code == SchemaMismatch.exit_code == 4
    assert "hint: run `leasehold migrate`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sql", "--plan"), "--sql goes with neither"),
        (("--sql", "--json"), "--sql goes with neither"),
        (("--after", "1"), "--after goes only with --sql"),
        (("--sql", "--after", "9999"), "after migration 9999"),
        (("--sql", "--schema", "My-Jobs"), "'My-Jobs' is not valid"),
        (("--dsn", "nonsense://me:hunter2@host/db"), "the DSN cannot be understood"),
        (("--dsn", "postgresql://me:a@hunter2@host/db"), "more than one '@'"),
        (("--dsn", "postgresql://me:hunter2@host/db?connect_timeout=x"), "the DSN cannot be understood"),
        (("--unknown",), "--unknown"),
    ],
)
def test_wrong_usage_ends_with_2(arguments, message):
    refused = leasehold("migrate", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert "hunter2" not in refused.stderr
    assert "Traceback" not in refused.stderr


def assert_unreachable(dsn, *words):
    begun = time.monotonic()
    failed = leasehold("migrate", "--dsn", dsn)
    assert time.monotonic() - begun < bound(15)
    assert (failed.returncode, failed.stdout) == (3, "")
    for word in words:
        assert word in failed.stderr
    assert failed.stderr.startswith("error: cannot connect to PostgreSQL at ")
    assert "hunter2" not in failed.stderr
    assert "Traceback" not in failed.stderr


def test_no_server_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert_unreachable(f"postgresql://me:hunter2@127.0.0.1:{port}/db", f"127.0.0.1, port {port}, database db")


def test_a_server_that_listens_and_does_not_answer():
    with listener() as port:
        assert_unreachable(f"postgresql://me:hunter2@127.0.0.1:{port}/db", "timeout")


def test_a_wrong_password():
    ask_for_it = b"R\0\0\0\x08\0\0\0\x03"
    fields = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "me"\0\0'
    refuse = b"E" + (len(fields) + 4).to_bytes(4, "big") + fields
    with listener(ask_for_it, refuse) as port:
        dsn = f"postgresql://me:hunter2@127.0.0.1:{port}/db?sslmode=disable&gssencmode=disable"
        assert_unreachable(dsn, 'password authentication failed for user "me"')


def test_no_such_database(server):
    assert_unreachable(server.dsn("mig_no_such_database"), "mig_no_such_database")


def test_production_starts_no_server_of_its_own():
    refused = leasehold("migrate", LEASEHOLD_ENV="production")
    assert refused.returncode == 2
    assert "hint: set LEASEHOLD_DSN" in refused.stderr


def test_an_interrupt_ends_with_130(empty_dsn):
    with psycopg.connect(empty_dsn) as blocker:
        blocker.execute("select pg_advisory_xact_lock(hashtextextended('leasehold.migrate.leasehold', 0))")
        process = subprocess.Popen(
            [sys.executable, "-m", "leasehold", "migrate", "--dsn", empty_dsn],
            stderr=subprocess.PIPE,
            text=True,
        )
        # Of this database: another test's may be waited for before the process has even begun.
        waiting = """select pid from pg_locks where not granted and locktype = 'advisory'
            and database = (select oid from pg_database where datname = current_database())"""
        until(lambda: blocker.execute(waiting).fetchone(), "the migration waits for its turn")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_version(capsys):
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"leasehold {__version__}\n"


def test_without_a_dsn_the_embedded_server_is_used(tmp_path):
    done = leasehold("migrate", "--json", LEASEHOLD_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == LATEST
    assert done.stderr.startswith(f"using the embedded PostgreSQL in {tmp_path / 'home'}")


def test_functions_that_are_applied_again_are_no_migration():
    report = Plan(schema="leasehold", before=14, version=14, functions=("claim.sql",))
    assert _summary(report, plan_only=True) == (
        "schema 'leasehold' is at migration 14: its functions would be brought to this release; nothing was changed"
    )
    assert _summary(report, plan_only=False).endswith("its functions are now those of this release")
