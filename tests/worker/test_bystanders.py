"""A job that kills its worker is charged for it, and no other: real workers under a real supervisor."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App
from leasehold.db.store import Token
from leasehold.worker.crash_recovery import Death, JournalFolder
from tests.worker.conftest import working
from tests.worker.test_journal import begin

Sql = psycopg.Connection[dict[str, Any]]

TASKS = """
import asyncio, os, time
from leasehold import App

app = App()

@app.task(kind="killer", lease=3, max_attempts=2)
def killer() -> None:
    time.sleep(0.3)
    os._exit(9)

@app.task(kind="fork")
def fork() -> int:
    os.fork()
    return os.getpid()

@app.task(kind="bystander", lease=600)
async def bystander(seconds: float = 1) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(textwrap.dedent(TASKS))
    return tmp_path


@contextmanager
def supervised(dsn: str, folder: Path, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app", "--max-jobs", "100000", *options]
    with (folder / "said").open("wb") as said:
        env = {**os.environ, "LEASEHOLD_DSN": dsn}
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def jobs(sql: Sql, kind: str) -> list[dict[str, Any]]:
    return sql.execute("select * from jobs where kind = %s", [kind]).fetchall()


async def test_a_job_that_ends_its_worker_costs_no_other_an_attempt(dsn: str, folder: Path, sql: Sql) -> None:
    with supervised(dsn, folder, "--slots", "4", "--prefetch", "4"):
        sql.execute("select enqueue('bystander') from generate_series(1, 3)")
        sql.execute("select enqueue('killer', priority => 1, max_attempts => 2)")
        sql.execute("select enqueue('bystander') from generate_series(1, 8)")
        await auntil(lambda: all(job["state"] == "success" for job in jobs(sql, "bystander")), within=120)
        await auntil(lambda: jobs(sql, "killer")[0]["state"] == "dead", within=120)
        assert len(jobs(sql, "bystander")) == 11
    assert {job["retry_count"] for job in jobs(sql, "bystander")} == {0}
    [killer] = jobs(sql, "killer")
    assert (killer["reason"], killer["retry_count"]) == ("lease_expired", 2)
    ends = sql.execute(
        "select distinct outcome from attempts join jobs on id = job_id where kind = 'bystander'"
    ).fetchall()
    assert [end["outcome"] for end in ends] == ["released"]
    assert "given back uncounted" in (folder / "said").read_text()


async def test_the_jobs_of_a_killed_worker_are_released_long_before_their_leases_end(
    dsn: str, folder: Path, sql: Sql
) -> None:
    with supervised(dsn, folder, "--slots", "3", "--prefetch", "2"):
        sql.execute("""select enqueue('bystander', '{"seconds": 8}') from generate_series(1, 6)""")
        await auntil(lambda: [job["state"] for job in jobs(sql, "bystander")].count("running") == 5)
        [worker] = sql.execute("select pid from workers where stopped_at is null").fetchall()
        os.kill(worker["pid"], signal.SIGKILL)
        await auntil(lambda: all(job["state"] == "success" for job in jobs(sql, "bystander")), within=120)
    assert {job["retry_count"] for job in jobs(sql, "bystander")} == {0}


async def test_a_thread_that_forks_leaves_no_copy_of_the_worker(dsn: str, folder: Path, sql: Sql) -> None:
    with supervised(dsn, folder, "--slots", "1"):
        sql.execute("select enqueue('fork') from generate_series(1, 3)")
        await auntil(lambda: [job["state"] for job in jobs(sql, "fork")] == ["success"] * 3)
        [worker] = sql.execute("select pid from workers where stopped_at is null").fetchall()
        assert {job["result"] for job in jobs(sql, "fork")} == {worker["pid"]}
        children = Path(f"/proc/{worker['pid']}/task/{worker['pid']}/children")
        copies = lambda: [pid for pid in children.read_text().split() if _runs(pid)]  # noqa: E731
        await auntil(lambda: copies() == [])


def _runs(pid: str) -> bool:
    """Whether it is more than a zombie, which only the task could reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_journal_is_given_to_one_and_only_after_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    place, other = JournalFolder("postgresql://x/db", "s"), JournalFolder("postgresql://x/db", "s")
    first, second = (Token(str(uuid4()), 1, "c") for _ in range(2))
    journal = place.open("host:1:ab", 2)
    assert journal is not None
    place_of_first = begin(journal, first.id)
    begin(journal, second.id)
    journal.map[place_of_first] = 0
    assert list(other.deaths()) == []
    journal.close(orderly=False)
    assert list(other.deaths()) == [Death("host:1:ab", {second.id})]
    assert list(place.deaths()) == []
    assert place.suspects() == {second.id: False}
    place.suspect({second.id})
    assert other.suspects() == {second.id: True}
    other.clear(second.id)
    assert place.suspects() == {}
    assert list(JournalFolder("postgresql://x/db", "another").deaths()) == []


async def test_a_locked_job_of_a_dead_worker_waits_alone(
    app: App, dsn: str, sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))

    @app.task(kind="other")
    async def other() -> None: ...

    database = await app.adatabase()
    place = JournalFolder(database.dsn, database.store.schema)
    sql.execute("select enqueue('bystander') from generate_series(1, 6)")
    held = {}
    for dead in ("host:1:aa", "host:2:bb"):
        held[dead] = [str(row["id"]) for row in sql.execute("select id from claim(%s, count => 3)", [dead])]
        journal = place.open(dead, 3)
        assert journal is not None
        for job in held[dead]:
            begin(journal, job)
        journal.close(orderly=False)
    locked = held["host:1:aa"][0]

    def running() -> list[str]:
        return [str(job["id"]) for job in jobs(sql, "bystander") if job["state"] == "running"]

    with psycopg.connect(dsn) as locker:
        locker.execute("select from leasehold.jobs where id = %s for update", [locked])
        async with working(app):
            await auntil(lambda: running() == [locked])
            locker.rollback()
            await auntil(lambda: running() == [])
    assert {job["retry_count"] for job in jobs(sql, "bystander")} == {0}
    assert set(place.suspects().values()) == {False}
