"""Whatever a task says, raises or returns concerns its own job only: neither the worker nor another job."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, Intent, Job
from tests.worker import hostile_tasks as tasks
from tests.worker.conftest import attempts, row, working

Sql = psycopg.Connection[dict[str, Any]]

ENDED = {"success", "dead"}
WAITS = {"retry"}


@pytest.fixture
def app(app: App) -> App:
    """With the hostile tasks."""
    for task in tasks.app.tasks.values():
        app.register(task)
    return app


@contextmanager
def unheard() -> Iterator[None]:
    """Without pytest's own ears: half characters would not get through to the process that reports."""
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], []
    try:
        yield
    finally:
        root.handlers[:] = before


async def enqueue(app: App, intent: Intent) -> Job[Any]:
    [job] = await app.aenqueue_many([intent])
    return job


@pytest.mark.parametrize("task", [tasks.on_loop, tasks.in_thread, tasks.in_process], ids=["loop", "thread", "process"])
async def test_what_a_task_says_is_made_storable_and_disturbs_no_other_job(app: App, sql: Sql, task: Any) -> None:
    with unheard():
        await run_all(app, sql, task)


async def run_all(app: App, sql: Sql, task: Any) -> None:
    async with working(app, slots=6 if task is tasks.in_process else 40):
        neighbour = await enqueue(app, tasks.neighbour.intent())
        jobs = dict(
            zip(tasks.SAYINGS, await app.aenqueue_many([task.intent(what) for what in tasks.SAYINGS]), strict=True)
        )
        await auntil(lambda: all(row(sql, job)["state"] in ENDED | WAITS for job in jobs.values()))
        assert await neighbour.aresult(60) == "undisturbed"
        assert await (await enqueue(app, tasks.neighbour.intent())).aresult(60) == "undisturbed"
    assert row(sql, neighbour)["attempt"] == 1
    assert {what: row(sql, job)["attempt"] for what, job in jobs.items()} == dict.fromkeys(jobs, 1)
    reasons = {what: row(sql, job)["reason"] for what, job in jobs.items() if what.startswith("cancel")}
    assert set(reasons.values()) == {"cancelled"}
    assert row(sql, jobs["cancel"])["reason_detail"] == r"caf\udce9\x00.txt"
    assert row(sql, jobs["note"])["progress_note"] == r"caf\udce9\x00.txt"
    [attempt] = attempts(sql, jobs["raise"])
    assert (attempt["error_class"], attempt["error_message"]) == ("ValueError", r"caf\udce9\x00.txt")
    [attempt] = attempts(sql, jobs["raise, unprintable"])
    assert attempt["error_message"] == "<no text: str() of Unprintable raised SystemExit>"
    [attempt] = attempts(sql, jobs["exit"])
    assert r"the task raised SystemExit('caf\udce9\x00.txt')" in attempt["error_message"]
    for what in ("raise, long", "raise, long class name", "cancel, long"):
        for attempt in attempts(sql, jobs[what]):
            assert len(attempt["error_class"] or "") <= 200
            assert len(attempt["error_message"]) <= 2000


@pytest.mark.parametrize("what", tasks.GATHERED)
async def test_an_exit_in_a_child_of_a_task_ends_its_job_and_not_the_event_loop(app: App, sql: Sql, what: str) -> None:
    async with working(app, slots=4):
        neighbour = await enqueue(app, tasks.neighbour.intent())
        jobs = [await enqueue(app, task.intent(what)) for task in (tasks.gathered, tasks.grouped)]
        await auntil(lambda: all(row(sql, job)["state"] == "dead" for job in jobs))
        assert await neighbour.aresult(60) == "undisturbed"
    for job in jobs:
        [attempt] = attempts(sql, job)
        assert "the task raised" in attempt["error_traceback"]
