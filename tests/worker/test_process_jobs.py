"""Jobs in processes, under a worker and its leases."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import astays, auntil
from leasehold import App, ConfigError, Intent, Job
from tests.timing import bound
from tests.worker import process_tasks as tasks
from tests.worker.conftest import attempts, row, working
from tests.worker.processes import alive, children, stands_still

Sql = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def app(app: App) -> App:
    """With the tasks that a process can import."""
    for task in tasks.app.tasks.values():
        app.register(task)
    return app


async def enqueue(app: App, *intents: Intent) -> list[Job[Any]]:
    return await app.aenqueue_many(intents)


async def test_each_crash_ends_as_documented_and_no_neighbour_is_harmed(app: App, sql: Sql, tmp_path: Path) -> None:
    died = "leasehold.worker.process.ProcessDied"
    crashes = {
        tasks.segfault.using(max_attempts=1).intent(): (died, "died: killed by SIGSEGV", "exhausted"),
        tasks.eat.intent("blocks"): ("MemoryError", "more than the 268,435,456 bytes", "exhausted"),
        tasks.slow.intent(tmp_path): ("leasehold.worker.executors.TimedOut", "timeout of 0.5 s", "exhausted"),
        tasks.leave.intent(3): (died, "died: exit code 3", "fatal"),
        tasks.sysexit.intent(): ("RuntimeError", "the task raised SystemExit(4)", "fatal"),
        tasks.kill.intent(): (died, "died: killed by SIGKILL", "exhausted"),
        tasks.garbage.intent("text"): (died, "it wrote something that is no message", "exhausted"),
    }
    neighbours = [
        intent
        for n in range(4)
        for intent in (tasks.pid.intent(0.5), tasks.on_loop.intent(n), tasks.in_thread.intent(n))
    ]
    async with working(app, slots=6):
        good = await enqueue(app, *neighbours)
        bad = await enqueue(app, *crashes)
        done = await asyncio.gather(*(job.aresult(60) for job in good))
        await auntil(lambda: all(row(sql, job)["state"] == "dead" for job in bad))
        assert len(children()) <= 6
    assert children() == []
    assert [done[n * 3 + 1 : n * 3 + 3] for n in range(4)] == [[n, n] for n in range(4)]
    assert {row(sql, job)["attempt"] for job in good} == {1}
    for job, (kind, message, reason) in zip(bad, crashes.values(), strict=True):
        [attempt] = attempts(sql, job)
        assert attempt["error_class"] == kind
        assert message in attempt["error_message"]
        assert row(sql, job)["reason"] == reason


async def test_a_process_starts_without_a_warning_of_python(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning")
    async with working(app, slots=2):
        [job] = await enqueue(app, tasks.pid.intent(0))
        assert await job.aresult(60) != os.getpid()


async def test_a_crash_is_retried_as_the_task_says(app: App, sql: Sql) -> None:
    async with working(app, slots=2):
        [job] = await enqueue(app, tasks.segfault.intent())
        await auntil(lambda: row(sql, job)["state"] == "dead")
    history = attempts(sql, job)
    assert [one["attempt"] for one in history] == [1, 2, 3]
    assert {one["error_class"] for one in history} == {"leasehold.worker.process.ProcessDied"}


async def test_a_job_cancelled_from_outside_is_killed_within_a_heartbeat_and_writes_nothing(
    app: App, sql: Sql, tmp_path: Path
) -> None:
    async with working(app):
        [job] = await enqueue(app, tasks.endless.intent(tmp_path))
        await auntil((tmp_path / "beat").exists)
        pid = int((tmp_path / "pid").read_text())
        assert await job.acancel("not needed any more")
        before = row(sql, job)
        await auntil(lambda: not alive(pid), within=bound(3))
        await stands_still(tmp_path / "beat")
        [other] = await enqueue(app, tasks.pid.intent())
        assert await other.aresult(60) != pid
    assert row(sql, job) == before
    assert before["reason_detail"] == "not needed any more"


async def test_a_stopping_worker_kills_what_does_not_end_and_releases_it(app: App, sql: Sql, tmp_path: Path) -> None:
    async with working(app, grace=0.2):
        [job] = await enqueue(app, tasks.endless.intent(tmp_path))
        await auntil((tmp_path / "beat").exists)
    assert children() == []
    await stands_still(tmp_path / "beat")
    assert (row(sql, job)["state"], row(sql, job)["retry_count"]) == ("queued", 0)


async def test_a_job_longer_than_its_lease_runs_once(app: App, sql: Sql) -> None:
    async with working(app):
        [job] = await enqueue(app, tasks.brief_lease.intent())
        assert await job.aresult(60) == 1
    assert attempts(sql, job) == []


async def test_a_task_in_a_process_can_complete_its_job_in_its_own_transaction(app: App, sql: Sql, dsn: str) -> None:
    async with working(app):
        [job] = await enqueue(app, tasks.complete.intent(dsn))
        assert await job.aresult(60) == 7
    assert (row(sql, job)["attempt"], attempts(sql, job)) == (1, [])


async def test_two_hundred_quick_jobs_need_two_processes(app: App) -> None:
    async with working(app, slots=2):
        jobs = await enqueue(app, *(tasks.pid.intent() for _ in range(200)))
        pids = {await job.aresult(60) for job in jobs}
        assert len(pids) <= 2


async def test_a_task_that_a_process_cannot_import_keeps_the_worker_from_starting(app: App) -> None:
    @app.task(kind="inner", executor="process")
    def inner() -> None: ...

    with pytest.raises(ConfigError, match="inner: a process cannot import"):
        async with working(app):
            pass


SCRIPT = """
    import os, re, time
    from pathlib import Path
    from leasehold import App

    app = App()

    def note(name: str) -> None:
        Path(name).write_text(str(os.getpid()))

    @app.task(kind="sleep", executor="process")
    def sleep() -> None:
        note("sleep")
        time.sleep(60)

    @app.task(kind="c", executor="process")
    def c() -> None:
        note("c")
        re.match(r"(a+)+$", "a" * 60 + "b")  # for hours, and never lets go of the interpreter's lock

    @app.task(kind="idle", executor="process")
    def idle() -> None:
        note("idle")
