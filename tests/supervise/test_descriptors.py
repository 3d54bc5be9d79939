"""Tasks that leave no descriptor free, and a worker that cannot report: its jobs are not kept for ever."""

import signal
import time
from pathlib import Path

import pytest

from faults.waiting import until
from leasehold.supervise import RETIRED
from tests.supervise.conftest import Running, Sql, enqueue, one, ready, states, worker
from tests.timing import bound

TASKS = """
import asyncio, os, resource
from pathlib import Path
from leasehold import App

app = App()
leaked = []

@app.task(kind="wait", lease=600)
async def wait() -> None:
    while not Path("go").exists():
        await asyncio.sleep(0.05)

def lower_limit(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def use_up() -> None:
    try:
        while True:
            leaked.append(open("/dev/null"))
    except OSError:
        os.mkdir("leaked")  # unlike a file without a descriptor

@app.task(kind="leak", lease=600)
def leak() -> None:
    lower_limit(200)
    use_up()

@app.task(kind="leave_reserve", lease=600)
def leave_reserve() -> None:
    held = [fd for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == os.devnull]
    lower_limit(max(map(int, held)) + 1)  # what breaks beyond makes no room
    use_up()

@app.task(kind="leave_none", lease=600)
def leave_none() -> None:
    lower_limit(3)
    use_up()
"""

NO_REPORTS = """
from leasehold.db.connections.dial import Dialer
from leasehold.errors import DatabaseUnavailable

connect = Dialer.connect

async def refused(self, *args, **kwargs):
    if "finisher" in self._options["application_name"] and Path("begun").exists():
        raise DatabaseUnavailable("no connection for reports")
    return await connect(self, *args, **kwargs)

Dialer.connect = refused
"""


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(TASKS)
    return tmp_path


def leak(sql: Sql, folder: Path, kind: str = "leak") -> None:
    """Wait until a job runs beside which another one has left no descriptor free."""
    ready(sql, 1)
    enqueue(sql, "wait")
    until(lambda: states(sql) == {"running": 1})
    enqueue(sql, kind)
    until((folder / "leaked").exists, "no descriptor is free")


def cut(sql: Sql, part: str = "") -> None:
    """End the worker's connections."""
    ours = f"application_name like 'leasehold {part}%' and datname = current_database()"
    sql.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {ours}")


def ended(running: Running, within: float) -> int:
    """Its exit code, if it ends in time."""
    return running.end(within=bound(within))


def test_a_worker_that_has_reported_nothing_yet_reports_though_no_descriptor_is_free(
    dsn: str, leaky: Path, sql: Sql
) -> None:
    with worker(dsn, leaky, "--slots", "2", "--grace", "3") as running:
        leak(sql, leaky)
        (leaky / "go").touch()
        until(lambda: states(sql) == {"success": 2}, detail=lambda: running.log)
        running.send(signal.SIGTERM)
        assert ended(running, 8) == 0


def test_a_worker_whose_connections_break_while_no_descriptor_is_free_reports_from_its_reserve_and_retires(
    dsn: str, leaky: Path, sql: Sql
) -> None:
    with worker(dsn, leaky, "--slots", "2") as running:
        leak(sql, leaky, "leave_reserve")
        until(lambda: states(sql) == {"running": 1, "success": 1})
        cut(sql)
        (leaky / "go").touch()
        assert running.end() == RETIRED, running.log
        assert states(sql) == {"success": 2}
        assert running.log.count("retires: no descriptor is free for a connection") == 1


def test_a_worker_that_can_open_no_connection_for_reports_ends_with_70_and_leaves_its_jobs_to_their_leases(
    dsn: str, leaky: Path, sql: Sql
) -> None:
    with worker(dsn, leaky, "--slots", "2") as running:
        leak(sql, leaky, "leave_none")
        until(lambda: states(sql) == {"running": 1, "success": 1})
        cut(sql, "finisher")  # not the keeper: the lease would be renewed for ever
        (leaky / "go").touch()
        assert running.end() == 70, running.log
        assert "its Finisher has died" in running.log
        assert "Too many open files" in running.log
        assert one(sql, "select count(*) from jobs where state = 'running'") == 1


def test_reports_that_are_not_taken_do_not_hold_the_exit(dsn: str, leaky: Path, sql: Sql) -> None:
    (leaky / "mytasks.py").write_text(TASKS + NO_REPORTS)
    with worker(dsn, leaky, "--slots", "2", "--grace", "1") as running:
        ready(sql, 1)
        enqueue(sql, "wait")
        until(lambda: states(sql) == {"running": 1})
        (leaky / "begun").touch()
        cut(sql, "finisher")
        (leaky / "go").touch()
        until(lambda: "reporting waits for the database" in running.log)
        running.send(signal.SIGTERM)
        asked = time.monotonic()
        assert running.end() == 0, running.log
        assert time.monotonic() - asked < bound(1 + 5)
        assert "1 reports were not taken; their jobs are left to their leases" in running.log
