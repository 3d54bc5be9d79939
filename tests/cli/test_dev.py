"""`leasehold dev`: its port, its reload, and that a job can be enqueued as soon as it says where it is."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from faults.waiting import until
from tests.cli.conftest import ENV, leasehold

TASKS = """
from leasehold import App

app = App()


@app.task(kind="GREET", queue="greetings")
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.task(kind="BREAK")
async def fall_over() -> None:
    raise KeyError("boo")
"""


@contextmanager
def dev(folder: Path, dsn: str, *arguments: str) -> Iterator[Path]:
    """Runs while the block does; yields the file that it writes to."""
    said = folder / "said"
    with said.open("wb") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", "leasehold", "dev", "tasks:app", *arguments], cwd=folder, stdout=out, stderr=out,
            env=ENV | {"LEASEHOLD_DSN": dsn, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
        )  # fmt: skip
    try:
        until(lambda: "the API is on" in said.read_text(), detail=said.read_text)
        yield said
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, said.read_text()
    finally:
        running.kill()
        running.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        return int(place.getsockname()[1])


def test_a_job_can_be_enqueued_at_once_and_the_worker_is_started_anew_when_a_file_changes(
    dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    port = free_port()
    with dev(tmp_path, dsn, "--port", str(port), "--reload") as said:
        assert f"http://127.0.0.1:{port} " in said.read_text()
        first = leasehold("enqueue", "GREET", "-p", "name=Ada", "--wait", "--timeout", "60s", LEASEHOLD_DSN=dsn)
        assert (first.returncode, first.stdout.strip()) == (0, '"Hello, Ada!"'), first.stderr
        (tmp_path / "tasks.py").write_text(TASKS.replace("Hello", "Good morning"))
        until(lambda: "tasks.py changed: starting the worker anew" in said.read_text(), detail=said.read_text)

        def greeted() -> bool:
            done = leasehold("enqueue", "GREET", "-p", "name=Ada", "--wait", "--timeout", "60s", LEASEHOLD_DSN=dsn)
            return done.stdout.strip() == '"Good morning, Ada!"'

        until(greeted, detail=said.read_text)
        until(lambda: answers(port), detail=said.read_text)
        leasehold("enqueue", "BREAK", "--queue", "greetings", LEASEHOLD_DSN=dsn)
        until(lambda: 'in fall_over\n    raise KeyError("boo")' in said.read_text(), detail=said.read_text)
    with psycopg.connect(dsn) as connection:
        queues = connection.execute("select distinct queue from leasehold.jobs").fetchall()
    assert queues == [("greetings",)]
    assert not re.search(r"worker \d+ ended", said.read_text()), "a reload is no death"


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def test_a_port_that_is_taken_is_refused(dsn: str, tmp_path: Path, cli, monkeypatch) -> None:
    (tmp_path / "tasks_for_dev.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
        done = cli("dev", "tasks_for_dev:app", "--port", str(port), code=2)
    assert f"port {port} is taken" in done.err


def test_before_any_worker_has_started_that_is_what_is_said(cli) -> None:
    done = cli("enqueue", "GREET", code=1)
    assert "kind 'GREET' unknown: no worker has started on this database yet" in done.err
    assert "--anyway" in done.err
