"""What a DBA sets for a role or a database does not reach our own connections."""

from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, current_job
from leasehold.db.call import Call
from leasehold.db.connections.dial import PINNED
from leasehold.db.database import Database
from tests.worker.conftest import attempts, idle, working

Sql = psycopg.Connection[dict[str, Any]]

ODD = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_deferrable": "on",
    "client_min_messages": "error",
    "bytea_output": "escape",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "gin_fuzzy_search_limit": "1",
    "client_encoding": "latin1",
}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_worker_works_under_any_setting_of_its_database(dsn: str, sql: Sql, isolation: str) -> None:
    for name, value in {**ODD, "default_transaction_isolation": isolation}.items():
        sql.execute(f"alter database {sql.info.dbname} set {name} = '{value}'")
    async with App(dsn) as app:

        @app.task(kind="work", queue="paused")
        async def work(n: int) -> str | None:
            current_job().progress(0.5, "half — of it")
            current_job().log.info("a line — of it")
            return "a result — of it" if n % 2 else None

        @app.schedule("*/5 * * * *", key="often")
        @app.task(kind="often")
        async def often() -> None: ...

        sql.execute("select pause('paused')")
        sql.execute("select set_limit('queue', 'paused', 2)")
        async with working(app, slots=5) as worker:
            jobs = await app.aenqueue_many(work.intent(n) for n in range(20))
            await idle(sql, worker)
            assert worker.finished == 0
            sql.execute("select resume('paused')")
            assert {await job.aresult(60) for job in jobs} == {None, "a result — of it"}
            status = await jobs[0].arefresh()
            assert status.created_at.tzinfo is not None
            await auntil(lambda: worker.snapshot().state == "working")
    assert [attempt for job in jobs for attempt in attempts(sql, job)] == []


async def test_our_connections_are_pinned_and_yours_are_left_alone(dsn: str, sql: Sql) -> None:
    for name, value in ODD.items():
        sql.execute(f"alter database {sql.info.dbname} set {name} = '{value}'")
    database = Database(dsn + "&options=-c%20search_path%3Dpublic", schema="leasehold")
    names = [*PINNED, "search_path"]
    query = "select " + ", ".join(f"current_setting('{name}')" for name in names)
    [values] = database.run(Call(query, (), list))
    with psycopg.connect(dsn) as yours:
        [others] = yours.execute(query).fetchall()
    assert database.run(Call("show client_encoding", (), list)) == [("UTF8",)]
    found = dict(zip(names, values, strict=True))
    assert found.pop("search_path") == "public"  # what the DSN says of other settings stays
    assert found.pop("DateStyle").startswith("ISO")
    assert found.items() <= PINNED.items()
    assert dict(zip(names, others, strict=True))["array_nulls"] == "off"
    database.close()
