"""What a task says while it runs: progress, logs, and the completion of its own job; and what hooks see of it."""

import asyncio
import logging
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, JobFailed, LeaseLost, NoRetry, Snooze, current_job
from leasehold.context import MAX_LINES, JobContext
from leasehold.outcome import Outcome, Success
from leasehold.telemetry import AttemptFacts, Event
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]


async def test_progress_is_written_with_the_heartbeat(app: App, sql: Sql) -> None:
    go = asyncio.Event()

    @app.task(kind="long", lease=2)
    async def long() -> None:
        current_job().progress(0.4, "two of five")
        await go.wait()

    async with working(app):
        job = await long.aenqueue()
        await auntil(lambda: row(sql, job)["progress_note"] == "two of five")
        assert row(sql, job)["progress"] == pytest.approx(0.4)
        assert (await job.arefresh()).progress == pytest.approx(0.4)
        go.set()
        await job.aresult(60)


async def test_a_heartbeat_of_the_task_writes_progress_at_once(app: App, sql: Sql) -> None:
    go = asyncio.Event()

    @app.task(kind="long", lease=600)
    async def long() -> None:
        current_job().progress(0.9)
        current_job().heartbeat()
        await go.wait()

    async with working(app):
        job = await long.aenqueue()
        await auntil(lambda: row(sql, job)["progress"] == pytest.approx(0.9))
        go.set()
        await job.aresult(60)


async def test_progress_is_written_soon_however_long_the_lease_and_a_finished_job_has_all_of_it(
    app: App, sql: Sql
) -> None:
    go = asyncio.Event()

    @app.task(kind="long", lease=3600)
    async def long() -> None:
        for step in range(6):
            current_job().progress(step / 10, f"step {step}")
            await asyncio.sleep(0)
        await go.wait()

    @app.task(kind="silent")
    async def silent() -> None:
        pass

    async with working(app):
        job = await long.aenqueue()
        await auntil(lambda: row(sql, job)["progress_note"] == "step 5")
        assert row(sql, job)["progress"] == pytest.approx(0.5)
        go.set()
        await job.aresult(60)
        other = await silent.aenqueue()
        await other.aresult(60)
    assert row(sql, job)["progress"] == 1
    assert row(sql, other)["progress"] is None


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
async def test_progress_that_makes_no_sense_fails_the_task_that_claims_it(app: App, wrong: float) -> None:
    @app.task(kind="odd", retry=NoRetry())
    async def odd() -> None:
        current_job().progress(wrong)

    async with working(app):
        with pytest.raises(JobFailed, match="between 0 and 1"):
            await (await odd.aenqueue()).aresult(60)


def logs(sql: Sql, job_id: object) -> list[Any]:
    found = sql.execute("select lines from logs(%s)", [job_id]).fetchall()
    return [line for attempt in found for line in attempt["lines"]]


async def test_what_a_job_logs_is_kept_with_its_attempt_whatever_logger_it_went_to(app: App, sql: Sql) -> None:
    @app.task(kind="loop")
    async def loop() -> None:
        current_job().log.info("from the job's own logger")
        logging.getLogger("some.library").warning("from %s", "elsewhere")

    @app.task(kind="thread")
    def thread() -> None:
        logging.getLogger("some.library").error("from a thread")

    async with working(app):
        first, second = await loop.aenqueue(), await thread.aenqueue()
        await first.aresult(60)
        await second.aresult(60)
    assert [line[1:] for line in logs(sql, first.id)] == [
        ["INFO", "from the job's own logger"],
        ["WARNING", "from elsewhere"],
    ]
    assert [line[1:] for line in logs(sql, second.id)] == [["ERROR", "from a thread"]]


