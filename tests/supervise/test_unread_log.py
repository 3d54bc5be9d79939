"""A standard error that is a full pipe, which no process reads, keeps no worker from working and from ending."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.waiting import until
from tests.supervise.conftest import Sql, alive, children_of, enqueue, one, ready, states
from tests.timing import bound

TASKS = """
import asyncio
import logging
import time
from leasehold import App, NoRetry
from leasehold.db.store import Store

app = App()

@app.task(kind="nap", lease=60)
async def nap() -> None:
    await asyncio.sleep(600)

@app.task(kind="fatal", lease=60)
async def fatal() -> None:
    def complete(*_):
        raise KeyError("a defect of the test")
    Store.complete = complete

@app.task(kind="bad", retry=NoRetry())
async def bad() -> None:
    raise ValueError("x" * 2000)

@app.task(kind="loop", lease=3)
async def on_loop() -> None:
    for _ in range(80):
        logging.getLogger("shop").warning("y" * 1000)
        logging.getLogger("shop").warning("%d", "no number")
        await asyncio.sleep(0.1)

@app.task(kind="thread", lease=3)
def in_thread() -> None:
    for _ in range(80):
        logging.getLogger("shop").warning("y" * 1000)
        time.sleep(0.1)

@app.task(kind="process", executor="process")
def in_process() -> None:
    for _ in range(20):
        logging.getLogger("shop").warning("y" * 1000)

@app.task(kind="printer", lease=60, executor="process")
def printer() -> None:
    print("to a pipe that is full")
"""


@contextmanager
def unread(dsn: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker whose standard error is full from the first line on."""
    (folder / "mytasks.py").write_text(TASKS)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app", *options]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "LEASEHOLD_DSN": dsn}, stderr=writer)
    os.close(writer)
    left: set[int] = set()
    try:
        yield process
    finally:
        left = children_of(process.pid)
        process.kill()
        process.wait()
        os.close(reader)
    until(lambda: not alive(left))


def signalled(process: subprocess.Popen[bytes]) -> int:
    """Its exit code after two SIGTERMs, some time apart: two at once are one to the kernel."""
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.5)
    return process.wait(60)


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_second_signal_ends_a_worker_whose_log_is_not_read(
    dsn: str, tmp_path: Path, sql: Sql, options: list[str]
) -> None:
    with unread(dsn, tmp_path, "--grace", "300", "--log-level", "error", *options) as process:
        ready(sql, 2 if options else 1)
        enqueue(sql, "nap")
        until(lambda: states(sql) == {"running": 1})
        workers = children_of(process.pid)
        assert signalled(process) in {0, 1, 130}
        until(lambda: not alive(workers))


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_worker_whose_log_is_not_read_keeps_its_leases_and_ends_at_the_first_signal(
    dsn: str, tmp_path: Path, sql: Sql, options: list[str]
) -> None:
    with unread(dsn, tmp_path, "--grace", "300", *options) as process:
        ready(sql, 2 if options else 1)
        enqueue(sql, "loop", 2)
        enqueue(sql, "thread", 2)
        until(lambda: states(sql) == {"running": 4})
        sql.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and application_name ~ 'leasehold (claimer|finisher|upkeep|listener|keeper)'"
        )
        enqueue(sql, "bad", 40)
        until(lambda: states(sql) == {"success": 4, "dead": 40})
        assert one(sql, "select max(attempt) from jobs") == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(bound(5)) == 0


def test_a_worker_whose_loop_dies_ends_with_70_though_its_log_is_not_read(dsn: str, tmp_path: Path, sql: Sql) -> None:
    with unread(dsn, tmp_path, "--grace", "1", "--log-level", "error") as process:
        ready(sql, 1)
        enqueue(sql, "fatal")
        assert process.wait(90) == 70


def test_a_log_that_is_not_read_holds_up_no_job_in_a_process_but_one_that_prints(
    dsn: str, tmp_path: Path, sql: Sql
) -> None:
    with unread(dsn, tmp_path, "--grace", "1", "--slots", "3") as process:
        ready(sql, 1)
        enqueue(sql, "printer")
        until(lambda: states(sql) == {"running": 1})
        enqueue(sql, "process", 6)
        until(lambda: states(sql) == {"running": 1, "success": 6})
        assert one(sql, "select max(attempt) from jobs") == 1
        process.send_signal(signal.SIGTERM)
        process.wait(bound(10))
        until(lambda: states(sql) == {"queued": 1, "success": 6})
