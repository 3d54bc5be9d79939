"""A call ends at its deadline, whatever the process lacks."""

import subprocess
import sys
import threading
import time

import psycopg
import pytest

from faults.waiting import until
from leasehold.db.connections import io
from leasehold.db.connections.io import CallDeadline
from tests.timing import bound

WITHOUT_DESCRIPTORS = """
import os, resource, sys
from leasehold import DatabaseUnavailable
from leasehold.db.call import Call
from leasehold.db.connections.link import ThreadLink

def scalar(sql):
    return Call(sql, (), lambda rows: rows[0][0], repeatable=True)

link = ThreadLink(sys.argv[1], name="test", patience=1.0)
link.run(scalar("select 1"))
link.run(scalar("select 2"))  # the thread that watches deadlines runs, whatever it needed is imported
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.dup(0)
except OSError:
    pass
try:
    link.run(scalar("select pg_sleep(120)::text"))
except DatabaseUnavailable as error:
    print(error)
"""


def test_without_a_free_descriptor_a_call_ends_at_its_deadline(dsn: str) -> None:
    began = time.monotonic()
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, dsn]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert "no answer from PostgreSQL within 1.0 s" in ended.stdout, ended.stderr
    assert time.monotonic() - began < bound(30)


def test_a_thread_that_could_not_be_started_is_started_by_the_next_call(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "_watch", io._DeadlineThread())  # as in a process that has made no call yet
    with psycopg.connect(dsn) as connection:
        with monkeypatch.context() as broken:
            broken.setattr(threading.Thread, "start", _refuse)
            with (
                pytest.raises(RuntimeError, match="can't start new thread"),
                CallDeadline(connection, time.monotonic()),
            ):
                pass
        late = CallDeadline(connection, time.monotonic() + 0.2)
        with late, pytest.raises(psycopg.OperationalError):
            connection.execute("select pg_sleep(60)")
        assert late.passed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_deadlines_that_died_is_replaced_by_the_next_call(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "_watch", watch := io._DeadlineThread())
    with psycopg.connect(dsn) as connection:
        with monkeypatch.context() as broken:
            broken.setattr(io, "shut", _refuse)
            with CallDeadline(connection, time.monotonic()):
                until(lambda: watch._thread is not None and not watch._thread.is_alive())
        late = CallDeadline(connection, time.monotonic() + 0.2)
        with late, pytest.raises(psycopg.OperationalError):
            connection.execute("select pg_sleep(60)")
        assert late.passed


def _refuse(_: object) -> None:
    raise RuntimeError("can't start new thread")
