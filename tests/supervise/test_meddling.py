"""Tasks that meddle with the process that runs them: no other job suffers, and the worker can be ended."""

import signal
from pathlib import Path
from typing import Any

import pytest

from faults.waiting import until
from tests.supervise.conftest import Sql, enqueue, ready, worker

TASKS = """
import asyncio, multiprocessing, os, resource, signal, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from leasehold import App, current_job

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

@app.task(kind="take_files", lease=60)  # long: a connection that a busy machine breaks cannot be made anew meanwhile
async def take_files(seconds: float) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        await asyncio.sleep(seconds)
    finally:
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

def ended_child() -> int:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[300])
    child.start()
    child.terminate()
    child.join()
    return child.exitcode

def pooled() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])

@app.task(kind="end_a_child", lease=4)
def end_a_child() -> int:
    return ended_child()

@app.task(kind="end_a_child_in_a_process", lease=4, executor="process")
def end_a_child_in_a_process() -> int:
    return ended_child()

@app.task(kind="use_a_pool", lease=4)
def use_a_pool() -> list[int]:
    return pooled()

@app.task(kind="use_a_pool_in_a_process", lease=4, executor="process")
def use_a_pool_in_a_process() -> list[int]:
    return pooled()

@app.task(kind="change_folder", lease=4)
def change_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    sys.path.clear()
    os.environ["PYTHONHOME"] = "/none"

@app.task(kind="change_database", lease=4)
async def change_database() -> None:
    os.environ.update(PGSERVICE="none", PGHOST="192.0.2.1", PGHOSTADDR="192.0.2.1", PGSSLMODE="none", PGOPTIONS="none")

@app.task(kind="close_standard", lease=4)
async def close_standard() -> None:
    for number in range(3):
        os.close(number)

@app.task(kind="close_all", lease=4, max_attempts=1)
async def close_all() -> None:
    os.closerange(3, 256)

@app.task(kind="checked", lease=4)
def checked(path: str) -> None:
    try:
        while True:
            current_job().checkpoint()
            time.sleep(0.05)
    finally:
        open(path, "x").close()

@app.task(kind="block_the_loop", lease=60)
async def block_the_loop(path: str) -> None:
    open(path, "x").close()
    while os.path.exists(path):
        time.sleep(0.05)

@app.task(kind="keep_all_threads", lease=60)
async def keep_all_threads(seconds: float) -> None:
    await asyncio.gather(*(asyncio.to_thread(time.sleep, seconds) for _ in range(40)))
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
        until(lambda: "stopping" in running.log)  # two that are pending are one
        running.send(signal.SIGTERM)
        running.end()


def test_a_giant_result_is_refused_and_costs_no_lease(dsn: str, meddling: Path, sql: Sql) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "innocent", seconds=8)
        enqueue(sql, "giant", 5)
        until(lambda: all(job["retry_count"] >= 1 for job in jobs(sql, "giant")))
        assert "more than 100,000 values" in jobs(sql, "giant")[0]["reason_detail"]
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


@pytest.mark.parametrize("place", ["", "_in_a_process"])
def test_a_signal_for_a_child_of_a_task_ends_that_child_and_not_the_worker(
    dsn: str, meddling: Path, sql: Sql, place: str
) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        enqueue(sql, "innocent", seconds=2)
        kinds = [f"end_a_child{place}", f"use_a_pool{place}"] * 3
        for kind in kinds:
            enqueue(sql, kind)
        until(lambda: all(finished(sql, kind, 3) for kind in set(kinds)))
        until(lambda: finished(sql, "innocent", 1))
        assert {job["result"] for job in jobs(sql, kinds[0])} == {-signal.SIGTERM}
        assert "drains" not in running.log
        assert [job["attempt"] for kind in ("innocent", *set(kinds)) for job in jobs(sql, kind)] == [1] * 7
        running.send(signal.SIGTERM)
        assert running.end() == 0


def test_processes_start_where_the_worker_started_whatever_a_task_has_changed(
    dsn: str, meddling: Path, sql: Sql
) -> None:
    with worker(dsn, meddling):
        ready(sql, 1)
        enqueue(sql, "change_folder")
        until(lambda: finished(sql, "change_folder", 1))
        enqueue(sql, "in_a_process")
        until(lambda: finished(sql, "in_a_process", 1))
        assert jobs(sql, "in_a_process")[0]["attempt"] == 1


def cut(sql: Sql) -> None:
    """End all connections of the worker."""
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


def test_no_socket_gets_the_number_of_a_standard_stream_that_a_task_has_closed(
    dsn: str, meddling: Path, sql: Sql
) -> None:
    with worker(dsn, meddling) as running:
        ready(sql, 1)
        streams = [Path(f"/proc/{running.process.pid}/fd/{number}") for number in range(3)]
        before = [stream.readlink() for stream in streams]
        enqueue(sql, "innocent", seconds=10)
        enqueue(sql, "close_standard")
        until(lambda: finished(sql, "close_standard", 1))
        cut(sql)
        enqueue(sql, "in_a_process")
        until(lambda: finished(sql, "in_a_process", 1) and finished(sql, "innocent", 1))
        until(lambda: "the database is back" in running.log)
        assert [stream.readlink() for stream in streams] == before
        assert {job["attempt"] for job in jobs(sql, "in_a_process") + jobs(sql, "innocent")} == {1}


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_worker_whose_descriptors_a_task_has_closed_ends_and_its_jobs_go_on(
    dsn: str, meddling: Path, sql: Sql, loop: str
) -> None:
    if loop == "asyncio":
        (meddling / "uvloop.py").write_text("raise ImportError")
    with worker(dsn, meddling, PYTHONPATH=str(meddling)) as running:
        ready(sql, 1)
        enqueue(sql, "innocent", seconds=2)
        until(lambda: jobs(sql, "innocent")[0]["state"] == "running")
        enqueue(sql, "close_all")
        assert running.end() not in {0, None}, running.log
    # Nobody is charged for the end of a worker: the same job would end the next one, too.
    sql.execute("select leasehold.cancel(id) from leasehold.jobs where kind = 'close_all'")
    with worker(dsn, meddling):
        until(lambda: finished(sql, "innocent", 1))


def test_connections_are_made_again_whatever_a_task_has_set_in_the_environment(
    dsn: str, meddling: Path, sql: Sql
) -> None:
    with worker(dsn, meddling):
        ready(sql, 1)
        enqueue(sql, "innocent", seconds=10)
        enqueue(sql, "change_database")
        until(lambda: finished(sql, "change_database", 1))
        cut(sql)
        enqueue(sql, "innocent")
        until(lambda: finished(sql, "innocent", 2))
        assert [job["attempt"] for job in jobs(sql, "innocent")] == [1, 1]


def test_a_checkpoint_raises_though_another_task_blocks_the_event_loop(dsn: str, meddling: Path, sql: Sql) -> None:
    blocked, ended = meddling / "blocked", meddling / "ended"
    with worker(dsn, meddling):
        ready(sql, 1)
        enqueue(sql, "checked", path=str(ended))
        until(lambda: jobs(sql, "checked")[0]["state"] == "running")
        enqueue(sql, "block_the_loop", path=str(blocked))
        until(blocked.exists)
        sql.execute("select cancel(id) from jobs where kind = 'checked'")
        until(ended.exists)
        blocked.unlink()


def test_schedules_fire_while_tasks_keep_every_thread_of_the_event_loop(dsn: str, meddling: Path, sql: Sql) -> None:
    with worker(dsn, meddling):
        ready(sql, 1)
        enqueue(sql, "keep_all_threads", seconds=30)
        until(lambda: jobs(sql, "keep_all_threads")[0]["state"] == "running")
        sql.execute("select schedule_put('often', 'innocent', every => interval '1 second')")
        until(lambda: jobs(sql, "innocent"))
        assert jobs(sql, "keep_all_threads")[0]["state"] == "running"


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


def test_a_worker_whose_thread_of_signals_dies_ends_with_70(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "mytasks.py").write_text(
        "from leasehold import App\n"
        "from leasehold.supervise.signals import Signals\n"
        "app = App()\n"
        "@app.task(kind='nothing')\n"
        "def nothing() -> None: ...\n"
        "Signals._check = lambda self: 1 / 0\n"
    )
    with worker(dsn, tmp_path) as running:
        assert running.end(within=60) == 70, running.log
        assert "the thread that handles signals has died" in running.log
        assert "ZeroDivisionError" in running.log
