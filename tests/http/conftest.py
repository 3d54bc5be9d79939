"""Real servers on real databases. A module's tests share one of each; those that break things have their own."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from tests.http.running import Served, serving

Sql = psycopg.Connection[dict[str, Any]]
MakeToken = Callable[..., str]


@pytest.fixture(scope="module")
def home_dsn(admin: Any, migrated: str) -> Iterator[str]:
    """The database of a module's tests."""
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)


@pytest.fixture(scope="module")
def served(home_dsn: str) -> Iterator[Served]:
    """The server of a module's tests."""
    with serving(home_dsn) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    """A client of that server."""
    with httpx.Client(base_url=served.url, timeout=90) as client:
        yield client


@pytest.fixture
def sql(home_dsn: str) -> Iterator[Sql]:
    """A superuser's connection to that database."""
    with connect(home_dsn) as connection:
        yield connection


def connect(dsn: str) -> Sql:
    return psycopg.connect(dsn, autocommit=True, row_factory=dict_row, options="-c search_path=leasehold")


def key() -> str:
    """A key that was never used."""
    return f"req_{uuid4()}"


def intent(**fields: Any) -> dict[str, Any]:
    """The request of the contract, with a new key."""
    return {
        "jobType": "SEND_EMAIL",
        "payload": {"to": "user@example.com", "subject": "Welcome"},
        "idempotencyKey": key(),
        **fields,
    }


def submitted(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A job that was just submitted."""
    answer = http.post("/jobs", json=intent(**fields))
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def everything(sql: Sql) -> list[Any]:
    """Every row of every table that a request could touch, with its version: equal means that nothing was written."""
    tables = ("jobs", "attempts", "job_logs", "workers", "kinds", "limits", "tokens")
    return [
        tuple(row.values())
        for table in tables
        for row in sql.execute(f"select '{table}', xmin::text, t::text from {table} t order by t::text").fetchall()
    ]


def run(sql: Sql, job_id: str, end: str) -> None:
    """Bring a job to a state, by way of a worker with telling names. The job must be the only one of its queue."""
    sql.execute("select start_worker('secret-worker')")
    claimed = sql.execute(
        "select id, attempt from claim('secret-worker', queues => array[(select queue from jobs where id = %s)])",
        [job_id],
    ).fetchone()
    assert claimed is not None, "the job is not to be claimed"
    assert claimed["id"] == UUID(job_id)
    error = '{"class": "SecretError", "message": "secret message", "traceback": "secret traceback"}'
    statements = {
        "running": "select heartbeat('secret-worker', array[%s::uuid], array[%s], null, '{0.5}', '{half}')",
        "success": "select complete('secret-worker', array[%s::uuid], array[%s], array['{\"sent\": 1.10}'::jsonb])",
        "retry": f"select fail('secret-worker', %s, %s, error => '{error}')",
        "dead": f"select fail('secret-worker', %s, %s, error => '{error}', fatal => true)",
    }
    sql.execute(statements[end], [job_id, claimed["attempt"]])
