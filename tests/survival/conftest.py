"""Real worker processes under real faults. Counts are small here; `make survival` runs the full ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from faults.waiting import auntil
from tests.survival.tasks import TABLES
from tests.timing import FULL

ROOT = Path(__file__).parents[2]

Sql = psycopg.Connection[dict[str, Any]]


def rounds(few: int, full: int) -> int:
    """How often to repeat: a few times in CI, as often as promised in the full run."""
    return full if FULL else few


def connect(dsn: str) -> Sql:
    return psycopg.connect(dsn, autocommit=True, row_factory=dict_row, options="-c search_path=leasehold,public")


@pytest.fixture
def sql(dsn: str) -> Iterator[Sql]:
    with connect(dsn) as connection:
        connection.execute("set search_path = public")
        connection.execute(TABLES)
        connection.execute("set search_path = leasehold, public")
        yield connection


@contextmanager
def worker(dsn: str, *options: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process; killed at the end if it still lives."""
    command = [sys.executable, "-m", "leasehold", "worker", "tests.survival.tasks:app", *options]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "LEASEHOLD_DSN": dsn, **env}, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def one(sql: Sql, query: str, *args: object) -> Any:
    """The only value of the only row."""
    found = sql.execute(query, args).fetchone()
    assert found is not None
    return next(iter(found.values()))


async def ready(sql: Sql, workers: int) -> None:
    """Wait until so many workers are there."""
    await auntil(lambda: one(sql, "select count(*) from workers where stopped_at is null") >= workers)
