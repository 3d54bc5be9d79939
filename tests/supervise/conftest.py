"""Real supervisors with real worker processes, in a folder and on a database of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from faults.waiting import until

Sql = psycopg.Connection[dict[str, Any]]

TASKS = """
import asyncio, os, time
from pathlib import Path
from leasehold import App, current_job

app = App()
hoard = []

@app.task(kind="nap", lease=2)
async def nap(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(kind="wait", lease=2)
async def wait() -> int:
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return os.getpid()

@app.task(kind="block", lease=2)
async def block(seconds: float) -> None:
    time.sleep(seconds)

@app.task(kind="leak", lease=5)
async def leak(megabytes: int) -> int:
    hoard.append(b"x" * (megabytes << 20))
    await asyncio.sleep(0.3)
    return os.getpid()

@app.task(kind="swell", lease=5)
async def swell(megabytes: int) -> int:
    while current_job().attempt == 1:
        hoard.append(b"x" * (megabytes << 20))
        await asyncio.sleep(0.2)
    return os.getpid()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def sql(dsn: str) -> Iterator[Sql]:
    """A superuser's look into the tables."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row, options="-c search_path=leasehold") as connection:
        yield connection


class Running:
    """A `leasehold worker` process and what can be seen of it from outside."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, health: Path) -> None:
        self.process = process
        self._log = log
        self._health = health

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pids(self) -> set[int]:
        """The worker processes."""
        return children_of(self.process.pid)

    @property
    def health(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._health.read_text())  # type: ignore[no-any-return]
        except FileNotFoundError:
            return None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, within: float = 60) -> int:
        """Wait for its end; return the exit code."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {within} s\n{self.log}") from None


@contextmanager
def worker(dsn: str, folder: Path, *options: str, app: str = "mytasks:app", **env: str) -> Iterator[Running]:
    """A `leasehold worker`; when the block ends, neither it nor any process of it is left."""
    command = [sys.executable, "-m", "leasehold", "worker", app, *options]
    log, health = folder / "log", folder / "health.json"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "LEASEHOLD_DSN": dsn, **env}, stdout=errors, stderr=errors
        )
    running = Running(process, log, health)
    try:
        yield running
    finally:
        left = running.pids
        process.kill()
        process.wait()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which may contain anything: the state and the parent.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(stat.parent.name))
    return found


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def one(sql: Sql, query: str) -> Any:
    found = sql.execute(query).fetchone()
    assert found is not None
    return next(iter(found.values()))


def ready(sql: Sql, number: int) -> None:
    """Wait until so many workers take jobs and have declared what their tasks need."""
    until(lambda: one(sql, "select count(*) from workers where stopped_at is null") == number)
    until(lambda: one(sql, "select count(*) filter (where queue is null) = 0 from kinds"))


def enqueue(sql: Sql, kind: str, number: int = 1, **arguments: float) -> None:
    sql.execute(
        "select enqueue(%s, %s) from generate_series(1, %s)", [kind, json.dumps(arguments), number], prepare=False
    )


def states(sql: Sql) -> dict[str, int]:
    rows = sql.execute("select state::text, count(*) as jobs from jobs group by 1").fetchall()
    return {row["state"]: row["jobs"] for row in rows}


def pids_that_ran(sql: Sql) -> set[int]:
    """The tasks return their process as result."""
    return {row["result"] for row in sql.execute("select distinct result from jobs where state = 'success'")}
