"""Every command with bad input: a clear message, the right exit code, nothing on standard output, never a traceback."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
import typer

from leasehold.cli.app import app
from tests.cli.conftest import ENV

ID = "01920000-0000-7000-8000-000000000000"
AWAY = "postgresql://someone:pa55word@127.0.0.1:1/nowhere"

NEEDS_DATABASE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("enqueue",): ("KIND",),
    ("jobs", "list"): (),
    ("jobs", "show"): (ID,),
    ("jobs", "explain"): (ID,),
    ("jobs", "tail"): ("--for", "1s"),
    ("jobs", "retry"): (ID,),
    ("jobs", "cancel"): (ID,),
    ("queues", "list"): (),
    ("queues", "pause"): ("mail",),
    ("queues", "resume"): ("mail",),
    ("workers", "list"): (),
    ("schedules", "list"): (),
    ("schedules", "next"): (),
    ("schedules", "run"): ("key",),
    ("schedules", "enable"): ("key",),
    ("schedules", "disable"): ("key",),
    ("schedules", "remove"): ("key",),
    ("limits", "list"): (),
    ("limits", "set"): ("global", "--max", "5"),
    ("limits", "clear"): ("global",),
    ("errors",): (),
    ("stats",): (),
    ("top",): (),
    ("doctor",): (),
    ("verify",): (),
    ("prune",): ("--older-than", "1d"),
    ("tokens", "create"): ("ann", "--scope", "read"),
    ("tokens", "list"): (),
    ("tokens", "revoke"): (ID,),
    ("serve",): ("--port", "0"),
}
"""Each with arguments that are right."""

WITHOUT = {("dev",), ("demo",), ("demo", "kill"), ("demo", "score"), ("init",), ("openapi",)}
"""Need none, or bring their own."""

OWN_WAY = {("migrate",), ("worker",), ("bench",)}
"""Tested where they live; below with the wrong usage only."""

USAGE: list[tuple[tuple[str, ...], str]] = [
    (("nonsense",), "nonsense"),
    (("job", "list"), "jobs"),
    (("jobs", "nonsense"), "nonsense"),
    (("enqueue",), "argument 'kind'"),
    (("enqueue", "K", "-p", "novalue"), "-p 'novalue' is not name=value"),
    (("enqueue", "K", "-p", "n:=[1"), "is not JSON"),
    (("enqueue", "K", "--metadata", "trace"), "--metadata 'trace' is not name=value"),
    (("enqueue", "K", "-p", "n:=NaN"), "not a number in JSON"),
    (("enqueue", "K", "-p", "a=1", "-p", "a=2"), "'a' is given twice"),
    (("enqueue", "K", "--payload", "[1]"), "no JSON object"),
    (("enqueue", "K", "--payload", "{}", "-p", "a=1"), "does not go with -p"),
    (("enqueue", "K", "--in", "soon"), "--in 'soon' is not a length of time"),
    (("enqueue", "K", "--in", "99999d"), "longer than ten years"),
    (("enqueue", "K", "--run-at", "tomorrow"), "--run-at 'tomorrow' is not a time"),
    (("enqueue", "K", "--run-at", "2030-01-01T00:00:00"), "has no time zone"),
    (("enqueue", "K", "--run-at", "2030-01-01T00:00:00Z", "--in", "1h"), "does not go with --in"),
    (("enqueue", "K", "--timeout", "1s"), "--timeout goes only with --wait"),
    (("enqueue", "K", "--wait", "--timeout", "1"), "--timeout '1' is not a length of time"),
    (("enqueue", "K", "--priority", "high"), "--priority"),
    (("enqueue", "K", "--priority", "99999"), "priority 99999 is not a number between"),
    (("enqueue", "K", "--max-attempts", "0"), "max_attempts 0"),
    (("enqueue", "K", "--key", ""), "idempotency_key"),
    (("enqueue", "K", "--app", "no_such_module:app"), "no module named 'no_such_module'"),
    (("enqueue", "x" * 201), "kind of 201 bytes"),
    (("jobs", "list", "--state", "asleep"), "state 'asleep' unknown"),
    (("jobs", "list", "--since", "yesterday"), "--since 'yesterday' is not a length of time, and not a time either"),
    (("jobs", "list", "--since", "1fortnight"), "--since '1fortnight' is not a length of time"),
    (("jobs", "list", "--before", "2030-01-01"), "has no time zone"),
    (("jobs", "list", "--limit", "0"), "--limit"),
    (("jobs", "list", "--queue", ""), "--queue '' is no name"),
    (("jobs", "list", "--colour", "red"), "--colour"),
    (("jobs", "show"), "argument 'job'"),
    (("jobs", "show", "17"), "'17' is no job id"),
    (("jobs", "explain", "not-an-id"), "'not-an-id' is no job id"),
    (("jobs", "tail", "--every", "often"), "--every 'often' is not a length of time"),
    (("jobs", "tail", "--for", "ever"), "--for 'ever' is not a length of time"),
    (("jobs", "retry"), "which jobs?"),
    (("jobs", "retry", "17"), "'17' is no job id"),
    (("jobs", "retry", ID, "--kind", "K"), "ids go with neither a filter nor --dry-run"),
    (("jobs", "retry", "--kind", "K", "--max", "0"), "--max"),
    (("jobs", "cancel"), "which jobs?"),
    (("jobs", "cancel", ID, "--dry-run"), "ids go with neither"),
    (("jobs", "cancel", "--state", "asleep"), "state 'asleep' unknown"),
    (("queues", "pause"), "argument 'queue'"),
    (("queues", "resume"), "argument 'queue'"),
    (("workers", "list", "--limit", "x"), "--limit"),
    (("schedules", "next", "--count", "0"), "--count"),
    (("schedules", "run"), "argument 'key'"),
    (("limits", "set", "everything", "--max", "1"), "scope 'everything' unknown"),
    (("limits", "set", "queue", "--max", "1"), "which queue?"),
    (("limits", "set", "global", "mail", "--max", "1"), "the global limit has no name"),
    (("limits", "set", "queue", "mail"), "--max"),
    (("limits", "set", "queue", "mail", "--max", "-1"), "--max"),
    (("limits", "set", "queue", "mail", "--max", "99999999999"), "more than PostgreSQL can count"),
    (("limits", "clear", "nothing"), "scope 'nothing' unknown"),
    (("errors", "--scan", "0"), "--scan"),
    (("stats", "extra"), "extra"),
    (("top", "--every", "often"), "--every 'often' is not a length of time"),
    (("doctor", "--listen", "0"), "--listen"),
    (("verify", "--slack", "some"), "--slack 'some' is not a length of time"),
    (("verify", "--latest", "0"), "--latest"),
    (("prune",), "--older-than"),
    (("prune", "--older-than", "old"), "--older-than 'old' is not a length of time"),
    (("prune", "--older-than", "1d", "--state", "running"), "only finished jobs are pruned"),
    (("tokens", "create", "ann"), "--scope"),
    (("tokens", "revoke", "17"), "not the id of a token"),
    (("init", "my tasks.py"), "not the name of a Python module"),
    (("migrate", "--sql", "--plan"), "--sql goes with neither"),
    (("worker",), "argument 'app'"),
    (("worker", "no_such_module:app"), "no module named 'no_such_module'"),
    (("worker", "..:app"), "'..' is not the name of a module"),
    (("worker", "json:app", "--grace", "nan"), "grace nan s is not between 0 and"),
    (("serve", "--port", "99999"), "--port"),
    (("serve", "no_such_module:app"), "no module named 'no_such_module'"),
    (("dev", "no_such_module:app", "--dsn", AWAY), "no module named 'no_such_module'"),
    (("dev", "--rate", "-1"), "--rate"),
    (("demo", "--workers", "0"), "--workers"),
    (("demo", "stop"), "stop"),
    (("demo", "kill"), "no demo runs in"),
    (("demo", "score"), "no demo runs in"),
    (("openapi", "extra"), "extra"),
    (("bench", "--nonsense"), "--nonsense"),
]


def commands() -> Iterator[tuple[str, ...]]:
    """Every command that help shows."""

    def below(group: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, command in getattr(group, "commands", {}).items():
            if hasattr(command, "commands"):
                if command.invoke_without_command:
                    yield (*path, name)
                yield from below(command, (*path, name))
            elif not command.hidden:
                yield (*path, name)

    return below(typer.main.get_command(app), ())


def test_every_command_is_in_these_tables():
    there = set(commands())
    assert there == NEEDS_DATABASE.keys() | WITHOUT | OWN_WAY
    wrongly_used = {words[:size] for words, _ in USAGE for size in (1, 2)}
    assert there - wrongly_used <= {("queues", "list"), ("limits", "list"), ("tokens", "list")} | {
        ("schedules", name) for name in ("list", "enable", "disable", "remove")
    }, "these take nothing that could be wrong, or are tested with the rest of the schedules"


@pytest.mark.parametrize(
    "path", sorted({path[0] for path in NEEDS_DATABASE} | {"demo", "dev", "init", "migrate", "worker"})
)
def test_help_is_there_for_each(bare, path):
    done = bare(path, "--help")
    assert done.code == 0
    assert "Usage: leasehold" in done.out


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=[" ".join(arguments)[:60] for arguments, _ in USAGE])
def test_wrong_usage_is_named_and_ends_with_2(bare, monkeypatch, tmp_path, arguments, words):
    # Nothing of this gets as far as a database: this one would be away.
    monkeypatch.setenv("LEASEHOLD_DSN", AWAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    done = bare(*arguments)
    assert (done.code, done.out) == (2, ""), done
    assert words.lower() in done.err.lower()
    assert "pa55word" not in done.err


@pytest.mark.parametrize("path", NEEDS_DATABASE, ids=" ".join)
def test_a_database_that_is_away_ends_with_3_and_its_place_without_the_password(bare, monkeypatch, path):
    monkeypatch.setenv("LEASEHOLD_DSN", AWAY)
    done = bare(*path, *NEEDS_DATABASE[path])
    assert (done.code, done.out) == (3, "")
    assert "error: cannot connect to PostgreSQL at 127.0.0.1, port 1, database nowhere" in done.err
    assert "hint: " in done.err
    assert "pa55word" not in done.err


def test_a_database_without_the_schema_ends_with_4_and_the_cure(bare, monkeypatch, empty_dsn):
    monkeypatch.setenv("LEASEHOLD_DSN", empty_dsn)
    for path, arguments in NEEDS_DATABASE.items():
        done = bare(*path, *arguments)
        assert done.code == 4, path
        assert "leasehold migrate" in done.out + done.err, path
        assert path == ("doctor",) or done.out == "", path


@pytest.mark.parametrize("path", NEEDS_DATABASE, ids=" ".join)
def test_a_dsn_that_makes_no_sense_ends_with_2_and_is_not_repeated(bare, monkeypatch, path):
    monkeypatch.setenv("LEASEHOLD_DSN", "postgresql://someone:pa55@word@host/x?nonsense=1")
    done = bare(*path, *NEEDS_DATABASE[path])
    assert (done.code, done.out) == (2, "")
    assert "error: the DSN" in done.err
    assert "pa55" not in done.err
    monkeypatch.setenv("LEASEHOLD_SCHEMA", "Not-a-schema")
    assert "schema name 'Not-a-schema' is not valid" in bare(*path, *NEEDS_DATABASE[path]).err


def test_production_starts_no_database_of_its_own_and_no_demo(bare, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_ENV", "production")
    for arguments in (("jobs", "list"), ("doctor",), ("demo",), ("dev",)):
        done = bare(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert "production" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_role_that_may_not_do_it_gets_an_error_that_says_so(dsn, bare, monkeypatch, admin):
    name = f"nobody_{uuid4().hex[:8]}"
    admin.connection.execute(f"create role {name} login; grant leasehold_viewer to {name}")
    try:
        monkeypatch.setenv("LEASEHOLD_DSN", f"{dsn}&user={name}" if "?" in dsn else f"{dsn}?user={name}")
        assert bare("stats").code == 0
        for arguments in (("jobs", "list"), ("queues", "pause", "x", "--anyway"), ("prune", "--older-than", "1d")):
            done = bare(*arguments)
            assert (done.code, done.out) == (1, "")
            assert "permission denied" in done.err
            cure = "grant that role to the login" if arguments[0] == "prune" else "grant one of them to the login"
            assert cure in done.err
        done = bare("doctor")
        assert done.code == 1
        assert "leasehold_operator" in done.out
    finally:
        admin.connection.execute(f"drop role {name}")


def test_a_name_that_others_chose_is_no_command_to_the_terminal(cli, sql):
    sql.enqueue("K", "mail\x1b]0;title\x07\x9b2J\nerror: forged")
    done = cli("queues", "pause", "no such", code=1)
    assert "known: mail\\x1b]0;title\\x07\\x9b2J\\nerror: forged" in done.err


@pytest.mark.parametrize(("redirect", "code", "words"), [(">/dev/full", 1, "standard output"), (">&-", 0, "")])
def test_a_standard_output_that_takes_nothing_is_no_traceback(dsn, redirect, code, words):
    command = f"exec {shlex.quote(sys.executable)} -m leasehold jobs list --json --dsn {shlex.quote(dsn)} {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=ENV, check=False)
    assert (done.returncode, "Traceback" in done.stderr, "Exception" in done.stderr) == (code, False, False)
    assert words in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("tokens", "create", b"a\xff", "--scope", "read"),
        ("tokens", "create", "name", "--scope", "submit", "--queue", b"\xff"),
        ("tokens", "create", "name", "--scope", "submit", "--namespace", b"\xff"),
        ("queues", "pause", "default", "--reason", b"\xff"),
        ("queues", "resume", b"\xff"),
        ("schedules", "run", b"\xff"),
        ("schedules", "enable", b"\xff"),
        ("enqueue", b"\xff"),
        ("jobs", "list", "--queue", b"\xff"),
    ],
)
def test_an_argument_that_is_not_utf8_is_a_message(dsn: str, arguments: tuple[str | bytes, ...]) -> None:
    command = [sys.executable, "-m", "leasehold", *arguments]
    done = subprocess.run(command, env={**ENV, "LEASEHOLD_DSN": dsn}, capture_output=True, timeout=60, check=False)
    assert done.returncode in {1, 2}, done.stderr
    assert (done.stdout, b"Traceback" in done.stderr) == (b"", False), done.stderr
    assert b"error: " in done.stderr
