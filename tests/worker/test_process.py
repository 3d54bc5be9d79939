"""Real worker processes, killed with real signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import astays, auntil
from tests.db.proxy import PASSWORD, Proxy
from tests.timing import bound

Sql = psycopg.Connection[dict[str, Any]]

TASKS = """
import os, time, asyncio, signal
from leasehold import App, current_job

app = App()

@app.task(kind="pid", lease=2)
async def pid(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(kind="die", lease=1, max_attempts=3)
async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(textwrap.dedent(TASKS))
    return tmp_path


@contextmanager
def worker_process(dsn: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app", *options]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "LEASEHOLD_DSN": dsn}, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_cli(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leasehold", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    return subprocess.run(
        command, cwd=folder, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def one(sql: Sql, query: str) -> Any:
    found = sql.execute(query).fetchone()
    assert found is not None
    return next(iter(found.values()))


async def test_a_killed_workers_job_is_started_by_another_within_lease_and_two_seconds(
    dsn: str, folder: Path, sql: Sql
) -> None:
    with worker_process(dsn, folder) as first:
        sql.execute("""select enqueue('pid', '{"seconds": 60}')""")
        await auntil(lambda: one(sql, "select state from jobs") == "running")
        with worker_process(dsn, folder):
            await auntil(lambda: one(sql, "select count(*) from workers") == 2)
            first.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            await auntil(lambda: one(sql, "select attempt from jobs") == 2)
            took = time.monotonic() - killed
    assert took < bound(2 + 2)
    assert one(sql, "select outcome from attempts") == "lease_expired"
    assert one(sql, "select retry_count from jobs") == 1


async def test_a_job_that_kills_its_worker_every_time_is_dead_after_exactly_max_attempts(
    dsn: str, folder: Path, sql: Sql
) -> None:
    sql.execute("select enqueue('die', max_attempts => 3)")
    deaths = 0
    while one(sql, "select state from jobs") != "dead":
        with worker_process(dsn, folder) as process:
            await auntil(lambda p=process: p.poll() is not None or one(sql, "select state from jobs") == "dead")
            deaths += process.returncode == -signal.SIGKILL
    assert deaths == 3
    assert one(sql, "select reason from jobs") == "lease_expired"
    assert one(sql, "select attempt from jobs") == 3
    assert one(sql, "select count(*) from attempts where outcome = 'lease_expired'") == 3


async def test_sigterm_finishes_what_runs_releases_the_rest_and_exits_with_0(dsn: str, folder: Path, sql: Sql) -> None:
    with worker_process(dsn, folder, "--slots", "2", "--prefetch", "2", "--grace", "3") as process:
        for seconds in (0.5, 60, 60, 60):
            sql.execute("select enqueue('pid', jsonb_build_object('seconds', %s::float))", [seconds])
        await auntil(lambda: one(sql, "select count(*) from jobs where state = 'running'") == 4)
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        _, errors = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, errors
    assert time.monotonic() - asked < bound(3 + 2)
    assert "Traceback" not in errors
    assert one(sql, "select count(*) from jobs where state = 'success'") == 1
    assert one(sql, "select count(*) from jobs where state = 'queued' and retry_count = 0") == 3


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nowhere:app", "no module named 'nowhere'"),
        ("mytasks:nothing", "has no App named 'nothing'"),
        (":app", "names no module"),
    ],
)
def test_an_app_that_is_not_there_is_a_usage_error(folder: Path, app: str, says: str) -> None:
    ended = run_cli(folder, "worker", app, LEASEHOLD_DSN="postgresql://127.0.0.1:1/none")
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_without_the_schema_ends_the_worker_with_4(folder: Path, empty_dsn: str) -> None:
    ended = run_cli(folder, "worker", "mytasks:app", LEASEHOLD_DSN=empty_dsn)
    assert (ended.returncode, "leasehold migrate" in ended.stderr) == (4, True), ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_worker_that_starts_while_the_database_is_away_waits_and_says_so_once(
    dsn: str, folder: Path, sql: Sql
) -> None:
    proxy = Proxy(dsn)
    proxy.go_away()
    health = folder / "health.json"
    with worker_process(proxy.dsn, folder, "--health-file", str(health)) as process:
        await auntil(health.exists)
        assert json.loads(health.read_text())["state"] == "waiting for the database"
        await astays(lambda: process.poll() is None, "it waits", seconds=1)
        proxy.come_back()
        await auntil(lambda: one(sql, "select count(*) from workers") == 1)
        process.send_signal(signal.SIGTERM)
        errors = await asyncio.to_thread(process.stderr.read)
        assert process.wait(60) == 0, errors
    proxy.close()
    assert errors.count("waits for the database") == 1, errors
    assert "the database is back" in errors
    assert "Traceback" not in errors
    assert PASSWORD not in errors


async def test_a_worker_that_meets_a_database_without_writes_waits_and_says_so_once(
    dsn: str, folder: Path, sql: Sql
) -> None:
    sql.execute(f"alter database {sql.info.dbname} set default_transaction_read_only = on")
    with worker_process(dsn, folder) as process:
        lines: list[str] = []
        reading = asyncio.create_task(asyncio.to_thread(lambda: lines.extend(process.stderr)))
        await auntil(lambda: any("takes no writes" in line for line in lines))
        await astays(lambda: process.poll() is None, "it waits", seconds=1)
        sql.execute(f"alter database {sql.info.dbname} reset default_transaction_read_only")
        await auntil(lambda: one(sql, "select count(*) from workers") == 1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0, lines
        await reading
    assert sum("waits for the database" in line for line in lines) == 1, lines


def test_production_starts_no_server_of_its_own(folder: Path) -> None:
    ended = run_cli(folder, "worker", "mytasks:app", LEASEHOLD_ENV="production")
    assert ended.returncode == 2, ended.stderr
    assert "LEASEHOLD_DSN" in ended.stderr


def test_dev_shows_jobs_running_on_a_server_of_its_own(tmp_path: Path) -> None:
    ended = run_cli(tmp_path, "dev", "--for", "10")
    assert ended.returncode == 0, ended.stderr
    last = [line for line in ended.stderr.splitlines() if "success" in line][-1].split()
    assert int(last[last.index("success") + 1]) > 0, ended.stderr
    assert (tmp_path / ".leasehold").is_dir()
