"""Laws of `leasehold tokens`: the secret is printed once, on standard output, and nothing else ever shows it."""

import json
import os
import subprocess
import sys

import psycopg
import pytest

from leasehold.cli import main
from leasehold.tokens import parse_token


def leasehold(*arguments, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}
    return subprocess.run(
        [sys.executable, "-m", "leasehold", "tokens", *arguments],
        check=False,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def stored(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute("select id, secret_hash, name from leasehold.tokens").fetchall()


def test_create_prints_the_token_alone_and_keeps_only_its_hash(dsn):
    made = leasehold("create", "ann", "--scope", "read", "--scope", "submit", "--queue", "mail", LEASEHOLD_DSN=dsn)
    assert made.returncode == 0
    token = parse_token(made.stdout.removesuffix("\n"))
    assert token is not None
    assert stored(dsn) == [(token.id, token.hash(), "ann")]
    secret = token.reveal().split("_", 2)[2]
    assert secret not in made.stderr
    assert "not shown again" in made.stderr

    shown = leasehold("list", "--dsn", dsn)
    assert shown.stdout == f"{token.id}\tann\tread,submit\tqueue mail\tlive\tann\n"
    assert secret not in shown.stdout + shown.stderr


def test_json_everywhere(dsn):
    made = leasehold(
        *("create", "ci", "-s", "operate", "-k", "K", "--rate", "2.5", "--expires", "30d", "--json", "--dsn", dsn)
    )
    created = json.loads(made.stdout)
    assert set(created) == {"id", "token"}
    (listed,) = json.loads(leasehold("list", "--json", "--dsn", dsn).stdout)
    assert (listed["id"], listed["name"], listed["scopes"], listed["kinds"]) == (
        created["id"],
        "ci",
        ["operate"],
        ["K"],
    )
    assert (listed["rate"], listed["queues"], listed["live"], listed["revokedAt"]) == (2.5, None, True, None)
    assert listed["expiresAt"] > listed["createdAt"]
    revoked = leasehold("revoke", created["id"], "--json", "--dsn", dsn)
    assert json.loads(revoked.stdout) == {"id": created["id"], "revoked": True}
    (listed,) = json.loads(leasehold("list", "--json", "--dsn", dsn).stdout)
    assert listed["live"] is False


def test_revoking_an_unknown_token_is_a_negative_result(dsn):
    unknown = "00000000-0000-0000-0000-000000000000"
    ended = leasehold("revoke", unknown, "--dsn", dsn)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert unknown in ended.stderr
    assert "tokens list" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "named", "cure"),
    [
        (["create", "ann", "--scope", "admin"], "'admin'", "submit, status, read, operate"),
        (["create", "ann", "-s", "read", "--expires", "soon"], "'soon'", "30d"),
        (["create", "ann", "-s", "read", "--expires", "-1d"], "'-1d'", "never be good"),
        (["create", "ann", "-s", "read", "--expires", "2030-01-31T12:00:00"], "no time zone", "12:00:00Z"),
        (["create", "ann", "-s", "read", "--expires", "9e99d"], "'9e99d'", "30d"),
        (["create", "ann", "-s", "read", "--rate", "0"], "rate 0", "no token was made"),
        (["create", "", "-s", "read"], "name is empty", "no token was made"),
    ],
)
def test_a_mistake_is_named_with_its_cure_and_nothing_is_made(dsn, capfd, arguments, named, cure):
    with pytest.raises(SystemExit) as ended:
        main(["tokens", *arguments, "--dsn", dsn])
    assert ended.value.code == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert named in said.err
    assert cure in said.err
    assert "Traceback" not in said.err
    assert stored(dsn) == []


def test_a_whole_token_given_to_revoke_is_not_repeated(dsn):
    text = "lh_" + "a" * 22 + "_" + "b" * 43
    ended = leasehold("revoke", text, "--dsn", dsn)
    assert ended.returncode == 2
    assert "b" * 43 not in ended.stderr
    assert "tokens list" in ended.stderr


def test_a_database_without_the_schema_is_said_to_be_so(empty_dsn):
    assert leasehold("list", "--dsn", empty_dsn).returncode == 4