async def test_what_a_worker_logs_about_itself_is_no_line_of_the_job_after_which_it_does(
    app: App, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @app.task(kind="last")
    async def last() -> None:
        current_job().log.info("mine")

    async with working(app, max_jobs=1) as worker:
        job = await last.aenqueue()
        await job.aresult(60)
    assert worker.retired
    jobs: dict[str, Any] = {record.getMessage(): vars(record).get("leasehold_job") for record in caplog.records}
    assert jobs["mine"]["job_id"] == str(job.id)
    about_itself = [text for text in jobs if text.startswith(f"worker {worker.id} ")]
    assert any(" retires: " in text for text in about_itself)
    assert [jobs[text] for text in about_itself] == [None] * len(about_itself)
    assert [line[2] for line in logs(sql, job.id)] == ["mine"]


async def test_an_attempt_that_is_thrown_away_at_the_end_of_the_grace_period_is_logged_once(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    @app.task(kind="endless")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with working(app, slots=1, prefetch=1, grace=0.2):
        job, other = await endless.aenqueue(), await endless.aenqueue()
        await begun.wait()
    records = [record for record in caplog.records if "thrown away" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.WARNING]
    assert f"endless {job.id}: attempt 1 is thrown away after " in records[0].getMessage()
    assert (await job.arefresh()).state == (await other.arefresh()).state == "queued"


async def test_logs_of_a_running_job_can_be_read_and_are_bounded(app: App, sql: Sql) -> None:
    go = asyncio.Event()

    @app.task(kind="talks", lease=2)
    async def talks() -> None:
        for n in range(MAX_LINES * 3):
            current_job().log.info("line %d with a NUL \0 in it", n)
        await go.wait()

    async with working(app):
        job = await talks.aenqueue()
        await auntil(lambda: logs(sql, job.id))
        go.set()
        await job.aresult(60)
    assert len(logs(sql, job.id)) == MAX_LINES + 1
    assert "not kept" in logs(sql, job.id)[-1][2]


async def test_complete_in_commits_the_job_and_its_effect_together(app: App, sql: Sql, dsn: str) -> None:
    sql.execute("create table effects (job uuid)")

    @app.task(kind="both")
    async def both() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute("insert into leasehold.effects values (%s)", [current_job().id])
            await current_job().acomplete_in(connection, None)

    @app.task(kind="thread")
    def thread() -> str:
        with psycopg.connect(dsn) as connection:
            connection.execute("insert into leasehold.effects values (%s)", [current_job().id])
            current_job().complete_in(connection, "stored in the transaction")
        return "returned afterwards"

    async with working(app):
        first, second = await both.aenqueue(), await thread.aenqueue()
        await first.aresult(60)
        assert await second.aresult(60) == "stored in the transaction"
    assert sql.execute("select count(*) as n from effects").fetchone() == {"n": 2}
    assert attempts(sql, first) == attempts(sql, second) == []


async def test_a_value_that_is_returned_after_complete_in_is_missed_aloud_and_once(
    app: App, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(kind="bare loop")
    async def loop() -> str:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await current_job().acomplete_in(connection)
        return "lost"

    @app.task(kind="bare thread")
    def thread() -> str:
        with psycopg.connect(dsn) as connection:
            current_job().complete_in(connection)
        return "lost"

    @app.task(kind="with its result")
    def told() -> str:
        with psycopg.connect(dsn) as connection:
            current_job().complete_in(connection, result="kept")
        return "kept"

    async with working(app):
        for task in (loop, thread, loop, thread):
            assert await (await task.aenqueue()).aresult(60) is None
        assert await (await told.aenqueue()).aresult(60) == "kept"
    found = [record.getMessage() for record in caplog.records if "after complete_in" in record.getMessage()]
    assert sorted(text.split(" returned")[0] for text in found) == ["bare loop", "bare thread"]
    assert "complete_in(connection, result=…)" in found[0]


async def test_a_rollback_after_complete_in_leaves_neither(app: App, sql: Sql, dsn: str) -> None:
    sql.execute("create table effects (job uuid)")

    @app.task(kind="neither", retry=NoRetry())
    async def neither() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute("insert into leasehold.effects values (%s)", [current_job().id])
            await current_job().acomplete_in(connection)
            raise RuntimeError("changed my mind")

    async with working(app):
        job = await neither.aenqueue()
        with pytest.raises(JobFailed, match="changed my mind"):
            await job.aresult(60)
    assert sql.execute("select count(*) as n from effects").fetchone() == {"n": 0}


async def test_complete_in_is_fenced(app: App, sql: Sql, dsn: str) -> None:
    lost: list[Exception] = []

    @app.task(kind="late", lease=30)
    async def late() -> int:
        if current_job().attempt == 1:
            sql.execute("update jobs set lease_expires_at = now() - interval '1 s' where id = %s", [current_job().id])
            sql.execute("select sweep()")
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                try:
                    await current_job().acomplete_in(connection)
                except LeaseLost as error:
                    lost.append(error)
                    raise
        return current_job().attempt

    async with working(app):
        job = await late.aenqueue()
        assert await job.aresult(60) == 2
    assert len(lost) == 1


async def test_a_job_locked_by_its_own_transaction_costs_no_other_job_its_lease(app: App, sql: Sql, dsn: str) -> None:
    """Heartbeats wait for no lock: here one task sits in its transaction after complete_in for several renewals."""

    @app.task(kind="holder", lease=12)
    async def holder() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await current_job().acomplete_in(connection)
            await asyncio.sleep(5)

    @app.task(kind="neighbour", lease=2)
    async def neighbour() -> int:
        await asyncio.sleep(4)
        return current_job().attempt

    async with working(app):
        held, other = await holder.aenqueue(), await neighbour.aenqueue()
        assert await other.aresult(60) == 1
        await held.aresult(60)
    assert attempts(sql, held) == attempts(sql, other) == []


async def test_hooks_see_each_attempt_and_before_may_hold_it_back(app: App, sql: Sql) -> None:
    seen: list[str] = []

    @app.task(kind="hooked", max_attempts=1)
    async def hooked() -> None:
        seen.append("run")
        raise ValueError("the task's own")

    @app.before
    def hold_back(job: JobContext) -> None:
        seen.append(f"before {job.attempt}")
        if job.attempt == 1:
            raise Snooze(0.01)

    @app.on_error
    async def note(job: JobContext, error: Exception) -> None:
        seen.append(f"error {type(error).__name__}")
        raise RuntimeError("a broken hook breaks nothing")

    @app.after
    def end(job: JobContext, outcome: Outcome) -> None:
        seen.append(f"after {type(outcome).__name__}")

    async with working(app):
        job = await hooked.aenqueue()
        with pytest.raises(JobFailed, match="the task's own"):
            await job.aresult(60)
    assert seen == [
        "before 1", "after Snoozed", "before 2", "run", "error ValueError", "after Failed",
    ]  # fmt: skip


async def test_events_report_what_happens(app: App) -> None:
    events: list[Event] = []
    app.telemetry.subscribe(events.append)
    app.telemetry.subscribe(lambda _event: 1 / 0)  # a broken subscriber breaks nothing

    @app.task(kind="told")
    async def told() -> None: ...

    async with working(app):
        await (await told.aenqueue()).aresult(60)
        await auntil(lambda: any(event.name == "jobs.reported" for event in events))
    names = [event.name for event in events]
    assert names.index("jobs.claimed") < names.index("job.started") < names.index("job.finished")
    finished = next(event for event in events if event.name == "job.finished")
    assert isinstance(finished.fields["outcome"], Success)
    assert isinstance(finished.fields["job"], AttemptFacts)  # and not what the worker works with
    assert (finished.fields["job"].kind, finished.fields["job"].attempt) == ("told", 1)
    assert finished.fields["seconds"] >= 0
