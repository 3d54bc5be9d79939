"""How workers say that they are well: to systemd, and in a file."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql as syntax

from faults.waiting import until
from tests.conftest import Admin
from tests.supervise.conftest import Running, Sql, enqueue, ready, states, worker


@contextmanager
def systemd(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + address[1:] if address.startswith("@") else address)
        listening.settimeout(30)
        yield listening


def words(listening: socket.socket, *, seconds: float) -> list[str]:
    """What is said in that time."""
    said, deadline = [], time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        listening.settimeout(left)
        with contextlib.suppress(TimeoutError):
            said.append(listening.recv(100).decode())
    return said


@pytest.mark.parametrize("processes", [1, 2])
def test_systemd_learns_when_the_service_is_ready_alive_and_stopping(
    dsn: str, folder: Path, sql: Sql, processes: int
) -> None:
    address = f"@leasehold-{os.getpid()}-{processes}" if processes == 1 else str(folder / "notify")
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
    with systemd(address) as listening, worker(dsn, folder, "--processes", str(processes), **env) as running:
        while (word := listening.recv(100)) != b"READY=1":
            assert word == b"WATCHDOG=1"
        ready(sql, processes)
        said = words(listening, seconds=2)
        assert set(said) == {"WATCHDOG=1"}
        assert 5 <= len(said) <= 12  # every 0.2 s
        running.send(signal.SIGTERM)
        assert running.end() == 0
        assert set(words(listening, seconds=0.2)) - {"WATCHDOG=1"} == {"STOPPING=1"}


def test_a_blocked_event_loop_is_not_alive(dsn: str, folder: Path, sql: Sql) -> None:
    address = f"@leasehold-{os.getpid()}-blocked"
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
    with systemd(address) as listening, worker(dsn, folder, **env):
        while listening.recv(100) != b"READY=1":
            pass
        enqueue(sql, "block", seconds=4)
        until(lambda: words(listening, seconds=1) == [])
        assert states(sql) == {"running": 1}
        until(lambda: states(sql) == {"success": 1})  # its lease was kept meanwhile
        until(lambda: "WATCHDOG=1" in words(listening, seconds=1))


def test_under_a_watchdog_a_hung_worker_is_replaced_and_the_others_go_on(dsn: str, folder: Path, sql: Sql) -> None:
    address = f"@leasehold-{os.getpid()}-hung"
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    with systemd(address), worker(dsn, folder, "--processes", "2", **env) as running:
        ready(sql, 2)
        hung, other = running.pids
        os.kill(hung, signal.SIGSTOP)
        until(lambda: f"worker {hung} has said nothing for" in running.log)
        until(lambda: hung not in running.pids and len(running.pids) == 2)
        assert other in running.pids


def test_under_a_watchdog_a_worker_that_hangs_before_it_is_ready_is_replaced(dsn: str, folder: Path, sql: Sql) -> None:
    address = f"@leasehold-{os.getpid()}-early"
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    with systemd(address), sql.transaction():
        sql.execute("lock table workers")  # none can enter itself
        with worker(dsn, folder, "--processes", "2", **env) as running:
            until(lambda: running.log.count("the start of the worker waits for the database") == 2)
            hung, other = running.pids
            os.kill(hung, signal.SIGSTOP)
            until(lambda: f"worker {hung} has said nothing for" in running.log)
            until(lambda: hung not in running.pids and len(running.pids) == 2)
            assert other in running.pids


@pytest.mark.parametrize("processes", [1, 2])
def test_an_event_loop_that_a_task_blocks_is_in_the_log_and_in_the_health_file(
    dsn: str, folder: Path, sql: Sql, processes: int
) -> None:
    with worker(dsn, folder, "--processes", str(processes), "--health-file", "health.json") as running:
        ready(sql, processes)
        enqueue(sql, "block", seconds=12)
        until(lambda: "async tasks that run: block)" in running.log)
        [line] = [line for line in running.log.splitlines() if "async tasks that run: block)" in line]
        assert "WARNING" in line
        assert "event loop has not turned" in line
        assert "mytasks.py" in line
        assert "executor='thread'" in line

        def stuck() -> bool:
            health = running.health or {}
            return any("event loop" in word.get("stuck", {}) for word in [health, *health.get("workers", [])])

        until(stuck)
        until(lambda: states(sql) == {"success": 1})
        until(lambda: "event loop goes on after" in running.log)
        until(lambda: not stuck())
        assert running.log.count("async tasks that run: block)") == 1
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.log
        assert running.health is None


def healthy(running: Running) -> dict[str, Any]:
    return until(lambda: (found := running.health) and found["state"] == "working" and found)  # type: ignore[no-any-return]


def test_the_health_file_of_one_process_says_how_the_worker_is_doing(
    dsn: str, folder: Path, sql: Sql, admin: Admin
) -> None:
    with worker(dsn, folder, "--slots", "3", "--health-file", "health.json") as running:
        first = healthy(running)
        assert first.keys() == {"worker", "pid", "state", "running", "slots", "finished", "at", "stuck"}
        assert first["pid"] == running.process.pid  # no supervisor where none is needed
        assert first["slots"] == 3
        assert abs(first["at"] - time.time()) < 5
        enqueue(sql, "nap", 2, seconds=0)
        enqueue(sql, "nap", 1, seconds=60)
        until(lambda: healthy(running)["running"] == 1)
        until(lambda: healthy(running)["finished"] == 2)
        assert healthy(running)["at"] > first["at"]
        with _no_connections(sql, admin):
            until(lambda: (running.health or {})["state"] == "waiting for the database")
        healthy(running)
        running.send(signal.SIGTERM)
        until(lambda: (running.health or {})["state"] == "draining")
        sql.execute("select cancel(id) from jobs where state = 'running'")
        assert running.end() == 0, running.log
        assert running.health is None
        assert not list(folder.glob(".health*"))


@contextmanager
def _no_connections(sql: Sql, admin: Admin) -> Iterator[None]:
    name = sql.info.dbname
    alter = syntax.SQL("alter database {} allow_connections {}").format
    admin.connection.execute(alter(syntax.Identifier(name), syntax.SQL("false")))
    admin.connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> %s",
        [name, sql.info.backend_pid],
    )
    try:
        yield
    finally:
        admin.connection.execute(alter(syntax.Identifier(name), syntax.SQL("true")))


def test_the_health_file_of_several_processes_has_them_all(dsn: str, folder: Path, sql: Sql) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "3", "--health-file", "health.json") as running:
        health = until(
            lambda: (
                (found := healthy(running))
                and [each["state"] for each in found["workers"]] == ["working", "working"]
                and found
            )
        )
        assert health["pid"] == running.process.pid
        assert health["slots"] == 6
        assert {each["pid"] for each in health["workers"]} == running.pids
        enqueue(sql, "nap", 4, seconds=60)
        until(lambda: healthy(running)["running"] == 4)
        [hung, _] = running.pids
        os.kill(hung, signal.SIGSTOP)
        path = folder / "health.json"
        until(lambda: time.time() - path.stat().st_mtime > 4)  # its age is that of the stalest worker
        os.kill(hung, signal.SIGCONT)
        until(lambda: time.time() - path.stat().st_mtime < 1)
        running.send(signal.SIGTERM)
        until(lambda: (running.health or {})["state"] == "draining")
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.log
        assert running.health is None


def test_a_health_file_that_cannot_be_written_is_a_usage_error(dsn: str, folder: Path) -> None:
    for processes in ("1", "2"):
        with worker(dsn, folder, "--processes", processes, "--health-file", "nowhere/health.json") as running:
            assert running.end() == 2
            assert "health.json cannot be written: No such file or directory" in running.log


def test_a_worker_without_systemd_or_health_file_keeps_quiet(dsn: str, folder: Path, sql: Sql) -> None:
    with worker(dsn, folder) as running:
        ready(sql, 1)
        running.send(signal.SIGTERM)
        assert running.end() == 0
    assert {path.name for path in folder.iterdir()} <= {"mytasks.py", "log", "__pycache__"}
