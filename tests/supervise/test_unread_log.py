"""A standard error that is a full pipe, which no process reads, keeps no worker from ending."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.supervise.conftest import Sql, alive, children_of, enqueue, ready, states, until

TASKS = """
import asyncio
from leasehold import App
from leasehold.worker.finisher import Finisher

app = App()

@app.task(kind="nap", lease=60)
async def nap() -> None:
    await asyncio.sleep(600)

@app.task(kind="fatal", lease=60)
async def fatal() -> None:
    async def write(self, batch):
        raise KeyError("a defect of the test")
    Finisher._write = write
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
    """Its exit code after the second SIGTERM, or a later one: two at once are one to the kernel."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
    return process.returncode


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_second_signal_ends_a_worker_whose_log_is_not_read(
    dsn: str, tmp_path: Path, sql: Sql, options: list[str]
) -> None:
    with unread(dsn, tmp_path, "--grace", "300", "--log-level", "error", *options) as process:
        ready(sql, 2 if options else 1)
        enqueue(sql, "nap")
        until(lambda: states(sql) == {"running": 1}, within=60)
        workers = children_of(process.pid)
        assert signalled(process) in {0, 1, 130}
        until(lambda: not alive(workers), within=60)


def test_a_worker_that_cannot_write_its_first_line_ends_at_the_second_signal(
    dsn: str, tmp_path: Path, sql: Sql
) -> None:
    with unread(dsn, tmp_path, "--grace", "300") as process:
        ready(sql, 1)
        assert signalled(process) == 130


def test_a_worker_whose_loop_dies_ends_with_70_though_its_log_is_not_read(dsn: str, tmp_path: Path, sql: Sql) -> None:
    with unread(dsn, tmp_path, "--grace", "1", "--log-level", "error") as process:
        ready(sql, 1)
        enqueue(sql, "fatal")
        assert process.wait(90) == 70
