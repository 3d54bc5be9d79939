"""Commands as they are run: in this process where another adds nothing, else in their own, or in a terminal."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from leasehold.cli import main

ENV = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}


class Done(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def cells(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


@pytest.fixture
def bare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Done]]:
    """Run a command in this process, with no settings but those that are given."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for name in [name for name in os.environ if name.startswith("LEASEHOLD_") and name != "LEASEHOLD_EMBEDDED"]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback (most" not in out + err
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0 if code is None else 1, out, err)

    yield run
    # A program configures its logging once; this process goes on, and the captured standard error is closed.
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def cli(dsn: str, bare: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run a command against a new database; it must end with the code."""
    monkeypatch.setenv("LEASEHOLD_DSN", dsn)

    def run(*arguments: str, code: int = 0) -> Done:
        done = bare(*arguments)
        assert done.code == code, done.err
        return done

    return run


class Sql:
    """The database, as its superuser."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def __call__(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def enqueue(self, kind: str = "SEND", queue: str = "mail", **more: object) -> str:
        names = ", ".join(f"{name} => %s" for name in more)
        statement = f"select enqueue(kind => %s, queue => %s{', ' + names if names else ''})"
        return str(self(statement, kind, queue, *more.values())[0][0])

    def claim(self, worker: str = "w1", queue: str | None = None) -> list[str]:
        queues = None if queue is None else [queue]
        return [str(row[0]) for row in self("select id from claim(%s, %s::text[])", worker, queues)]

    def fail(self, job: str, worker: str = "w1", error_class: str = "Boom", fatal: bool = True) -> None:
        ((attempt,),) = self("select attempt from jobs where id = %s", job)
        self(
            "select fail(%s, %s, %s, jsonb_build_object('class', %s::text, 'message', 'it broke'), 60, %s)",
            worker, job, attempt, error_class, fatal,
        )  # fmt: skip

    def dead(self, kind: str = "SEND", queue: str = "mail", error_class: str = "Boom") -> str:
        job = self.enqueue(kind, queue)
        assert self.claim(queue=queue) == [job]
        self.fail(job, error_class=error_class)
        return job

    def state(self, job: str) -> str:
        return str(self("select state from jobs where id = %s", job)[0][0])


@pytest.fixture
def sql(dsn: str) -> Iterator[Sql]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set search_path = leasehold")
        yield Sql(connection)


def leasehold(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, between pipes."""
    return subprocess.run(
        [sys.executable, "-m", "leasehold", *arguments], env=ENV | env, capture_output=True, text=True, timeout=60,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
