"""Worker processes that are replaced for their own good, or because the developer has saved a file."""

import asyncio
import signal
import time
from pathlib import Path

from leasehold import App
from leasehold.worker import Worker, WorkerOptions
from tests.supervise.conftest import Sql, enqueue, one, pids_that_ran, ready, states, until, worker


def test_processes_retire_after_their_number_of_jobs_and_every_job_gets_done(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "nap", 500, seconds=0)
    with worker(dsn, folder, "--processes", "2", "--slots", "5", "--max-jobs", "100") as running:
        until(lambda: states(sql) == {"success": 500})
        assert len(pids_that_ran(sql)) >= 4
        assert "jobs; another starts now" in running.log
        assert "another starts in" not in running.log  # it was no crash
        per_process = [row["jobs"] for row in sql.execute("select count(*) as jobs from jobs group by result #>> '{}'")]
        assert max(per_process) <= 110 + 5 + 5  # ten per cent more; what ran, and what was just being claimed
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.log
    assert one(sql, "select max(retry_count) from jobs") == 0


async def test_a_retiring_worker_that_is_told_to_stop_still_lets_its_jobs_finish(dsn: str, sql: Sql) -> None:
    async with App(dsn) as app:
        going = asyncio.Event()

        @app.task(kind="quick")
        async def quick() -> None:
            await going.wait()

        @app.task(kind="slow")
        async def slow() -> None:
            going.set()
            await asyncio.sleep(0.5)

        worker = Worker(app, WorkerOptions(max_jobs=1))
        await quick.aenqueue()
        await slow.aenqueue()
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            await worker.stopping.wait()
            assert worker.snapshot().state == "draining"
            worker.stop()
            await running
    assert worker.retired == "1 jobs done"
    assert worker.finished == 2
    assert states(sql) == {"success": 2}


def test_a_process_over_its_memory_limit_is_replaced_and_every_job_gets_done(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "leak", 12, megabytes=30)
    with worker(dsn, folder, "--slots", "1", "--memory-limit", "160") as running:
        until(lambda: states(sql) == {"success": 12})
        assert len(pids_that_ran(sql)) >= 2
        assert "160 MB allowed" in running.log
        assert "another starts in" not in running.log
    assert one(sql, "select max(retry_count) from jobs") == 0


def test_a_process_at_twice_its_memory_limit_gives_its_jobs_back_at_once(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "swell", 1, megabytes=40)
    with worker(dsn, folder, "--slots", "1", "--grace", "100", "--memory-limit", "160"):
        until(lambda: states(sql) == {"success": 1}, within=60)
    assert one(sql, "select attempt from jobs") == 2
    assert one(sql, "select retry_count from jobs") == 0


def test_a_memory_limit_that_no_worker_could_keep_is_a_usage_error(dsn: str, folder: Path) -> None:
    with worker(dsn, folder, "--processes", "2", "--memory-limit", "10") as running:
        assert running.end() == 2
        assert "memory limit 10 MB is not more than the" in running.log


VERSION = """
from leasehold import App
app = App()

@app.task(kind="version", lease=2)
async def version() -> int:
    return {version}
"""


def test_reload_takes_up_a_change_and_survives_a_syntax_error(dsn: str, folder: Path, sql: Sql) -> None:
    source = folder / "pkg" / "tasks.py"
    source.parent.mkdir()
    (folder / "pkg" / "__init__.py").write_text("")

    def answers(version: int) -> bool:
        job = one(sql, "select enqueue('version')")
        until(lambda: one(sql, f"select state::text from jobs where id = '{job}'") == "success")
        return bool(one(sql, f"select result from jobs where id = '{job}'") == version)

    source.write_text(VERSION.format(version=1))
    with worker(dsn, folder, "--processes", "2", "--reload", app="pkg.tasks:app") as running:
        ready(sql, 2)
        until(lambda: answers(1))
        source.write_text(VERSION.format(version=2))  # same size, perhaps the same second
        until(lambda: answers(2))
        until(lambda: "tasks.py changed: starting the workers anew" in running.log)
        source.write_text("def broken(:\n")
        until(lambda: "waiting for a change" in running.log)
        assert running.log.count("SyntaxError") == 1
        assert "def broken(:" in running.log
        assert running.process.poll() is None
        source.write_text(VERSION.format(version=3))
        until(lambda: answers(3))
        ignored = folder / ".venv" / "lib.py"
        ignored.parent.mkdir()
        ignored.write_text("")
        changes = running.log.count("changed:")
        time.sleep(1.2)
        assert running.log.count("changed:") == changes
        running.send(signal.SIGINT)
        assert running.end() == 0, running.log
    assert states(sql).keys() == {"success"}
