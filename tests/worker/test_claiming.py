"""What a worker takes, in which order, how much of it, and when."""

import asyncio
import gc
import math
import threading
import weakref
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest

from faults.waiting import astays, auntil
from leasehold import App, ConfigError, current_job
from leasehold.telemetry import Event
from leasehold.worker import Worker, WorkerOptions
from tests.worker.conftest import attempts, idle, row, working

Sql = psycopg.Connection[dict[str, Any]]


async def test_no_more_jobs_run_than_there_are_slots_and_none_is_claimed_before_a_slot_is_free(
    app: App, sql: Sql
) -> None:
    running = highest = 0
    ended: set[UUID] = set()
    claimed: list[int] = []

    @app.task(kind="work")
    async def work() -> None:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        leased = {found["id"] for found in sql.execute("select id from jobs where state = 'running'")}
        claimed.append(len(leased - ended))  # those that have ended may be about to be reported
        await asyncio.sleep(0.01)
        running -= 1
        ended.add(current_job().id)

    async with working(app, slots=3):
        jobs = await app.aenqueue_many(work.intent() for _ in range(60))
        for job in jobs:
            await job.aresult(60)
    assert highest == 3
    assert max(claimed) == 3


async def test_claiming_waits_while_reports_pile_up(app: App, sql: Sql) -> None:
    """While the database takes no reports, a worker has at most two rounds of jobs in its hands."""

    @app.task(kind="quick")
    async def quick() -> None: ...

    async with working(app, slots=3) as worker:
        await auntil(worker.started.is_set)
        real = sql.execute("select pg_get_functiondef('complete_v1'::regproc) as text").fetchone()
        assert real is not None
        sql.execute(
            "create or replace function complete_v1(worker text, ids uuid[], attempts integer[],"
            " results jsonb[] default null, claim_ids uuid[] default null) returns setof uuid language plpgsql"
            " as $$begin raise exception 'away' using errcode = '57P03'; end$$"
        )
        jobs = await app.aenqueue_many(quick.intent() for _ in range(30))
        leased = "select count(*) as n from jobs where state = 'running'"
        await auntil(lambda: sql.execute(leased).fetchone() == {"n": 6})
        await astays(lambda: sql.execute(leased).fetchone() == {"n": 6}, "no more are claimed", seconds=0.5)
        sql.execute(real["text"])
        for job in jobs:
            await job.aresult(60)


async def test_prefetched_jobs_are_leased_but_not_started_and_come_back_at_once(app: App, sql: Sql) -> None:
    started: list[int] = []

    @app.task(kind="slow")
    async def slow() -> None:
        started.append(1)
        await asyncio.sleep(0.5)

    async with working(app, slots=2, prefetch=5):
        jobs = await app.aenqueue_many(slow.intent() for _ in range(10))
        states = "select count(*) as n from jobs where state = 'running'"
        # Leased comes before started: the next claim is on its way while the jobs of the last one start.
        await auntil(lambda: len(started) >= 2 and sql.execute(states).fetchone() == {"n": 7})
    outcomes = [row(sql, job)["state"] for job in jobs]
    assert outcomes.count("success") >= 2
    assert outcomes.count("running") == 0
    given_back = [job for job in jobs if row(sql, job)["state"] == "queued" and row(sql, job)["attempt"] == 1]
    assert given_back
    assert all(row(sql, job)["retry_count"] == 0 for job in jobs)


async def test_the_urgent_go_first_then_the_old(app: App) -> None:
    order: list[str] = []

    @app.task(kind="note")
    async def note(name: str) -> None:
        order.append(name)

    await note.aenqueue("first")
    await note.using(priority=-1).aenqueue("patient")
    await note.aenqueue("second")
    await note.using(priority=9).aenqueue("urgent")
    async with working(app, slots=1):
        await auntil(lambda: len(order) == 4)
    assert order == ["urgent", "first", "second", "patient"]


async def test_a_kind_that_this_worker_does_not_know_stays_queued(app: App, sql: Sql) -> None:
    @app.task(kind="known")
    async def known() -> str:
        return "ran"

    sql.execute("select enqueue('unknown', priority => 100)")
    async with working(app):
        assert await (await known.aenqueue()).aresult(60) == "ran"
    assert sql.execute("select state, attempt from jobs where kind = 'unknown'").fetchone() == {
        "state": "queued",
        "attempt": 0,
    }


async def test_a_worker_of_some_queues_leaves_the_others_alone(app: App, sql: Sql) -> None:
    @app.task(kind="job")
    async def job() -> None: ...

    elsewhere = await job.using(queue="elsewhere").aenqueue()
    async with working(app, queues=["here"]):
        await (await job.using(queue="here").aenqueue()).aresult(60)
    assert row(sql, elsewhere)["state"] == "queued"


