"""`leasehold demo`: workers are killed, their jobs move over, nothing is lost; and its end leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from faults.waiting import until
from leasehold.demo.controls import Controls, DemoWorker, Standing, born
from leasehold.demo.ledger import Ledger
from leasehold.errors import LeaseholdError
from tests.cli.conftest import ENV
from tests.cli.terminal import terminal


class Demo:
    """A demo in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", controls: Controls, port: int, log: Path) -> None:
        self.process = process
        self.controls = controls
        self.port = port
        self.log = log

    def shows(self, holds: Callable[[Standing], Any], what: str) -> Standing:
        """Wait until this holds for what it reports of itself."""

        def standing() -> Standing | None:
            assert self.process.poll() is None, self.log.read_text()
            found = self.controls.running()
            return found if found is not None and holds(found) else None

        found = until(standing, what, pause=0.1, detail=lambda: f"{self.controls.running()}\n{self.log.read_text()}")
        assert found is not None
        return found


@contextmanager
def demo(dsn: str, home: Path, *more: str) -> Iterator[Demo]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = home / "log"
    arguments = [
        "demo",
        "--dsn",
        dsn,
        "--schema",
        "leasehold",
        "--rate",
        "10",
        "--workers",
        "2",
        "--port",
        str(port),
        *more,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "leasehold", *arguments], env=ENV | {"LEASEHOLD_HOME": str(home)}, stdout=out,
            stderr=out, stdin=subprocess.DEVNULL, cwd=home,
        )  # fmt: skip
    try:
        yield Demo(process, Controls(home), port, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_killed_workers_jobs_move_over_and_none_is_lost(dsn, tmp_path, bare, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path))
    with demo(dsn, tmp_path) as show:
        show.shows(lambda s: s.scoreboard["done"] >= 5 and len(s.workers) == 2, "both work")
        refused = bare("demo", "--dsn", dsn)
        assert refused.code == 2
        assert f"a demo runs here already, as process {show.process.pid}" in refused.err

        with psycopg.connect(dsn, autocommit=True) as connection:  # some that last for seconds
            slow = """leasehold.enqueue('IMPORT_FILE', '{"name": "a.csv"}', 'imports')"""
            connection.execute(f"select {slow} from generate_series(1, 40)")
        before = show.shows(lambda s: max((w.running for w in s.workers), default=0) >= 4, "they are running")
        killed = bare("demo", "kill", "--json").json
        assert killed["pid"] in {worker.pid for worker in before.workers}
        after = show.shows(
            lambda s: s.scoreboard["kills"] == 1 and s.scoreboard["recovered"] >= 1 and not s.scoreboard["recovering"],
            "its jobs move over",
        )
        assert after.scoreboard["jobs lost"] == 0
        after = show.shows(lambda s: len(s.workers) == 2, "another is started")
        assert killed["pid"] not in {worker.pid for worker in after.workers}
        score = bare("demo", "score", "--json").json
        assert score["scoreboard"]["jobs lost"] == 0
        assert str(show.port) in score["url"]
        with httpx.Client(base_url=f"http://127.0.0.1:{show.port}/dashboard", timeout=30) as browser:
            assert "Kill a worker" in browser.get("/").text
            assert browser.get("/data/scoreboard").json()["jobs lost"] == 0
            headers = {"origin": f"http://127.0.0.1:{show.port}", "x-leasehold-csrf": browser.cookies["leasehold_csrf"]}
            assert browser.post("/demo/kill", json={}, headers=headers).status_code == 200
        after = show.shows(lambda s: s.scoreboard["kills"] == 2, "the button kills")
        children = _processes(str(show.port)) | {worker.pid for worker in after.workers}
        show.process.send_signal(signal.SIGINT)
        assert show.process.wait(60) == 0, show.log.read_text()
    assert "jobs lost 0" in show.log.read_text().splitlines()[-1]
    assert not any(Path(f"/proc/{pid}").exists() for pid in children), "no process is left"
    assert not show.controls.path.exists()
    assert "no demo runs in" in bare("demo", "kill").err
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select name from leasehold.verify() where not ok").fetchall()
        assert rows == []


def _processes(word: str) -> set[int]:
    """Those with this word on their command line."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words and entry.name != str(os.getpid()):
                found.add(int(entry.name))
    return found


def test_in_a_terminal_k_kills_and_q_ends_and_nothing_outlives_it(dsn, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    arguments = ("demo", "--schema", "leasehold", "--workers", "1", "--rate", "5", "--port", port)
    with terminal(*arguments, LEASEHOLD_DSN=dsn, LEASEHOLD_HOME=str(tmp_path), columns=120, lines=40) as screen:
        screen.expect("jobs lost 0")
        screen.expect("workers 1")
        screen.press("k")
        screen.expect("killed by SIGKILL")
        screen.expect("kills 1")
        screen.press("q")
        assert screen.end() == 0
        assert "Traceback" not in screen.text
    assert _processes(port) == set()


def test_a_pid_that_was_given_to_another_process_is_not_killed(tmp_path):
    controls = Controls(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mine = os.getpid()
        standing = Standing(
            pid=mine, born=born(mine), url="", workers=[DemoWorker(pid=other.pid, born=born(other.pid) - 1)]
        )
        controls.write(standing)
        with pytest.raises(LeaseholdError, match="no worker of the demo is alive"):
            controls.kill()
        assert other.poll() is None
        controls.write(
            Standing(pid=mine, born=born(mine), url="", workers=[DemoWorker(pid=other.pid, born=born(other.pid))])
        )
        assert controls.kill()["pid"] == other.pid
        assert other.wait(60) == -signal.SIGKILL
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"workers": 3}', json.dumps({"pid": 1, "born": 1, "url": "", "workers": [], "scoreboard": {}})],
)
def test_a_file_that_is_no_demos_says_that_none_runs(tmp_path, text):
    (tmp_path / "demo.json").write_text(text)
    assert Controls(tmp_path).running() is None


async def test_the_ledger_finds_a_job_that_is_gone(dsn):
    """The scoreboard can say otherwise: a job that is deleted by hand is lost."""
    from leasehold import App  # noqa: PLC0415

    async with App(dsn) as app:
        database = await app.adatabase()
        ledger = Ledger()
        with psycopg.connect(dsn, autocommit=True) as connection:
            jobs = [connection.execute("select leasehold.enqueue('k')").fetchone()[0] for _ in range(3)]
            for job in jobs:
                ledger.promise(job)
            await ledger.query(database)
            assert (ledger.acknowledged, ledger.lost) == (3, set())
            connection.execute("delete from leasehold.jobs where id = %s", (jobs[0],))
            connection.execute("select leasehold.cancel(%s)", (jobs[1],))
        await ledger.query(database)
        assert (ledger.lost, ledger.dead, ledger.done) == ({jobs[0]}, 1, 0)


def test_what_it_started_does_not_outlive_a_demo_that_is_killed(dsn, tmp_path):
    with demo(dsn, tmp_path) as show:
        workers = show.shows(lambda s: len(s.workers) == 2, "workers").workers
        children = _processes(str(show.port)) - {show.process.pid} | {worker.pid for worker in workers}
        assert len(children) == 3
        show.process.kill()
        show.process.wait()
        until(lambda: not any(born(pid) for pid in children), "the kernel ends the children of the demo")
        assert show.controls.running() is None, "the file that was left behind names no process"
