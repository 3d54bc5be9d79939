"""A job that drives its process beyond twice the memory limit is charged for it, and no other: it ends, they finish."""

from pathlib import Path
from typing import Any

import pytest

from faults.waiting import until
from leasehold.worker.crash_recovery import JournalFolder
from tests.supervise.conftest import Sql, enqueue, one, states, worker

TASKS = """
import asyncio, time
from pathlib import Path
from leasehold import App, FixedDelay

app = App()
hoard = []

def fill() -> list[bytes]:
    return [b"x" * (1 << 20) for _ in range(400)]  # in pieces: other threads keep the leases meanwhile

async def until_there(file: str) -> None:
    while not Path(file).exists():
        await asyncio.sleep(0.05)

@app.task(kind="hog", retry=FixedDelay(0.1))
async def hog() -> None:
    filled = fill()
    await asyncio.sleep(600)

@app.task(kind="threaded_hog", retry=FixedDelay(0.1))
def threaded_hog() -> None:
    filled = fill()
    time.sleep(600)

@app.task(kind="guest")
async def guest() -> None:
    await until_there("go")

@app.task(kind="nap")
async def nap() -> None:
    await asyncio.sleep(0.3)

@app.task(kind="leaver")
async def leaver() -> None:
    await until_there("leave")
    hoard.append(fill())

@app.task(kind="apart", executor="process")
def apart() -> None:
    while not Path("go").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "mytasks.py").write_text(TASKS)
    return folder


LIMIT = ("--memory-limit", "160")


def enqueue_hog(sql: Sql, kind: str = "hog") -> None:
    sql.execute("select enqueue(%s, max_attempts => 2)", [kind])


def of_kind(sql: Sql, kind: str) -> list[dict[str, Any]]:
    return sql.execute("select state::text, reason::text, retry_count from jobs where kind = %s", [kind]).fetchall()


def errors(sql: Sql) -> list[tuple[str, str]]:
    """The kind and message of each attempt that was charged."""
    rows = sql.execute(
        "select kind, error_message from attempts join jobs on jobs.id = job_id where outcome in ('failed',"
        " 'lease_expired')"
    )
    return [(row["kind"], row["error_message"]) for row in rows]


@pytest.mark.parametrize(("hog", "processes"), [("hog", "1"), ("hog", "2"), ("threaded_hog", "1")])
def test_a_job_beyond_twice_the_limit_dies_of_its_attempts_and_its_neighbours_finish(
    dsn: str, folder: Path, sql: Sql, hog: str, processes: str
) -> None:
    enqueue_hog(sql, hog)
    enqueue(sql, "guest", 3)
    with worker(dsn, folder, "--slots", "10", "--processes", processes, "--grace", "100", *LIMIT) as running:
        until(lambda: one(sql, "select max(attempt) from jobs") >= 3, detail=lambda: running.log)
        (folder / "go").touch()
        until(lambda: states(sql) == {"success": 3, "dead": 1}, detail=lambda: running.log)
    assert of_kind(sql, hog) == [{"state": "dead", "reason": "exhausted", "retry_count": 2}]
    assert {job["retry_count"] for job in of_kind(sql, "guest")} == {0}
    charged = errors(sql)
    assert [kind for kind, _ in charged] == [hog, hog]
    for _, message in charged:
        assert "160 MB allowed by --memory-limit" in message
        assert f"give {hog} executor='process' with memory=…" in message


def test_a_hog_among_fifty_slots_ends_and_the_others_finish(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "nap", 30)
    enqueue_hog(sql)
    enqueue(sql, "nap", 30)
    with worker(dsn, folder, "--slots", "50", *LIMIT) as running:
        until(lambda: states(sql) == {"success": 60, "dead": 1}, detail=lambda: running.log)
    assert {job["retry_count"] for job in of_kind(sql, "nap")} == {0}


def test_a_job_that_runs_alone_is_not_charged_for_memory_that_an_earlier_one_left_behind(
    dsn: str, folder: Path, sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_RUN_DIR", str(tmp_path))
    enqueue(sql, "leaver")
    place = JournalFolder(dsn, "leasehold")
    journal = place.open("another worker", 1)
    assert journal is not None
    journal.close(orderly=True)
    guest = str(one(sql, "select enqueue('guest', run_after => '1 hour')"))
    for _ in range(2):
        place.suspect([guest])
    with worker(dsn, folder, "--slots", "2", *LIMIT) as running:
        until(lambda: states(sql).get("running") == 1)
        sql.execute("select run_now(%s)", [guest])
        until(lambda: states(sql).get("running") == 2)  # it waits until it can run alone
        (folder / "leave").touch()
        until(lambda: one(sql, "select attempt >= 2 from jobs where kind = 'guest'"), detail=lambda: running.log)
        (folder / "go").touch()
        until(lambda: states(sql) == {"success": 2}, detail=lambda: running.log)
    assert errors(sql) == []


def test_a_task_in_a_process_of_its_own_is_no_suspect(dsn: str, folder: Path, sql: Sql, tmp_path: Path) -> None:
    enqueue(sql, "apart")
    enqueue_hog(sql)
    with worker(dsn, folder, "--slots", "2", *LIMIT, LEASEHOLD_RUN_DIR=str(tmp_path / "run")) as running:
        until(lambda: list((tmp_path / "run").rglob("*.suspect")), detail=lambda: running.log)
        hog = one(sql, "select id from jobs where kind = 'hog'")
        until(lambda: one(sql, "select attempt >= 3 from jobs where kind = 'hog'"), detail=lambda: running.log)
        assert [path.stem for path in (tmp_path / "run").rglob("*.suspect")] == [str(hog)]
        (folder / "go").touch()
        until(lambda: states(sql) == {"success": 1, "dead": 1}, detail=lambda: running.log)
    assert [kind for kind, _ in errors(sql)] == ["hog", "hog"]


def test_where_no_suspect_can_be_noted_a_job_beyond_twice_the_limit_still_ends(
    dsn: str, folder: Path, sql: Sql
) -> None:
    enqueue_hog(sql)
    (folder / "file").touch()
    with worker(dsn, folder, "--slots", "2", *LIMIT, LEASEHOLD_RUN_DIR=str(folder / "file")) as running:
        until(lambda: states(sql) == {"dead": 1}, detail=lambda: running.log)
    assert [kind for kind, _ in errors(sql)] == ["hog", "hog"]
