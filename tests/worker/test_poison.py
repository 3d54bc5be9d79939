"""A job that ends its worker after its function has returned is charged for it and ends; the others are not charged."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from faults.waiting import until
from leasehold.worker.crash_recovery import Death, JournalFolder
from tests.worker.test_bystanders import Sql, jobs

TASKS = """
import asyncio, os, sys
from leasehold import App

app = App()

def poison(function):
    app.task(kind=function.__name__, lease=8)(function)

@poison
async def exit() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 1)

@poison
async def kill() -> None:
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), 9)

@poison
async def stop() -> None:
    asyncio.get_running_loop().stop()

@poison
async def cancel() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()

@app.task(kind="bystander", lease=600)
async def bystander() -> None:
    await asyncio.sleep(2)
"""

POISON = ["exit", "kill", "stop", "cancel"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    (tmp_path / "mytasks.py").write_text(textwrap.dedent(TASKS))
    return tmp_path


@contextmanager
def worker(dsn: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app", "--slots", "4"]
    with (folder / "said").open("ab") as said:
        env = {**os.environ, "LEASEHOLD_DSN": dsn}
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", POISON)
def test_a_job_that_ends_its_worker_after_it_has_returned_is_dead_after_its_attempts(
    dsn: str, folder: Path, sql: Sql, kind: str
) -> None:
    sql.execute("select enqueue('bystander') from generate_series(1, 3)")
    sql.execute("select enqueue(%s, priority => 1, max_attempts => 1)", [kind])

    def ended() -> bool:
        return {job["state"] for job in jobs(sql, kind) + jobs(sql, "bystander")} == {"dead", "success"}

    codes = []
    while not ended() and len(codes) < 4:  # after two deaths it runs alone, and the next is charged to it
        with worker(dsn, folder) as process:
            until(lambda: process.poll() is not None or ended(), within=60)
            codes.append(process.poll())
    assert ended(), (folder / "said").read_text()
    assert set(codes) == {-signal.SIGKILL if kind == "kill" else 70, None}
    [job] = jobs(sql, kind)
    assert (job["reason"], job["retry_count"]) == ("lease_expired", 1)
    assert {job["retry_count"] for job in jobs(sql, "bystander")} == {0}


@pytest.mark.usefixtures("folder")
def test_a_worker_whose_journal_a_task_has_closed_is_not_taken_for_dead() -> None:
    """A task has closed all files."""
    place = JournalFolder("postgresql://x/db", "s")
    job = str(uuid4())
    code = f"""
import os, time
from leasehold.worker.crash_recovery import JournalFolder
journal = JournalFolder("postgresql://x/db", "s").open("host:1:ab", 2)
journal.map[0:36] = {job!r}.encode()
os.closerange(3, 64)
print("closed", flush=True)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"closed\n"
        assert list(place.deaths()) == []
        owner.kill()
        until(lambda: b") Z " in Path(f"/proc/{owner.pid}/stat").read_bytes(), "it has ended, and is not reaped")
        assert list(place.deaths()) == [Death("host:1:ab", {job})]
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
