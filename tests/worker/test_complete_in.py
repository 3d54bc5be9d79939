"""A task that calls `complete_in`: the job is a success if and only if its transaction was committed."""

from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, Cancel, FixedDelay, Job, JobFailed, NoRetry, Snooze, current_job
from tests.worker import process_tasks
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]

WAYS = ["commit", "rollback", "forget", "commit fails", "savepoint"]
NOT_COMMITTED = "complete_in was called, but its transaction was not committed"


@pytest.fixture(autouse=True)
def effects(sql: Sql) -> None:
    sql.execute("create table effects (job uuid, attempt integer)")


def effects_of(sql: Sql, job: Job[Any]) -> list[int]:
    """The attempts that have left their effect."""
    return [found["attempt"] for found in sql.execute("select attempt from effects where job = %s", [job.id])]


def insert(connection: psycopg.Connection[Any]) -> None:
    job = current_job()
    connection.execute("insert into leasehold.effects values (%s, %s)", [job.id, job.attempt])


def task_of(app: App, executor: str) -> Any:
    """Return a task that does it in the given way in its first attempt, and commits in the next."""
    if executor == "process":
        app.register(process_tasks.complete_somehow)
        return process_tasks.complete_somehow

    @app.task(kind="loop", lease=10, retry=FixedDelay(0.05))
    async def loop(dsn: str, way: str) -> None:
        process_tasks.complete_in_some_way(dsn, way)

    @app.task(kind="thread", lease=10, retry=FixedDelay(0.05))
    def thread(dsn: str, way: str) -> None:
        process_tasks.complete_in_some_way(dsn, way)

    return loop if executor == "loop" else thread


@pytest.mark.parametrize("executor", ["loop", "thread", "process"])
async def test_without_a_commit_the_attempt_has_failed_and_is_retried(
    app: App, sql: Sql, dsn: str, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_of(app, executor)
    jobs = dict(zip(WAYS, await app.aenqueue_many(task.intent(dsn, way) for way in WAYS), strict=True))
    async with working(app, slots=5):
        for job in jobs.values():
            await job.aresult(60)
    committed = jobs.pop("commit")
    assert (effects_of(sql, committed), attempts(sql, committed)) == ([1], [])
    for job in jobs.values():
        assert effects_of(sql, job) == [2]
        [failed] = attempts(sql, job)
        assert failed["outcome"] == "failed"
        assert NOT_COMMITTED in failed["error_message"]
    assert "refused" not in caplog.text


async def test_without_a_commit_and_without_retries_the_job_is_dead(app: App, sql: Sql, dsn: str) -> None:
    @app.task(kind="once", retry=NoRetry())
    async def once() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await current_job().acomplete_in(connection)
            await connection.rollback()

    async with working(app):
        job = await once.aenqueue()
        with pytest.raises(JobFailed, match=NOT_COMMITTED):
            await job.aresult(60)


@pytest.mark.parametrize(
    "error", [ValueError("too late"), Snooze(1), Cancel("too late")], ids=lambda e: type(e).__name__
)
async def test_what_a_task_raises_after_the_commit_changes_nothing(
    app: App, sql: Sql, dsn: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(kind="late", max_attempts=1)
    def late() -> str:
        with psycopg.connect(dsn) as connection:
            insert(connection)
            current_job().complete_in(connection, "kept")
        raise error

    async with working(app):
        job = await late.aenqueue()
        assert await job.aresult(60) == "kept"
    assert (effects_of(sql, job), attempts(sql, job), row(sql, job)["state"]) == ([1], [], "success")
    assert "refused" not in caplog.text
    assert ("the job is a success" in caplog.text) == isinstance(error, ValueError)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_transaction_that_outlives_its_task_decides(
    app: App, sql: Sql, dsn: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    leaked: list[psycopg.Connection[Any]] = []

    @app.task(kind="leaks", lease=60, retry=FixedDelay(0.05))
    def leaks() -> None:
        if current_job().attempt == 1:
            leaked.append(psycopg.connect(dsn))
            insert(leaked[0])
            current_job().complete_in(leaked[0])

    async with working(app):
        job = await leaks.aenqueue()
        await auntil(lambda: "its report waits" in caplog.text)
        assert row(sql, job)["state"] == "running"
        getattr(leaked[0], end)()
        await job.aresult(60)
    leaked[0].close()
    assert effects_of(sql, job) == ([1] if end == "commit" else [])
    assert [NOT_COMMITTED in one["error_message"] for one in attempts(sql, job)] == [True] * (end == "rollback")
    assert "refused" not in caplog.text


async def test_a_task_that_returns_none_may_complete_with_any_result(app: App, dsn: str) -> None:
    @app.task(kind="tells")
    def tells() -> None:
        with psycopg.connect(dsn) as connection:
            current_job().complete_in(connection, result={"charged": [1, 2.5, None]})

    async with working(app):
        job: Job[Any] = await tells.aenqueue()
        assert await job.aresult(60) == {"charged": [1, 2.5, None]}
