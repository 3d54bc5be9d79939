"""Tasks that meddle with the process that runs them: no other job suffers, and the worker can be ended."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import Sql, enqueue, ready, until, worker

TASKS = """
import asyncio, os, resource, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from leasehold import App

app = App()

@app.task(kind="innocent", lease=4)
async def innocent(seconds: float = 0) -> None:
    await asyncio.sleep(seconds)

@app.task(kind="ignore_signals", lease=4)
async def ignore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)

@app.task(kind="add_a_handler", lease=4)
async def add_a_handler() -> None:
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    await asyncio.sleep(5)
    os.kill(os.getpid(), signal.SIGUSR1)
    await heard.wait()

@app.task(kind="in_a_process", lease=4, executor="process")
def in_a_process() -> None:
    pass

@app.task(kind="take_files", lease=4)
async def take_files(seconds: float) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    await asyncio.sleep(seconds)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

@app.task(kind="leave_a_thread", lease=4)
async def leave_a_thread() -> None:
    ThreadPoolExecutor(1).submit(time.sleep, 300)

class Slow(Exception):
    def __str__(self) -> str:
        time.sleep(300)
        return "at last"

@app.task(kind="slow_error", lease=4)
def slow_error() -> None:
    raise Slow

@app.task(kind="giant", lease=4)
def giant() -> list[str]:
    return ["x" * 1000] * 600_000

@app.task(kind="stop_loop", lease=4)
async def stop_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)

@app.task(kind="cancel_all", lease=4)
async def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)

async def leave() -> None:
    sys.exit(0)

@app.task(kind="exit_in_a_task", lease=4)
async def exit_in_a_task() -> None:
    task = asyncio.create_task(leave())
    await asyncio.sleep(1)

@app.task(kind="exit_in_time", lease=4, timeout=60)
async def exit_in_time() -> None:
    sys.exit(0)

@app.task(kind="fork_and_raise", lease=4)
async def fork_and_raise() -> None:
    if os.fork() == 0:
        raise ValueError("in the copy")
    await asyncio.sleep(1)

@app.task(kind="fork_and_exit", lease=4, timeout=60)
async def fork_and_exit() -> None:
    if os.fork() == 0:
        sys.exit(0)
    await asyncio.sleep(1)
"""


@pytest.fixture
def meddling(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(TASKS)
    return tmp_path


def jobs(sql: Sql, kind: str) -> list[dict[str, Any]]:
    return sql.execute("select * from jobs where kind = %s order by id", [kind]).fetchall()


def finished(sql: Sql, kind: str, number: int) -> bool:
    return sum(job["state"] == "success" for job in jobs(sql, kind)) == number


def test_a_worker_hears_signals_again_after_a_task_has_ignored_them(dsn: str, meddling: Path, sql: Sql) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "ignore_signals")
        until(lambda: "has replaced what this process does at SIGTERM, SIGINT: it is put back" in running.log)
        running.send(signal.SIGTERM)
        assert running.end() == 0


def test_a_worker_on_plain_asyncio_hears_signals_after_a_task_has_added_a_handler(
    dsn: str, meddling: Path, sql: Sql
) -> None:
    (meddling / "uvloop.py").write_text("raise ImportError")
    with worker(dsn, meddling, PYTHONPATH=str(meddling)) as running:
        ready(sql, 1)
        enqueue(sql, "add_a_handler")
        until(lambda: finished(sql, "add_a_handler", 1))
        running.send(signal.SIGTERM)
        assert running.end() == 0


def test_ctrl_c_ends_a_worker_that_waits_for_its_database(meddling: Path) -> None:
    with worker("postgresql://nobody@127.0.0.1:1/none", meddling) as running:
        until(lambda: "the start of the worker" in running.log)
        running.send(signal.SIGINT)
        assert running.end() == 130
        assert "Traceback" not in running.log


def test_an_error_of_a_thread_that_takes_for_ever_to_print_holds_up_no_other_job(
    dsn: str, meddling: Path, sql: Sql
) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "slow_error")
        until(lambda: jobs(sql, "slow_error")[0]["state"] == "running")
        enqueue(sql, "innocent", 20)
        until(lambda: finished(sql, "innocent", 20))
        running.send(signal.SIGTERM)
        running.send(signal.SIGTERM)
        running.end()


def test_a_giant_result_is_refused_and_costs_no_lease(dsn: str, meddling: Path, sql: Sql) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "innocent", seconds=8)
        enqueue(sql, "giant", 5)
        until(lambda: all(job["retry_count"] >= 1 for job in jobs(sql, "giant")))
        assert "more than 1,048,576 bytes of JSON" in jobs(sql, "giant")[0]["reason_detail"]
        until(lambda: finished(sql, "innocent", 1))
        assert jobs(sql, "innocent")[0]["attempt"] == 1
        assert "stood still" not in running.log


@pytest.mark.parametrize("kind", ["stop_loop", "cancel_all"])
def test_a_task_that_ends_the_event_loop_ends_the_worker_with_its_own_code(
    dsn: str, meddling: Path, sql: Sql, kind: str
) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, kind)
        assert running.end() == 70
        assert "so the worker ends; its leases run out" in running.log


@pytest.mark.parametrize("kind", ["exit_in_a_task", "exit_in_time", "fork_and_raise", "fork_and_exit"])
def test_a_task_that_exits_or_forks_costs_no_other_job_anything(dsn: str, meddling: Path, sql: Sql, kind: str) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, kind)
        enqueue(sql, "innocent", seconds=2)
        until(lambda: jobs(sql, kind)[0]["retry_count"] >= 1 if kind == "exit_in_time" else finished(sql, kind, 1))
        until(lambda: finished(sql, "innocent", 1))
        running.send(signal.SIGTERM)
        assert running.end() == 0
        assert "refused" not in running.log
        assert jobs(sql, "innocent")[0]["attempt"] == 1


def test_a_job_for_which_there_is_no_process_waits_and_is_not_charged(dsn: str, meddling: Path, sql: Sql) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "take_files", seconds=3)
        until(lambda: jobs(sql, "take_files")[0]["state"] == "running")
        enqueue(sql, "in_a_process")
        until(lambda: "could be started" in running.log)
        until(lambda: finished(sql, "in_a_process", 1))
        assert jobs(sql, "in_a_process")[0]["retry_count"] == 0


def test_a_thread_that_a_task_left_behind_does_not_keep_the_worker(dsn: str, meddling: Path, sql: Sql) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "leave_a_thread")
        until(lambda: finished(sql, "leave_a_thread", 1))
        running.send(signal.SIGTERM)
        assert running.end() == 0
