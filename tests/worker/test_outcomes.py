"""What a task returns or raises, and what becomes of its job."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, Cancel, FixedDelay, JobCancelled, JobFailed, NoRetry, Retry, Snooze, current_job
from leasehold.retry import USUAL_ATTEMPTS
from tests.worker import process_tasks
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]


async def test_what_a_task_returns_is_the_result_of_its_job(app: App, sql: Sql) -> None:
    @app.task(kind="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(kind="join")
    def join(words: list[str]) -> str:
        return " ".join(words)

    async with working(app):
        sum_of_both = await add.aenqueue(2, b=3)
        sentence = await join.aenqueue(["a", "plain", "def"])
        assert await sum_of_both.aresult(60) == 5
        assert await sentence.aresult(60) == "a plain def"
    done = row(sql, sum_of_both)
    assert (done["state"], done["attempt"], done["retry_count"]) == ("success", 1, 0)
    assert done["lease_owner"] is None
    assert attempts(sql, sum_of_both) == []


async def test_a_failing_job_is_retried_until_its_budget_is_spent(app: App, sql: Sql) -> None:
    @app.task(kind="boom", max_attempts=3, retry=FixedDelay(0.05))
    async def boom() -> None:
        raise ValueError("no luck")

    async with working(app):
        job = await boom.aenqueue()
        with pytest.raises(JobFailed, match="exhausted: no luck"):
            await job.aresult(60)
    dead = row(sql, job)
    assert (dead["state"], dead["reason"], dead["attempt"], dead["retry_count"]) == ("dead", "exhausted", 3, 3)
    history = attempts(sql, job)
    assert [one["attempt"] for one in history] == [1, 2, 3]
    assert {(one["outcome"], one["error_class"], one["error_message"]) for one in history} == {
        ("failed", "ValueError", "no luck")
    }
    assert 'raise ValueError("no luck")' in history[0]["error_traceback"]
    assert "leasehold/worker" not in history[0]["error_traceback"]


async def test_the_default_policy_backs_off_within_its_bounds(app: App, sql: Sql) -> None:
    @app.task(kind="boom")
    async def boom() -> None:
        raise ValueError

    async with working(app):
        job = await boom.aenqueue()
        # Read at once: a few seconds later it fails again.
        failed_once = "select * from jobs where id = %s and retry_count = 1"
        waiting = await auntil(lambda: sql.execute(failed_once, [job.id]).fetchone())
    assert timedelta(seconds=3) <= waiting["run_at"] - attempts(sql, job)[0]["ended_at"] <= timedelta(seconds=4)
    assert waiting["max_attempts"] == USUAL_ATTEMPTS


async def test_retry_says_when(app: App, sql: Sql) -> None:
    @app.task(kind="later")
    async def later() -> None:
        raise Retry(after=3600, reason="the other side sleeps")

    async with working(app):
        job = await later.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "retry")
    waiting = row(sql, job)
    assert waiting["retry_count"] == 1
    assert timedelta(minutes=59) < waiting["run_at"] - waiting["updated_at"] <= timedelta(hours=1)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_snooze_is_no_failure(app: App, sql: Sql, how: str) -> None:
    @app.task(kind="nap", max_attempts=1)
    async def nap() -> object:
        if current_job().attempt == 1:
            if how == "raised":
                raise Snooze(after=0.05)
            return Snooze(after=0.05)
        return "rested"

    async with working(app):
        job = await nap.aenqueue()
        assert await job.aresult(60) == "rested"
    assert (row(sql, job)["attempt"], row(sql, job)["retry_count"]) == (2, 0)
    assert [one["outcome"] for one in attempts(sql, job)] == ["snoozed"]


async def test_a_task_can_cancel_its_own_job(app: App, sql: Sql) -> None:
    @app.task(kind="stop")
    def stop() -> None:
        raise Cancel("the order was withdrawn")

    async with working(app):
        job = await stop.aenqueue()
        with pytest.raises(JobCancelled, match="the order was withdrawn"):
            await job.aresult(60)
    assert row(sql, job)["retry_count"] == 0


async def test_a_policy_that_gives_up_makes_the_failure_fatal(app: App, sql: Sql) -> None:
    @app.task(kind="fatal", retry=NoRetry())
    async def fatal() -> None:
        raise KeyError("gone")

    async with working(app):
        job = await fatal.aenqueue()
        with pytest.raises(JobFailed):
            await job.aresult(60)
    assert (row(sql, job)["reason"], row(sql, job)["attempt"]) == ("fatal", 1)


async def test_a_broken_policy_costs_no_retry(app: App, sql: Sql) -> None:
    def broken(failures: int, error: BaseException) -> float:
        raise RuntimeError("the policy itself")

    @app.task(kind="boom", retry=broken)
    async def boom() -> None:
        raise ValueError("the task")

    async with working(app):
        job = await boom.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "retry")
    assert "the task" in attempts(sql, job)[0]["error_traceback"]


async def test_an_attempt_ends_at_its_timeout(app: App, sql: Sql) -> None:
    @app.task(kind="slow", timeout=0.1, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(30)

    async with working(app):
        job = await slow.aenqueue()
        with pytest.raises(JobFailed, match=r"longer than its timeout of 0\.1 s"):
            await job.aresult(60)
    assert attempts(sql, job)[0]["error_class"] == "leasehold.worker.executors.TimedOut"


async def test_a_thread_learns_of_its_timeout_at_a_checkpoint(app: App, sql: Sql) -> None:
    @app.task(kind="slow", timeout=0.1, max_attempts=1)
    def slow() -> None:
        for _ in range(1000):
            current_job().checkpoint()
            asyncio.run(asyncio.sleep(0.01))

    async with working(app):
        job = await slow.aenqueue()
        with pytest.raises(JobFailed, match="timeout"):
            await job.aresult(60)


@pytest.mark.parametrize(
    ("result", "words"),
    [(object(), "odd: the result of type object"), ("x" * 2**20, "1,048,578 bytes of JSON, the limit is 1,048,576")],
    ids=["no JSON", "too large"],
)
@pytest.mark.parametrize("way", ["returned", "complete_in"])
async def test_a_result_that_cannot_be_stored_sets_its_job_aside(
    app: App, sql: Sql, dsn: str, result: object, words: str, way: str
) -> None:
    @app.task(kind="odd")
    async def odd() -> Any:
        if way == "complete_in":
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await current_job().acomplete_in(connection, result)
        return result

    async with working(app):
        job = await odd.aenqueue()
        with pytest.raises(JobFailed, match=r"the job is set aside: mend the task"):
            await job.aresult(60)
    assert (row(sql, job)["reason"], row(sql, job)["attempt"]) == ("fatal", 1)
    assert words in attempts(sql, job)[0]["error_message"]


@pytest.mark.parametrize("executor", ["loop", "process"])
async def test_arguments_that_no_longer_fit_are_set_aside_for_a_person(app: App, sql: Sql, executor: str) -> None:
    app.register(process_tasks.strict)

    @app.task(kind="strict")
    async def strict(n: int) -> int:
        return n

    kind = "strict" if executor == "loop" else "p.strict"
    async with working(app):
        sql.execute("select enqueue(%s, %s)", [kind, '{"n": 1, "colour": "red"}'])
        dead = await auntil(lambda: sql.execute("select * from jobs where state = 'dead'").fetchone())
        assert (dead["reason"], dead["attempt"], dead["max_attempts"]) == ("fatal", 1, USUAL_ATTEMPTS)
        assert "set aside, its arguments do not fit the task" in dead["reason_detail"]
        assert "unknown argument 'colour'" in dead["reason_detail"]
        # A person decides: here the job is changed, and has its whole budget again.
        sql.execute("update jobs set payload = payload - 'colour' where state = 'dead'")
        sql.execute("select retry(%s)", [dead["id"]])
        done = await auntil(lambda: sql.execute("select * from jobs where state = 'success'").fetchone())
    assert (done["result"], done["retry_count"]) == (1, 0)


async def test_arguments_that_a_task_passes_to_another_job_are_an_ordinary_failure(app: App, sql: Sql) -> None:
    @app.task(kind="strict")
    async def strict(n: int) -> int:
        return n

    @app.task(kind="caller")
    async def caller() -> None:
        await strict.aenqueue("many")  # type: ignore[arg-type]

    async with working(app):
        job = await caller.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "retry")
    assert attempts(sql, job)[0]["error_class"] == "leasehold.errors.InvalidArguments"


async def test_a_thread_that_exits_the_program_only_fails_its_job(app: App, sql: Sql) -> None:
    @app.task(kind="exit", max_attempts=1)
    def leave() -> None:
        raise SystemExit(3)

    async with working(app):
        job = await leave.aenqueue()
        with pytest.raises(JobFailed, match="SystemExit"):
            await job.aresult(60)


async def test_a_thread_past_its_timeout_is_said_and_recorded(
    app: App, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(kind="deaf", timeout=0.2)
    def deaf() -> str:
        time.sleep(0.5)
        return "done"

    @app.task(kind="hears", timeout=60)
    def hears() -> None:
        current_job().checkpoint()

    async with working(app):
        job = await deaf.aenqueue()
        assert await job.aresult(60) == "done"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.split(":")[0] for line in said if "cannot stop a plain function" in line] == ["deaf"]
    assert any(f"deaf {job.id} is past its timeout of 0.2 s" in line for line in said)
    kept = sql.execute("select l ->> 2 as said from job_logs, jsonb_array_elements(lines) l").fetchall()
    assert any("its timeout is 0.2 s" in line["said"] for line in kept)


async def test_a_task_knows_its_job(app: App) -> None:
    @app.task(kind="who", queue="q")
    def who() -> dict[str, Any]:
        job = current_job()
        job.checkpoint()
        return {"id": str(job.id), "attempt": job.attempt, "queue": job.queue, "kind": job.kind}

    async with working(app):
        job = await who.aenqueue()
        assert await job.aresult(60) == {"id": str(job.id), "attempt": 1, "queue": "q", "kind": "who"}


async def test_a_task_that_cancels_what_it_awaits_has_failed(app: App, sql: Sql) -> None:
    @app.task(kind="self", max_attempts=2, retry=FixedDelay(0.01))
    async def cancels_itself() -> None:
        inner = asyncio.create_task(asyncio.sleep(10))
        inner.cancel()
        await inner

    async with working(app):
        job = await cancels_itself.aenqueue()
        with pytest.raises(JobFailed, match="CancelledError"):
            await job.aresult(60)
    assert row(sql, job)["attempt"] == 2
