"""A job whose row raises, or is locked by a session that sleeps, stops no other job of its worker."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App
from tests.timing import bound
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]

TRIGGER = """
create function poisoned() returns trigger language plpgsql as $$
begin
  if new.payload ->> 'at' = new.state::text then
    raise exception 'a trigger of the user''s';
  end if;
  return new;
end $$;
create trigger poisoned before update on jobs for each row execute function poisoned()
"""


async def test_a_job_that_cannot_be_claimed_is_set_aside_and_all_others_are_done(app: App, sql: Sql) -> None:
    sql.execute(TRIGGER)

    @app.task(kind="any")
    async def any_task(at: str) -> str:
        return at

    bad = [await any_task.using(priority=1).aenqueue(at="running") for _ in range(2)]
    good = [await any_task.aenqueue(at="the end") for _ in range(20)]
    async with working(app):
        assert [await job.aresult(60) for job in good] == ["the end"] * 20
        await auntil(lambda: all(row(sql, job)["state"] == "dead" for job in bad))
        assert await (await any_task.aenqueue(at="later")).aresult(60) == "later"
    assert {row(sql, job)["reason"] for job in bad} == {"set_aside"}


async def test_a_report_that_cannot_be_written_fails_its_own_job_only(app: App, sql: Sql) -> None:
    sql.execute(TRIGGER)

    @app.task(kind="any")
    async def any_task(at: str) -> str:
        return at

    jobs = [await any_task.using(max_attempts=1).aenqueue(at="success" if n == 5 else "x") for n in range(20)]
    async with working(app):
        for n, job in enumerate(jobs):
            if n != 5:
                assert await job.aresult(60) == "x"
        await auntil(lambda: row(sql, jobs[5])["state"] == "dead")
    (attempt,) = attempts(sql, jobs[5])
    assert attempt["error_class"] == "leasehold.ReportRefused"
    assert "a trigger of the user" in attempt["error_message"]


async def test_a_session_that_keeps_one_running_job_locked_stops_no_other_report(app: App, dsn: str, sql: Sql) -> None:
    """begin; select cancel(…) and nothing more: that job's own report waits, and counts when the session rolls back."""
    go = asyncio.Event()

    @app.task(kind="held", lease=60)
    async def held() -> str:
        await go.wait()
        return "done"

    @app.task(kind="other", lease=60)
    async def other(n: int) -> int:
        return n

    async with working(app):
        job = await held.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        with psycopg.connect(dsn) as sleeper:
            sleeper.execute("select leasehold.cancel(%s)", [job.id])
            go.set()
            others = [await other.aenqueue(n=n) for n in range(50)]
            assert [await one.aresult(60) for one in others] == list(range(50))
            assert row(sql, job)["state"] == "running"
            sleeper.rollback()
        assert await job.aresult(60) == "done"
    assert attempts(sql, job) == []


async def test_a_session_that_keeps_the_rows_of_the_workers_locked_stops_nothing(app: App, dsn: str, sql: Sql) -> None:
    @app.task(kind="any", lease=2)
    async def any_task(seconds: float = 0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    with psycopg.connect(dsn) as sleeper:
        async with working(app, slots=5), asyncio.timeout(bound(60)):
            running = await any_task.aenqueue(seconds=7)
            await auntil(lambda: row(sql, running)["state"] == "running")
            assert len(sleeper.execute("select from leasehold.workers for update").fetchall()) == 1
            jobs = [await any_task.aenqueue() for _ in range(20)]
            assert [await job.aresult(30) for job in jobs] == ["done"] * 20
            async with working(app, slots=5):
                sleeper.execute("select from leasehold.workers for update")
                assert await (await any_task.aenqueue()).aresult(30) == "done"
            assert await running.aresult(30) == "done"
        sleeper.rollback()
    assert {row(sql, job)["attempt"] for job in (running, *jobs)} == {1}


@pytest.mark.parametrize("locked", ["kind", "schedule"])
async def test_a_session_that_keeps_a_declaration_locked_keeps_no_worker_from_its_start(
    app: App, dsn: str, sql: Sql, locked: str
) -> None:
    tasks = '[{"kind": "held", "lease_seconds": 33, "queue": "q", "priority": 0, "max_attempts": 5}]'
    schedules = '[{"key": "tick", "kind": "held", "every": "1 hour"}]'
    sql.execute("select declare_tasks(%s), schedule_sync(%s)", [tasks, schedules])

    @app.schedule(key="tick", every=timedelta(minutes=30))
    @app.task(kind="held", lease=20)
    async def held() -> None: ...

    @app.task(kind="free", lease=21)
    async def free() -> str:
        return "done"

    stored = """select lease_seconds, (select every = '30 min' from schedules where key = 'tick') as tick
        from kinds where kind = any(%s) order by kind"""
    with psycopg.connect(dsn) as sleeper:
        table, name = ("kinds", "kind = 'held'") if locked == "kind" else ("schedules", "key = 'tick'")
        sleeper.execute(f"select from leasehold.{table} where {name} for update")
        async with working(app):
            assert await (await free.aenqueue()).aresult(bound(30)) == "done"
            await auntil(lambda: sql.execute(stored, [["free"]]).fetchone(), "what is not locked is declared")
            found = sql.execute(stored, [["held"]]).fetchone()
            assert found == {"lease_seconds": 33 if locked == "kind" else 20, "tick": False}
            sleeper.rollback()
            wanted = {"lease_seconds": 20, "tick": True}
            await auntil(lambda: sql.execute(stored, [["held"]]).fetchone() == wanted, "the rest is declared")
