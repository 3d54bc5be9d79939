"""Worker processes that are replaced for their own good, or because the developer has saved a file."""

import asyncio
import signal
import time
from pathlib import Path

from faults.waiting import stays, until
from leasehold import App
from leasehold.worker import Worker, WorkerOptions
from tests.supervise.conftest import Sql, alive, enqueue, one, pids_that_ran, ready, states, worker
from tests.timing import bound


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


def test_a_process_that_retires_finishes_a_long_job_while_another_runs_the_short_ones(
    dsn: str, folder: Path, sql: Sql
) -> None:
    enqueue(sql, "wait")
    with worker(dsn, folder, "--slots", "2", "--max-jobs", "10", "--grace", "1") as running:
        until(lambda: states(sql) == {"running": 1})
        enqueue(sql, "nap", 40, seconds=0)
        until(lambda: states(sql) == {"success": 40, "running": 1}, detail=lambda: running.log)
        stays(
            lambda: one(sql, "select state::text from jobs where kind = 'wait'") == "running", "it goes on", seconds=3
        )
        (folder / "go").touch()
        until(lambda: states(sql) == {"success": 41})
        assert len(pids_that_ran(sql)) == 2
    assert one(sql, "select max(attempt) from jobs") == 1


def test_a_process_does_not_retire_while_the_one_before_it_still_does(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "wait")
    with worker(dsn, folder, "--slots", "2", "--max-jobs", "1", "--grace", "1") as running:
        until(lambda: states(sql) == {"running": 1})
        enqueue(sql, "nap", seconds=0)
        until(lambda: len(running.pids) == 2)
        enqueue(sql, "nap", 20, seconds=0)
        until(lambda: states(sql) == {"success": 21, "running": 1}, detail=lambda: running.log)
        stays(lambda: running.log.count("jobs; another starts now") == 1, "one retires at a time", seconds=1)
        assert len(running.pids) == 2
        (folder / "go").touch()
        until(lambda: len(running.pids) == 1)

        def other_retires() -> bool:
            enqueue(sql, "nap", seconds=0)  # after each job it asks whether it may
            return running.log.count("jobs; another starts now") >= 2

        until(other_retires, pause=0.3)
    assert one(sql, "select max(attempt) from jobs") == 1


def test_sigterm_gives_a_process_that_retires_the_grace_period(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "wait")
    with worker(dsn, folder, "--slots", "2", "--max-jobs", "1", "--grace", "2") as running:
        until(lambda: states(sql) == {"running": 1})
        enqueue(sql, "nap", seconds=0)
        until(lambda: len(running.pids) == 2 and states(sql) == {"running": 1, "success": 1})
        stays(lambda: states(sql) == {"running": 1, "success": 1}, "it has no limit before", seconds=3)
        pids = running.pids
        running.send(signal.SIGTERM)
        signalled = time.monotonic()
        assert running.end(within=bound(2 + 5)) == 0, running.log
        assert time.monotonic() - signalled > 2
        assert not alive(pids)
        assert "does not stop" not in running.log
    assert states(sql) == {"queued": 1, "success": 1}
    assert one(sql, "select max(retry_count) from jobs") == 0


async def test_a_retiring_worker_that_is_stopped_still_lets_its_jobs_finish(dsn: str, sql: Sql) -> None:
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
            assert worker.snapshot().state == "retiring"
            worker.stop()
            assert worker.snapshot().state == "draining"
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


def test_a_process_at_twice_its_memory_limit_releases_its_jobs_at_once(dsn: str, folder: Path, sql: Sql) -> None:
    enqueue(sql, "swell", 1, megabytes=40)
    with worker(dsn, folder, "--slots", "1", "--grace", "100", "--memory-limit", "160"):
        until(lambda: states(sql) == {"success": 1})
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
        until(lambda: running.log.count(" started: ") == 4)  # one that still starts would read the broken file as well
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
        stays(lambda: running.log.count("changed:") == changes, "a file in .venv restarts nothing", seconds=1.2)
        running.send(signal.SIGINT)
        assert running.end() == 0, running.log
    assert states(sql).keys() == {"success"}
