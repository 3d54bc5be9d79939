"""A running job stays its worker's own, and a worker that lost one writes nothing more."""

import asyncio
import ctypes
import logging
import sys
import time
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, Intent, LeaseLost, current_job
from leasehold._facts import USUAL_LEASE
from tests.timing import bound
from tests.worker import process_tasks
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]


async def test_a_job_longer_than_its_lease_runs_once(app: App, sql: Sql) -> None:
    @app.task(kind="long", lease=2)
    async def long() -> int:
        await asyncio.sleep(5)
        return current_job().attempt

    async with working(app), working(app):
        job = await long.aenqueue()
        assert await job.aresult(60) == 1
    assert attempts(sql, job) == []


async def test_a_task_that_blocks_the_event_loop_keeps_its_lease(app: App, sql: Sql) -> None:
    @app.task(kind="block", lease=2)
    async def block() -> int:
        time.sleep(5)  # noqa: ASYNC251 (the mistake that must not cost the lease)
        return current_job().attempt

    async with working(app):
        job = await block.aenqueue()
        assert await job.aresult(60) == 1
    assert attempts(sql, job) == []


async def test_a_lease_whose_row_was_locked_is_renewed_as_soon_as_it_is_free(app: App, dsn: str, sql: Sql) -> None:
    """Not at its next turn, two thirds of the lease after the claim."""
    done = asyncio.Event()

    @app.task(kind="locked", lease=30)
    async def locked() -> int:
        await done.wait()
        return current_job().attempt

    async with working(app):
        job = await locked.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        claimed = row(sql, job)
        with psycopg.connect(dsn) as writer:
            writer.execute("select from leasehold.jobs where id = %s for update", [job.id])
            tried = """select from pg_stat_activity where datname = current_database() and state = 'idle'
                and application_name like 'leasehold keeper %%' and query like '%%renew%%' and query_start > %s"""
            await auntil(
                lambda: sql.execute(tried, [claimed["claimed_at"]]).rowcount, "its turn to be renewed has passed"
            )
            assert row(sql, job)["lease_expires_at"] == claimed["lease_expires_at"]
        await auntil(lambda: row(sql, job)["lease_expires_at"] > claimed["lease_expires_at"])
        renewed = row(sql, job)["lease_expires_at"] - claimed["lease_expires_at"]
        assert renewed.total_seconds() < 30 * 2 / 3
        done.set()
        assert await job.aresult(60) == 1


async def test_the_lease_of_a_kind_is_what_its_task_declares(app: App, sql: Sql) -> None:
    @app.task(kind="declared", lease=7.5)
    async def declared() -> None: ...

    @app.task(kind="usual")
    async def usual() -> None: ...

    async with working(app):
        assert sql.execute("select lease_seconds('declared') as s").fetchone() == {"s": 7.5}
        assert sql.execute("select lease_seconds('usual') as s").fetchone() == {"s": USUAL_LEASE}


async def test_a_release_that_shortens_a_lease_takes_nothing_from_jobs_that_run(app: App, sql: Sql) -> None:
    @app.task(kind="shortened", lease=6)
    async def shortened() -> int:
        await asyncio.sleep(5)  # renewed after two and four seconds
        return current_job().attempt

    async with working(app):
        job = await shortened.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        sql.execute("select declare_kinds(array['shortened'], array[0.5])")
        assert await job.aresult(60) == 1
    assert attempts(sql, job) == []


async def test_a_task_that_stops_the_clock_of_python_keeps_its_lease(app: App, sql: Sql) -> None:
    """As libraries for tests do, which replace the function in every module that has it by name."""

    def holders(function: object) -> list[tuple[Any, str]]:
        modules = [module for module in list(sys.modules.values()) if getattr(module, "__name__", "") != "threading"]
        return [(m, name) for m in modules for name, value in list(vars(m).items()) if value is function]

    @app.task(kind="freezes", lease=2)
    def freezes() -> int:
        real, now = time.monotonic, time.monotonic()
        frozen = lambda: now  # noqa: E731
        replaced = holders(real)
        for module, name in replaced:
            setattr(module, name, frozen)
        try:
            time.sleep(5)
        finally:
            for module, name in replaced:
                setattr(module, name, real)
        return current_job().attempt

    async with working(app):
        job = await freezes.aenqueue()
        assert await job.aresult(60) == 1
    assert attempts(sql, job) == []


async def test_a_cancelled_job_stops_within_a_heartbeat_and_writes_nothing(app: App, sql: Sql) -> None:
    ended = asyncio.Event()

    @app.task(kind="endless", lease=2)
    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with working(app):
        job = await endless.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        assert await job.acancel("not needed any more")
        before = row(sql, job)
        await asyncio.wait_for(ended.wait(), bound(2))
    assert row(sql, job) == before
    assert before["reason_detail"] == "not needed any more"


async def test_a_thread_that_lost_its_lease_gets_an_exception_at_its_checkpoint(app: App, sql: Sql) -> None:
    raised: list[Exception] = []

    @app.task(kind="thread", lease=2)
    def thread() -> None:
        try:
            while True:
                current_job().checkpoint()
                time.sleep(0.01)
        except LeaseLost as error:
            raised.append(error)
            raise

    async with working(app):
        job = await thread.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        await job.acancel()
        before = row(sql, job)
        await auntil(lambda: raised, within=bound(3))
    assert row(sql, job) == before


