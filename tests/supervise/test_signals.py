"""Workers die, and supervisors get signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.waiting import stays, until
from tests.supervise.conftest import (
    Running,
    Sql,
    alive,
    children_of,
    enqueue,
    one,
    pids_that_ran,
    ready,
    states,
    worker,
)
from tests.timing import bound


def test_every_process_runs_jobs_and_a_killed_one_is_replaced_within_two_seconds(
    dsn: str, folder: Path, sql: Sql
) -> None:
    with worker(dsn, folder, "--processes", "3", "--slots", "2") as running:
        ready(sql, 3)
        before = running.pids
        assert len(before) == 3
        enqueue(sql, "nap", 30, seconds=0.2)
        until(lambda: pids_that_ran(sql) == before)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(running.pids - before) == 1, within=bound(2))
        assert running.pids > before - {victim}
        assert f"worker {victim} was killed by SIGKILL; another starts in 0." in running.log
        [fresh] = running.pids - before
        until(lambda: one(sql, f"select count(*) from workers where pid = {fresh}"))
        until(lambda: enqueue(sql, "nap", 12, seconds=0.2) or fresh in pids_that_ran(sql), pause=0.5)


def test_where_programs_read_the_log_the_death_of_a_worker_is_a_warning(dsn: str, folder: Path, sql: Sql) -> None:
    with worker(dsn, folder, "--processes", "2", "--log-format", "json", "--log-level", "warning") as running:
        ready(sql, 2)
        victim = min(running.pids)
        os.kill(victim, signal.SIGKILL)
        killed = f"worker {victim} was killed by SIGKILL; another starts in"
        until(lambda: killed in running.log, detail=lambda: running.log)
        line = next(json.loads(line) for line in running.log.splitlines() if killed in line)
        assert (line["level"], line["pid"]) == ("WARNING", running.process.pid)


def test_sigterm_drains_every_process_and_nothing_is_left_or_lost(dsn: str, folder: Path, sql: Sql) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "3", "--grace", "4") as running:
        ready(sql, 2)
        enqueue(sql, "nap", 2, seconds=1.5)
        enqueue(sql, "nap", 4, seconds=60)
        until(lambda: states(sql) == {"running": 6})
        pids = running.pids
        running.send(signal.SIGTERM)
        assert running.end(within=bound(10)) == 0, running.log
        assert not alive(pids)
        assert "Traceback" not in running.log
        assert running.log.count("stopping:") == 1
    assert states(sql) == {"success": 2, "queued": 4}
    assert one(sql, "select max(retry_count) from jobs") == 0


def test_a_second_signal_has_the_jobs_given_back_at_once(dsn: str, folder: Path, sql: Sql) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "2", "--grace", "60") as running:
        ready(sql, 2)
        enqueue(sql, "nap", 4, seconds=60)
        until(lambda: states(sql) == {"running": 4})
        running.send(signal.SIGINT)
        until(lambda: "stopping:" in running.log)
        stays(lambda: states(sql) == {"running": 4}, "the first signal lets jobs run", seconds=0.5)
        running.send(signal.SIGINT)
        assert running.end(within=bound(5)) == 0, running.log
    assert states(sql) == {"queued": 4}
    assert one(sql, "select max(retry_count) from jobs") == 0


def test_a_worker_that_does_not_stop_is_killed_five_seconds_after_the_grace_period(
    dsn: str, folder: Path, sql: Sql
) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "1", "--grace", "0.2") as running:
        ready(sql, 2)
        enqueue(sql, "block", seconds=60)
        until(lambda: states(sql) == {"running": 1})
        pids = running.pids
        running.send(signal.SIGTERM)
        signalled = time.monotonic()
        assert running.end(within=bound(15)) == 1, running.log
        assert time.monotonic() - signalled > 5
        assert not alive(pids)
        assert running.log.count("does not stop; killing it") == 1


def test_workers_of_a_killed_supervisor_drain_and_are_gone_after_the_grace_period(
    dsn: str, folder: Path, sql: Sql
) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "2", "--grace", "1") as running:
        ready(sql, 2)
        enqueue(sql, "nap", 4, seconds=60)
        until(lambda: states(sql) == {"running": 4})
        pids = running.pids
        assert len(pids) == 2
        running.send(signal.SIGKILL)
        running.end()
        until(lambda: not alive(pids), within=bound(10))
    assert states(sql) == {"queued": 4}
    assert one(sql, "select max(retry_count) from jobs") == 0  # given back, not expired


@pytest.mark.parametrize("asked_before", [False, True])
def test_workers_of_a_killed_supervisor_finish_their_jobs_within_the_grace_period(
    dsn: str, folder: Path, sql: Sql, asked_before: bool
) -> None:
    """Also one that was retiring. The kernel sends them a signal for each thread of the supervisor: it means one."""
    enqueue(sql, "wait")
    with worker(dsn, folder, "--slots", "2", "--max-jobs", "1", "--grace", "60") as running:
        until(lambda: states(sql) == {"running": 1})
        enqueue(sql, "nap", seconds=0)
        until(lambda: len(running.pids) == 2 and states(sql) == {"running": 1, "success": 1})
        enqueue(sql, "wait")
        until(lambda: states(sql) == {"running": 2, "success": 1})
        pids = running.pids
        if asked_before:
            running.send(signal.SIGTERM)
            until(lambda: "they have 60 s" in running.log)
        running.send(signal.SIGKILL)
        running.end()
        until(lambda: running.log.count("the supervisor has gone") == 2, detail=lambda: running.log)
        stays(lambda: states(sql) == {"running": 2, "success": 1}, "their jobs go on", seconds=2)
        (folder / "go").touch()
        until(lambda: not alive(pids))
        assert running.log.count("the supervisor has gone") == 2
    assert states(sql) == {"success": 3}
    assert one(sql, "select max(attempt) from jobs") == 1


def test_a_killed_supervisor_takes_a_worker_that_is_still_starting_along(dsn: str, folder: Path) -> None:
    (folder / "mytasks.py").write_text("import time\nfrom pathlib import Path\nPath('here').touch()\ntime.sleep(60)\n")
    with worker(dsn, folder, "--processes", "2") as running:
        until((folder / "here").exists)
        [pid] = running.pids
        running.send(signal.SIGKILL)
        until(lambda: not alive({pid}), within=bound(5))


def test_a_worker_that_starts_after_its_supervisor_has_gone_does_not_work(dsn: str, folder: Path) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "leasehold", "worker", "mytasks:app"]
    env = {**os.environ, "LEASEHOLD_DSN": dsn, "LEASEHOLD_SUPERVISOR": f"1:{writing}"}
    ended = subprocess.run(
        command, cwd=folder, env=env, pass_fds=[writing], capture_output=True, text=True, timeout=60, check=False
    )
    os.close(reading)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "the supervisor is gone\n")


def test_sighup_replaces_one_worker_after_the_other_and_none_stops_before_its_replacement_is_ready(
    dsn: str, folder: Path, sql: Sql
) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "2", "--grace", "5") as running:
        ready(sql, 2)
        before = running.pids
        enqueue(sql, "nap", 50, seconds=0.02)
        running.send(signal.SIGHUP)
        enqueued = 50

        def replaced() -> bool:
            nonlocal enqueued
            if one(sql, "select count(*) from jobs where state = 'queued'") < 20:  # never idle
                enqueue(sql, "nap", 50, seconds=0.02)
                enqueued += 50
            assert len(running.pids) <= 3
            assert one(sql, "select count(*) from workers where stopped_at is null") >= 2
            return "all workers have been replaced" in running.log

        until(replaced)
        after = running.pids
        until(lambda: states(sql) == {"success": enqueued})
    assert len(after) == 2
    assert not after & before
    assert one(sql, "select max(retry_count) from jobs") == 0
    workers = sql.execute("""
        select w.pid, w.started_at, w.stopped_at, max(j.claimed_at) as last_claim
        from workers w join jobs j on (j.result #>> '{}')::integer = w.pid group by w.id
    """).fetchall()
    old = sorted((row for row in workers if row["pid"] in before), key=lambda row: row["stopped_at"])
    new = sorted((row for row in workers if row["pid"] in after), key=lambda row: row["started_at"])
    assert (len(old), len(new)) == (2, 2)
    for leaving, coming in zip(old, new, strict=True):
        assert (coming["started_at"] - leaving["last_claim"]).total_seconds() < bound(0.3)
    assert new[1]["started_at"] > old[0]["stopped_at"]


def test_a_replacement_that_cannot_start_leaves_the_old_workers_at_work(dsn: str, folder: Path, sql: Sql) -> None:
    with worker(dsn, folder, "--processes", "2", "--slots", "1") as running:
        ready(sql, 2)
        before = running.pids
        (folder / "mytasks.py").write_text("app = None\n")
        running.send(signal.SIGHUP)
        until(lambda: "the other workers stay as they are" in running.log)
        assert "ended with exit code 2 before it was ready" in running.log
        assert running.pids == before
        enqueue(sql, "nap", 4, seconds=0.2)
        until(lambda: states(sql) == {"success": 4})
        assert pids_that_ran(sql) <= before


def pauses_of(running: Running) -> list[float]:
    return [float(line.split()[-2]) for line in running.log.splitlines() if line.endswith(" s") and "starts in" in line]


def test_a_crash_loop_slows_down_never_ends_and_can_be_stopped(dsn: str, folder: Path) -> None:
    (folder / "mytasks.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with worker(dsn, folder, "--processes", "2") as running:
        until(lambda: pauses_of(running))
        stays(lambda: len(pauses_of(running)) <= 5, "the starts become rare", seconds=5)
        pauses = until(lambda: len(found := pauses_of(running)) >= 4 and found)
        for number, pause in enumerate(pauses):
            assert 0.1 * 2**number - 0.05 <= pause <= 0.2 * 2**number + 0.05  # it doubles, less a half at most
        assert running.process.poll() is None
        running.send(signal.SIGTERM)
        assert running.end(within=bound(5)) == 0
        assert not children_of(running.process.pid)


@pytest.mark.parametrize(
    ("app", "database", "code"),
    [
        ("nowhere:app", "postgresql://127.0.0.1:1/none", 2),
        ("mytasks:app", None, 4),
    ],
)
def test_what_another_start_would_not_cure_is_said_once_and_passed_on(
    folder: Path, empty_dsn: str, app: str, database: str | None, code: int
) -> None:
    with worker(database or empty_dsn, folder, "--processes", "3", app=app) as running:
        assert running.end() == code, running.log
        assert running.log.count("error:") == 1
        assert "Traceback" not in running.log
