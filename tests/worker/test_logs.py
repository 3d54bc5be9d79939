"""What a worker's log says by default, and to which job a line belongs: real processes, read from standard error."""

import contextlib
import json
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

from faults.waiting import auntil

Sql = psycopg.Connection[dict[str, Any]]

TASKS = """
import asyncio
import logging
from leasehold import App, Cancel, FixedDelay, current_job

app = App()
log = logging.getLogger("shop")

@app.task(kind="bad", queue="mail", max_attempts=2, retry=FixedDelay(0.1))
async def bad() -> None:
    raise ValueError("no luck\\nat all")

@app.task(kind="loop")
async def on_loop() -> None:
    log.info("said on the loop", extra={"attempt": "mine", "order": 7})

@app.task(kind="thread")
def in_thread() -> None:
    log.warning("said in a thread")
    current_job().log.info("said to the job")

@app.task(kind="process", executor="process")
def in_process() -> None:
    log.info("said in a process")
    print("printed in a process")

@app.task(kind="cancel")
def cancel() -> None:
    raise Cancel("not wanted")

@app.task(kind="wait")
async def wait() -> None:
    log.info("waiting")
    await asyncio.Event().wait()

@app.task(kind="long")
def long() -> None:
    print("x" * 300_000)
    log.error("y" * 300_000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(textwrap.dedent(TASKS))
    return tmp_path


class Program:
    """A program and what it has said so far."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: Path) -> None:
        self.process = process
        self._said = said

    @property
    def text(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Those that are JSON."""
        found = []
        for line in self.text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]

    def having(self, **facts: Any) -> list[dict[str, Any]]:
        return [line for line in self.lines if facts.items() <= line.items()]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def program(dsn: str, folder: Path, *arguments: str) -> Iterator[Program]:
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "leasehold", *arguments], cwd=folder, stdout=out, stderr=out,
            env={**os.environ, "LEASEHOLD_DSN": dsn},
        )  # fmt: skip
    try:
        yield Program(process, said)
    finally:
        process.kill()
        process.wait()


def enqueue(sql: Sql, kind: str, **options: Any) -> str:
    row = sql.execute(
        "select enqueue(%s, queue => coalesce(%s, 'default'), max_attempts => coalesce(%s, 5))::text as id",
        [kind, options.get("queue"), options.get("max_attempts")],
    ).fetchone()
    assert row is not None
    return str(row["id"])


def lost_leases(worker: Program, job: str) -> list[dict[str, Any]]:
    """Return the lines about the lease, without those about the attempt that it ended."""
    lines = worker.having(logger="leasehold.worker", job_id=job)
    return [line for line in lines if "lease lost, attempt 1 (" in line["message"]]


@pytest.mark.parametrize("why", ["by ann\nand bob", None])
async def test_a_cancelled_job_is_no_lost_lease(dsn: str, folder: Path, sql: Sql, why: str | None) -> None:
    with program(dsn, folder, "worker", "mytasks:app", "--log-format", "json") as worker:
        stopped, taken = enqueue(sql, "wait"), enqueue(sql, "wait")
        await auntil(lambda: len(worker.having(message="waiting")) == 2)
        sql.execute("select cancel(%s, %s)", [stopped, why])
        sql.execute("update jobs set lease_expires_at = clock() where id = %s", [taken])
        sql.execute("select sweep()")
        sql.execute("select notify(array['@cancel:' || %s])", [taken])  # only to have it look now; it was not cancelled
        await auntil(lambda: worker.having(logger="leasehold.worker", job_id=stopped))
        await auntil(lambda: lost_leases(worker, taken))
        worker.process.kill()
    [line] = worker.having(logger="leasehold.worker", job_id=stopped)
    assert (line["level"], line["attempt"], line["reason"]) == ("INFO", 1, why)
    assert "cancelled, attempt 1 is stopped (queue default, worker " in line["message"]
    assert line["message"].endswith(r"by ann\nand bob" if why else ")")
    assert [line["level"] for line in lost_leases(worker, taken)] == ["WARNING"]


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_failed_attempt_has_its_traceback_in_text_where_it_is_wanted(
    dsn: str, folder: Path, sql: Sql, wanted: bool
) -> None:
    with program(dsn, folder, "worker", "mytasks:app", *(["--tracebacks"] if wanted else [])) as worker:
        enqueue(sql, "bad", queue="mail", max_attempts=2)
        await auntil(lambda: "is dead" in worker.text)
        assert worker.end() == 0
    assert worker.text.count('raise ValueError("no luck') == (2 if wanted else 1)


async def test_each_thing_is_said_once_and_with_its_facts(dsn: str, folder: Path, sql: Sql) -> None:
    with program(dsn, folder, "worker", "mytasks:app", "--log-format", "json") as worker:
        bad, cancelled = enqueue(sql, "bad", queue="mail", max_attempts=2), enqueue(sql, "cancel")
        await auntil(lambda: worker.having(level="ERROR", job_id=bad))
        await auntil(lambda: worker.having(job_id=cancelled))
        assert worker.end() == 0
    [failed] = worker.having(level="WARNING", job_id=bad)
    facts = {
        "kind": "bad", "attempt": 1, "queue": "mail", "error_class": "ValueError", "error_message": "no luck\nat all",
        "failures": 1, "max_attempts": 2, "retry_after": 0.1, "logger": "leasehold.worker",
    }  # fmt: skip
    assert facts.items() <= failed.items()
    assert "failure 1 of 2, queue mail, worker " in failed["message"]
    [dead] = worker.having(level="ERROR", job_id=bad)
    assert ("Traceback" in dead["traceback"], "Traceback" in dead["message"]) == (True, False)
    assert failed["message"].endswith(r"ValueError: no luck\nat all; tried again in 0.1 s")
    assert 'in bad\n    raise ValueError("no luck' in failed["traceback"]
    [dead] = worker.having(level="ERROR", job_id=bad)
    assert 'raise ValueError("no luck' in dead["traceback"]
    assert "is dead, its last attempt failed" in dead["message"]
    [gone] = worker.having(job_id=cancelled)
    assert gone["message"].endswith(": not wanted")
    for event in ("started", "drains", "ended"):
        name = failed["worker"]
        assert (
            len([line for line in worker.having(worker=name) if line["message"].startswith(f"worker {name} {event}")])
            == 1
        )
    assert {line["pid"] for line in worker.lines} == {worker.process.pid}


async def test_what_a_task_writes_carries_its_job_in_loop_thread_and_process(dsn: str, folder: Path, sql: Sql) -> None:
    with program(dsn, folder, "worker", "mytasks:app", "--log-format", "json") as worker:
        jobs = {kind: enqueue(sql, kind) for kind in ("loop", "thread", "process")}
        await auntil(lambda: len(worker.having(logger="shop")) == 3)
        await auntil(lambda: "printed in a process" in worker.text)
        assert worker.end() == 0
    for kind, words in (("loop", "said on the loop"), ("thread", "said in a thread"), ("process", "said in a process")):
        [line] = worker.having(logger="shop", message=words)
        assert (line["job_id"], line["kind"], line["attempt"]) == (jobs[kind], kind, 1)
    [line] = worker.having(message="said on the loop")
    assert line["order"] == 7
    [line] = worker.having(message="said to the job")
    assert line["job_id"] == jobs["thread"]


async def test_text_and_level(dsn: str, folder: Path, sql: Sql) -> None:
    with program(dsn, folder, "worker", "mytasks:app", "--log-level", "warning") as worker:
        jobs = [enqueue(sql, kind) for kind in ("loop", "thread")]
        bad = enqueue(sql, "bad", max_attempts=1)
        await auntil(lambda: "said in a thread" in worker.text and "is dead" in worker.text)
        assert worker.end() == 0
    assert f"WARNING shop [thread {jobs[1]} attempt 1]: said in a thread" in worker.text
    assert f"ERROR leasehold.worker: bad {bad} is dead" in worker.text
    assert 'raise ValueError("no luck' in worker.text
    assert "INFO" not in worker.text
    rows = sql.execute("select l ->> 2 as said from job_logs, jsonb_array_elements(lines) l order by 1").fetchall()
    assert [row["said"] for row in rows] == ["said in a thread", "said on the loop", "said to the job"]


async def test_a_failure_that_no_worker_reported_is_in_the_log_of_one_that_lives(
    dsn: str, sql: Sql, folder: Path
) -> None:
    """Each once: an expired lease, the last one of a budget, a lowered budget, a row that raises."""
    made = (("one", 3), ("two", 1), ("three", 3), ("loop", 3))
    expired, last, lowered, raising = [enqueue(sql, kind, queue=kind, max_attempts=most) for kind, most in made]
    for kind in ("one", "two", "three"):
        sql.execute("select from claim('gone', queues => array[%s])", [kind])
    sql.execute("select fail('gone', %s::uuid, 1, retry_after => 0)", [lowered])
    sql.execute("update jobs set max_attempts = 1 where id = %s::uuid", [lowered])
    sql.execute("update jobs set lease_expires_at = clock() - interval '1 s' where state = 'running'")
    sql.execute(
        f"create function raising() returns trigger language plpgsql as $$ begin if new.id = '{raising}'"
        " and new.state = 'running' then raise 'no'; end if; return new; end $$"
    )
    sql.execute("create trigger raising before update on jobs for each row execute function raising()")
    with program(dsn, folder, "worker", "mytasks:app", "--log-format", "json") as worker:
        found = {expired: "WARNING", last: "ERROR", lowered: "ERROR", raising: "ERROR"}
        await auntil(lambda: all(worker.having(job_id=job) for job in found), detail=lambda: worker.text)
        assert worker.end() == 0
        for job, level in found.items():
            (line,) = worker.having(job_id=job)
            assert (line["level"], line["attempt"]) == (level, 0 if job == raising else 1)
            assert {"kind", "queue", "worker", "failures", "max_attempts", "reason"} <= line.keys()
        assert "the lease of worker gone expired" in worker.having(job_id=expired)[0]["message"]
        assert "it raised P0001: no" in worker.having(job_id=raising)[0]["message"]


async def test_dev_shows_what_tasks_print_and_log_and_no_line_is_too_long(dsn: str, folder: Path, sql: Sql) -> None:
    with program(dsn, folder, "dev", "mytasks:app") as dev:
        enqueue(sql, "long")
        await auntil(lambda: "y" * 9000 in dev.text)
        process, bad = enqueue(sql, "process"), enqueue(sql, "bad", max_attempts=1)
        await auntil(lambda: "printed in a process" in dev.text and 'raise ValueError("no luck' in dev.text)
        assert f"shop [process {process} attempt 1]: said in a process" in dev.text
        assert f"bad {bad} is dead" in dev.text
        assert dev.end() == 0
    assert dev.text.count("x") >= 300_000
