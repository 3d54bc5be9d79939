"""What is around a task runs where the task runs; what a worker does when it starts and when it ends."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, ConfigError
from tests.worker import around_tasks as tasks
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def app(app: App) -> App:
    """With the tasks, and what is around them."""
    for task in tasks.app.tasks.values():
        app.register(task)
    app.hooks.around = tasks.app.hooks.around
    return app


async def test_what_is_around_a_task_runs_where_the_task_runs(app: App, sql: Sql) -> None:
    plain, awaited = ["inner 1"], ["inner 1", "awaited"]
    wanted = {
        tasks.on_loop: awaited, tasks.timed: awaited, tasks.in_thread: plain, tasks.in_process: plain,
        tasks.awaited_in_process: awaited,
    }  # fmt: skip
    async with working(app):
        jobs = await app.aenqueue_many([task.intent() for task in (*wanted, tasks.held, tasks.broken)])
        for (task, seen), job in zip(wanted.items(), jobs, strict=False):
            assert await job.aresult(60) == [f"outer {task.kind}", *seen]
        assert await jobs[-2].aresult(60) == 2
        await auntil(lambda: row(sql, jobs[-1])["state"] == "dead")
    [attempt] = attempts(sql, jobs[-1])
    assert (attempt["error_class"], attempt["error_message"]) == ("ValueError", "translated")
    assert "leasehold/telemetry" not in attempt["error_traceback"].split("in broken")[0].split("outer")[0]


def test_what_does_not_yield_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="does not yield"):

        @app.around  # type: ignore[type-var]
        def nothing(_job: object) -> None:
            pass


async def test_startup_comes_before_the_first_job_and_shutdown_after_the_last(app: App) -> None:
    happened: list[str] = []

    @app.on_startup
    async def connect() -> None:
        happened.append("up")

    @app.on_startup
    def more() -> None:
        happened.append("up too")

    @app.on_shutdown
    async def disconnect() -> None:
        happened.append("down")

    @app.on_shutdown
    def fails() -> None:
        happened.append("down first")
        raise RuntimeError("ignored")

    @app.task(kind="work")
    async def work() -> None:
        happened.append("work")

    app.hooks.around = []
    async with working(app):
        await (await work.aenqueue()).aresult(60)
    assert happened == ["up", "up too", "work", "down first", "down"]


async def test_a_startup_that_fails_keeps_the_worker_from_starting(app: App) -> None:
    @app.on_startup
    def connect() -> None:
        raise OSError("no cache")

    with pytest.raises(ConfigError, match=r"the startup hook .*connect failed: OSError: no cache"):
        async with working(app):
            pass


DJANGO = """
import os
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings

parts = urlsplit(os.environ["LEASEHOLD_DSN"])
query = {name: values[0] for name, values in parse_qs(parts.query).items()}
settings.configure(USE_TZ=True, DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username or "",
    "PASSWORD": parts.password or "", "HOST": query.get("host") or parts.hostname or "",
    "PORT": query.get("port") or parts.port or "", "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True,
    "OPTIONS": {"application_name": "shop"},
}})
django.setup()

from django.db import close_old_connections, connection
from leasehold import App, FixedDelay

app = App()

@app.around
def fresh_connections(job):
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()

def count():
    with connection.cursor() as cursor:
        cursor.execute("select 1 from pg_sleep(0.2)")
        return cursor.fetchone()[0]

@app.task(kind="thread", max_attempts=1)
def in_thread() -> int:
    return count()

@app.task(kind="process", executor="process", max_attempts=1)
def in_process() -> int:
    return count()
"""


async def test_a_django_connection_that_broke_does_not_spoil_the_jobs_after_it(
    dsn: str, tmp_path: Path, sql: Sql
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(DJANGO))
    command = [sys.executable, "-m", "leasehold", "worker", "shop:app", "--slots", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "LEASEHOLD_DSN": dsn})

    def ended() -> list[str]:
        return [job["state"] for job in sql.execute("select state from jobs where finished_at is not null").fetchall()]

    try:
        for round_ in (1, 2):
            sql.execute(
                "select enqueue(k, max_attempts => 1) from unnest(array['thread', 'process']) k, generate_series(1, 3)"
            )
            await auntil(lambda wanted=6 * round_: len(ended()) == wanted, within=90)
            sql.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'shop'")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert ended() == ["success"] * 12