async def test_a_job_that_another_worker_took_over_is_not_written_by_the_first(app: App, sql: Sql) -> None:
    """The lease is taken away in the database; the first worker finds out and its result is refused."""
    release = asyncio.Event()
    runs: list[int] = []

    @app.task(kind="taken", lease=20)
    async def taken() -> int:
        attempt = current_job().attempt
        runs.append(attempt)
        if attempt == 1:
            await release.wait()
        return attempt

    async with working(app) as worker:
        job = await taken.aenqueue()
        await auntil(lambda: runs == [1])
        sql.execute("update jobs set lease_expires_at = now() - interval '1 s' where id = %s", [job.id])
        await auntil(lambda: 2 in runs)
        assert await job.aresult(60) == 2
        before = row(sql, job)
        release.set()
        await auntil(lambda: worker.snapshot().running == 0)  # and its report is refused before the worker has stopped
    assert row(sql, job) == before
    assert [one["outcome"] for one in attempts(sql, job)] == ["lease_expired"]


@pytest.mark.parametrize("rounds", [5])
async def test_losing_every_connection_again_and_again_loses_no_job(app: App, sql: Sql, rounds: int) -> None:
    done: list[int] = []

    @app.task(kind="count", lease=5)
    async def count(n: int) -> None:
        await asyncio.sleep(0.01)
        done.append(n)

    async with working(app, slots=20):
        jobs = await app.aenqueue_many(count.intent(n) for n in range(500))
        for part in range(1, rounds + 1):
            await auntil(lambda part=part: len(done) >= part * 60)
            sql.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and application_name like 'leasehold %'"
            )
        finished = "select count(*) as n from jobs where state = 'success'"
        await auntil(lambda: sql.execute(finished).fetchone() == {"n": len(jobs)})
    assert set(done) == set(range(500))


@pytest.mark.parametrize("executor", ["loop", "thread", "process"])
async def test_a_cancelled_task_is_stopped_long_before_its_next_heartbeat(app: App, sql: Sql, executor: str) -> None:
    app.register(process_tasks.patient)
    ended: list[str] = []

    @app.task(kind="loop", lease=600)
    async def on_loop() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("loop")

    @app.task(kind="thread", lease=600)
    def in_thread() -> None:
        try:
            while True:
                current_job().checkpoint()
                time.sleep(0.05)
        finally:
            ended.append("thread")

    kind = {"loop": "loop", "thread": "thread", "process": "p.patient"}[executor]
    async with working(app, slots=1) as worker:
        [job] = await app.aenqueue_many([Intent(kind=kind, payload="{}")])
        await auntil(lambda: row(sql, job)["state"] == "running")
        await auntil(lambda: worker.snapshot().running == 1)
        sql.execute("select cancel(%s, 'not wanted')", [job.id])
        await auntil(lambda: worker.snapshot().running == 0)
    assert (row(sql, job)["reason"], ended) == ("cancelled", [] if executor == "process" else [executor])


async def test_a_prefetched_job_whose_lease_has_run_out_meanwhile_is_given_back_and_not_started(
    app: App, sql: Sql
) -> None:
    """As after a process that stood still for longer than its leases: the keeper may know it later than the slot."""
    go = asyncio.Event()
    started: list[tuple[int, int]] = []

    @app.task(kind="work", lease=60)
    async def work(n: int) -> None:
        started.append((n, current_job().attempt))
        await go.wait()

    jobs = await app.aenqueue_many(work.intent(n) for n in range(2))
    async with working(app, slots=1, prefetch=1) as worker:
        await auntil(lambda: {row(sql, job)["state"] for job in jobs} == {"running"})
        await auntil(lambda: started)
        keeper = worker._loops.keeper  # type: ignore[union-attr]
        for batch in keeper._batches:
            batch.count_from(batch.renewed - 1000)
        go.set()
        await auntil(lambda: len(started) == 2)
        await auntil(lambda: {row(sql, job)["state"] for job in jobs} == {"success"})
    assert started[1][1] == 2  # claimed again, under a new lease
    assert {row(sql, job)["retry_count"] for job in jobs} == {0}


async def test_a_task_that_holds_the_interpreter_loses_its_lease_and_one_line_says_why(
    app: App, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    @app.task(kind="greedy", lease=2)
    def greedy() -> int:
        if current_job().attempt == 1:
            ctypes.PyDLL(None).sleep(5)  # PyDLL: unlike CDLL it keeps the interpreter's lock
        return current_job().attempt

    async with working(app):
        job = await greedy.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "success")
    assert row(sql, job)["attempt"] > 1
    said = [line for line in caplog.messages if "stood still for" in line]
    assert len(said) == 1
    assert "jobs of greedy" in said[0]
    assert "executor='process'" in said[0]
    assert any("lease lost, attempt 1" in line or "attempt 1 was refused" in line for line in caplog.messages)