async def test_a_future_job_waits_for_its_time_and_is_not_late(app: App, sql: Sql) -> None:
    @app.task(kind="later")
    async def later() -> None: ...

    async with working(app) as worker:
        await idle(sql, worker)  # so that a notification has to wake it
        job = await later.using(run_after=timedelta(seconds=1)).aenqueue()
        assert (await job.arefresh()).state == "created"
        await job.aresult(60)
    late = row(sql, job)["claimed_at"] - row(sql, job)["run_at"]
    assert timedelta(0) <= late < timedelta(seconds=1)


async def test_an_idle_worker_starts_a_new_job_long_before_its_next_poll(app: App, sql: Sql) -> None:
    @app.task(kind="now")
    async def now() -> None: ...

    async with working(app, poll=10) as worker:
        await idle(sql, worker)
        job = await now.aenqueue()
        await job.aresult(60)
    assert row(sql, job)["claimed_at"] - row(sql, job)["created_at"] < timedelta(seconds=1)


async def test_jobs_of_one_exclusive_key_run_one_after_the_other(app: App) -> None:
    running = 0

    @app.task(kind="alone")
    async def alone() -> int:
        nonlocal running
        running += 1
        seen = running
        await asyncio.sleep(0.02)
        running -= 1
        return seen

    async with working(app, slots=10), working(app, slots=10):
        jobs = [await alone.using(exclusive_key="one").aenqueue() for _ in range(20)]
        assert [await job.aresult(60) for job in jobs] == [1] * 20


async def test_a_stopping_worker_lets_jobs_finish_and_releases_the_rest(app: App, sql: Sql) -> None:
    stopping = threading.Event()

    @app.task(kind="quick")
    async def quick() -> None:
        await auntil(stopping.is_set)

    @app.task(kind="slow")
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task(kind="thread")
    def thread() -> None:
        stopping.wait()

    async with working(app, grace=3) as worker:
        jobs = [await quick.aenqueue(), await thread.aenqueue(), await slow.aenqueue()]
        await auntil(lambda: worker.snapshot().running == 3)
        asyncio.get_running_loop().call_later(0.3, stopping.set)
    assert [row(sql, job)["state"] for job in jobs] == ["success", "success", "queued"]
    assert row(sql, jobs[2])["retry_count"] == 0
    assert [one["outcome"] for one in attempts(sql, jobs[2])] == ["released"]


async def test_a_second_stop_cuts_the_grace_short(app: App, sql: Sql) -> None:
    @app.task(kind="slow")
    async def slow() -> None:
        await asyncio.sleep(60)

    loop = asyncio.get_running_loop()
    async with working(app, grace=60) as worker:
        job = await slow.aenqueue()
        await auntil(lambda: row(sql, job)["state"] == "running")
        worker.stop()
        worker.stop()
        asked = loop.time()
    assert loop.time() - asked < 5
    assert row(sql, job)["state"] == "queued"


async def test_a_worker_says_who_it_is_and_when_it_has_gone(app: App, sql: Sql) -> None:
    @app.task(kind="a")
    async def a() -> None: ...

    async with working(app, slots=4) as worker:
        me = sql.execute("select * from workers where id = %s", [worker.id]).fetchone()
        assert me is not None
        assert (me["kinds"], me["slots"], me["stopped_at"]) == (["a"], 4, None)
    gone = sql.execute("select stopped_at from workers where id = %s", [worker.id]).fetchone()
    assert gone is not None
    assert gone["stopped_at"] is not None


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"prefetch": -1}, {"grace": -1.0}, {"grace": math.nan}, {"poll": 60.0}], ids=str
)
def test_options_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        WorkerOptions(**wrong)


async def test_a_worker_without_tasks_says_so(app: App) -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        await Worker(app).run()


async def test_claims_begin_small_and_grow_where_there_is_a_backlog(app: App) -> None:
    @app.task(kind="k")
    async def nothing() -> None: ...

    wanted: list[tuple[int, int]] = []

    def note(event: Event) -> None:
        if event.name == "jobs.claimed":
            wanted.append((event.fields["wanted"], event.fields["jobs"]))

    app.telemetry.subscribe(note)
    jobs = await app.aenqueue_many(nothing.intent() for _ in range(2_000))
    async with working(app, slots=500, prefetch=1_500):
        for job in jobs:
            await job.aresult(60)
    assert wanted[0] == (100, 100), "those who come early do not wait for a thousand others"
    assert max(most for most, _ in wanted) > 500
    assert all(after <= 2 * before for (before, _), (after, _) in pairwise(wanted))


async def test_a_job_that_has_ended_is_gone_without_the_collector(app: App) -> None:
    """A circle of the job, its asyncio task and its context would be walked over by every collection, a fifth of the
    worker's time, until one found it to be garbage."""
    ended: list[weakref.ref[Any]] = []

    @app.task(kind="k")
    async def nothing() -> None:
        ended.append(weakref.ref(asyncio.current_task()))

    gc.disable()
    try:
        async with working(app, slots=10):
            for job in await app.aenqueue_many(nothing.intent() for _ in range(20)):
                await job.aresult(60)
            await auntil(lambda: not any(task() for task in ended))
    finally:
        gc.enable()
    assert len(ended) == 20
