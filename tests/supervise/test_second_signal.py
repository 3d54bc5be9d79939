"""The second signal ends a worker within a second, whatever its tasks do."""

import signal
import time
from pathlib import Path

import pytest

from faults.waiting import stays, until
from tests.supervise.conftest import Sql, alive, enqueue, one, ready, states, worker
from tests.timing import bound

TASKS = """
import asyncio, time
from pathlib import Path
from leasehold import App

app = App()

@app.task(kind="nap", lease=60)
async def nap() -> None:
    await asyncio.sleep(60)

@app.task(kind="swallow", lease=60)
async def swallow() -> None:
    while True:
        try:
            Path("begun").touch()
            await asyncio.sleep(60)
        except BaseException:
            pass

@app.task(kind="block_loop", lease=60)
async def block_loop() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            Path("begun").touch()
            time.sleep(60)
        except BaseException:
            pass

@app.task(kind="block_thread", lease=60)
def block_thread() -> None:
    Path("begun").touch()
    time.sleep(60)

@app.task(kind="overdue", lease=60, timeout=0.5, max_attempts=1)
async def overdue() -> None:
    await swallow.function()

@app.task(kind="leave_thread", lease=60, timeout=0.2, max_attempts=1)
async def leave_thread() -> None:
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 300) for _ in range(50)))

@app.task(kind="leave_task", lease=60)
async def leave_task() -> None:
    left.append(asyncio.create_task(swallow.function()))

left = []
"""


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(TASKS)
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
@pytest.mark.parametrize("kind", ["swallow", "block_loop", "block_thread"])
def test_a_second_signal_ends_a_worker_within_a_second_whatever_its_task_does(
    dsn: str, stubborn: Path, sql: Sql, kind: str, options: list[str]
) -> None:
    with worker(dsn, stubborn, "--slots", "2", "--grace", "60", *options) as running:
        ready(sql, 2 if options else 1)
        enqueue(sql, "nap")
        until(lambda: states(sql) == {"running": 1})
        enqueue(sql, kind)
        until(lambda: states(sql) == {"running": 2})
        pids = running.pids
        until((stubborn / "begun").exists, "the task is where it does not end")
        running.send(signal.SIGTERM)
        stays(lambda: running.process.poll() is None, "the first signal does not end it", seconds=0.5)
        running.send(signal.SIGTERM)
        asked = time.monotonic()
        running.end(within=60)
        assert time.monotonic() - asked < bound(2)
        assert not alive(pids)


def test_a_task_that_does_not_end_is_left_behind_five_seconds_after_the_grace_period(
    dsn: str, stubborn: Path, sql: Sql
) -> None:
    with worker(dsn, stubborn, "--slots", "2", "--grace", "0.5") as running:
        ready(sql, 1)
        enqueue(sql, "nap")
        enqueue(sql, "swallow")
        until(lambda: states(sql) == {"running": 2})
        running.send(signal.SIGTERM)
        assert running.end(within=60) == 1, running.log
        assert "its task does not end; it is left behind" in running.log
    assert states(sql) == {"running": 1, "queued": 1}  # the one that ended was given back
    assert one(sql, "select max(retry_count) from jobs") == 0


@pytest.mark.parametrize(
    ("kind", "state", "named"), [("leave_thread", "dead", "_0"), ("leave_task", "success", "swallow")]
)
def test_what_a_task_has_left_behind_does_not_hold_the_exit(
    dsn: str, stubborn: Path, sql: Sql, kind: str, state: str, named: str
) -> None:
    with worker(dsn, stubborn, "--slots", "2", "--grace", "30") as running:
        ready(sql, 1)
        sql.execute("select enqueue(%s, max_attempts => 1)", [kind])
        until(lambda: states(sql) == {state: 1})
        running.send(signal.SIGTERM)
        asked = time.monotonic()
        assert running.end(within=60) == 0, running.log
        assert time.monotonic() - asked < bound(8)
        assert "this process ends now, though tasks have left behind what does not end" in running.log
        assert named in running.log.splitlines()[-1]


def test_a_task_that_ignores_its_timeout_loses_its_slot_with_a_warning(dsn: str, stubborn: Path, sql: Sql) -> None:
    with worker(dsn, stubborn, "--slots", "1") as running:
        ready(sql, 1)
        sql.execute("select enqueue('overdue', max_attempts => 1)")  # the worker may not have declared its tasks yet
        until(lambda: states(sql) == {"dead": 1})
        enqueue(sql, "nap")
        until(lambda: states(sql) == {"dead": 1, "running": 1})
        assert "goes on after its timeout" in running.log
