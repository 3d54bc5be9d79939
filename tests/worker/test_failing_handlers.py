"""A handler, a filter or a record factory of the application that raises ends no worker: real processes."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from tests.worker.test_logs import enqueue, program
from tests.worker.test_process import run_cli

Sql = psycopg.Connection[dict[str, Any]]

TASKS = """
import asyncio
import logging
from leasehold import App
from leasehold.db.store import Store

app = App()

class Away(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is away")

def refuse(*_: object) -> bool:
    raise ConnectionError("the log server is away")

@app.task(kind="away")
async def away(part: str = "handler") -> None:
    if part == "handler":
        logging.getLogger().addHandler(Away())
    elif part == "factory":
        logging.setLogRecordFactory(refuse)
    else:
        for name in ("leasehold.worker", "leasehold.worker.worker"):
            logging.getLogger(name).addFilter(refuse)

@app.task(kind="bad")
async def bad() -> None:
    raise ValueError("no luck")

@app.task(kind="own")
async def own() -> None:
    logging.getLogger("shop").warning("mine")

@app.task(kind="good")
async def good() -> None: ...

@app.task(kind="fatal", lease=60)
async def fatal() -> None:
    def complete(*_):
        raise KeyError("a defect of the test")
    Store.complete = complete
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytasks.py").write_text(textwrap.dedent(TASKS))
    return tmp_path


def state(sql: Sql, job: str) -> str:
    found = sql.execute("select state::text from jobs where id = %s::uuid", [job]).fetchone()
    assert found is not None
    return str(found["state"])


def put_away(sql: Sql, part: str) -> str:
    found = sql.execute("select enqueue('away', jsonb_build_object('part', %s::text))::text as id", [part]).fetchone()
    assert found is not None
    return str(found["id"])


@pytest.mark.parametrize("part", ["handler", "filter", "factory"])
async def test_a_failing_handler_filter_or_factory_costs_no_other_job_and_no_worker(
    dsn: str, folder: Path, sql: Sql, part: str
) -> None:
    with program(dsn, folder, "worker", "mytasks:app") as worker:
        away = put_away(sql, part)
        await auntil(lambda: state(sql, away) == "success", detail=lambda: worker.text)
        bad = [enqueue(sql, "bad", max_attempts=1) for _ in range(2)]
        await auntil(lambda: {state(sql, job) for job in bad} == {"dead"}, detail=lambda: worker.text)
        good = enqueue(sql, "good")
        await auntil(lambda: state(sql, good) == "success", detail=lambda: worker.text)
        if part != "filter":  # what a task logs itself is its own affair
            own = enqueue(sql, "own", max_attempts=1)
            await auntil(lambda: state(sql, own) == "dead")
        assert worker.end() == 0
    assert worker.text.count("this is reported once") == 1
    assert "ConnectionError: the log server is away" in worker.text


@pytest.mark.parametrize("part", ["handler", "filter", "factory"])
def test_a_worker_whose_loop_dies_ends_with_70_though_its_handler_fails(
    dsn: str, folder: Path, sql: Sql, part: str
) -> None:
    put_away(sql, part)
    sql.execute("select enqueue('fatal', run_at => clock() + interval '1 s')")
    ended = run_cli(folder, "worker", "mytasks:app", "--grace", "1", LEASEHOLD_DSN=dsn)
    assert ended.returncode == 70, ended.stderr
    assert "the Finisher of worker" in ended.stderr


def test_a_line_names_the_caller_and_the_loggers_class_stays() -> None:
    code = """
        import logging
        class Mine(logging.Logger): ...
        logging.setLoggerClass(Mine)
        from leasehold._logger import logger_of
        logging.basicConfig(format="%(filename)s %(funcName)s", level="INFO")
        def here():
            logger_of("leasehold.x").info("y")
        here()
        assert isinstance(logger_of("leasehold.x"), Mine)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "<string> here\n")