"""


@contextmanager
def worker_process(dsn: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "mytasks.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app", "--slots", "3", *options]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "LEASEHOLD_DSN": dsn}, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def pid_in(file: Path) -> int:
    """The process that wrote its number there."""
    return int(await auntil(lambda: file.exists() and file.read_text()))


async def test_a_process_ends_when_its_worker_stands_still_for_half_a_lease(dsn: str, sql: Sql, tmp_path: Path) -> None:
    with worker_process(dsn, tmp_path) as worker:
        sql.execute("select enqueue('sleep')")
        pid = await pid_in(tmp_path / "sleep")
        worker.send_signal(signal.SIGSTOP)
        await auntil(lambda: not alive(pid))
        worker.send_signal(signal.SIGCONT)


async def test_no_process_outlives_a_killed_worker_not_even_one_that_computes_in_c(
    dsn: str, sql: Sql, tmp_path: Path
) -> None:
    with worker_process(dsn, tmp_path) as worker:
        for kind in ("sleep", "c", "idle"):
            sql.execute("select enqueue(%s)", [kind])
        pids = [await pid_in(tmp_path / kind) for kind in ("sleep", "c", "idle")]
        assert all(map(alive, pids))
        worker.send_signal(signal.SIGKILL)
        await auntil(lambda: not any(map(alive, pids)), within=bound(2))


async def test_ctrl_c_in_the_terminal_reaches_the_worker_only(dsn: str, sql: Sql, tmp_path: Path) -> None:
    """It stops the worker in good order: its processes go on until their jobs are given back."""
    with worker_process(dsn, tmp_path, "--grace", "1") as worker:
        sql.execute("select enqueue('sleep')")
        pid = await pid_in(tmp_path / "sleep")
        assert os.getpgid(pid) == pid != os.getpgid(worker.pid)
        os.killpg(worker.pid, signal.SIGINT)
        await astays(lambda: alive(pid), "the signal does not reach the process", seconds=0.3)
        assert await asyncio.to_thread(worker.wait, 60) == 0
    assert not alive(pid)
    state = sql.execute("select state, retry_count from jobs").fetchone()
    assert state == {"state": "queued", "retry_count": 0}


async def test_a_process_is_replaced_after_so_many_jobs(app: App) -> None:
    async with working(app, slots=1, child_jobs=2):
        jobs = await enqueue(app, *(tasks.pid.intent() for _ in range(4)))
        pids = [await job.aresult(60) for job in jobs]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert children() == []


async def test_a_replaced_process_whose_threads_do_not_end_is_killed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.worker.process._RETIRE", 1.0)
    async with working(app, slots=1, child_jobs=1):
        jobs = await enqueue(app, *(tasks.linger.intent() for _ in range(2)))
        pids = [await job.aresult(60) for job in jobs]
        assert len(set(pids)) == 2
        await auntil(lambda: children() == [])


async def test_replaced_processes_whose_threads_do_not_end_are_few(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.worker.process._RETIRE", 600.0)
    monkeypatch.setattr("leasehold.worker.process._RETIRING", 2)
    async with working(app, slots=1, child_jobs=1):
        jobs = await enqueue(app, *(tasks.linger.intent() for _ in range(5)))
        pids = [await job.aresult(60) for job in jobs]
        await auntil(lambda: len(children()) <= 2)
    assert len(set(pids)) == 5
    assert children() == []
