"""Whatever the database answers, no loop of a worker dies of it; and a loop that dies ends its worker."""

import asyncio
import logging
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.waiting import auntil
from leasehold import App, Cancel, NoRetry, current_job
from leasehold.db.connections.dial import Dialer
from leasehold.db.notify import Listener, Prober
from leasehold.db.store import Store
from leasehold.errors import DatabaseUnavailable, WorkerFailed
from leasehold.retry import FixedDelay
from leasehold.upkeep.scheduler import Scheduler
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker import Worker, WorkerOptions, finisher, loops, statistics
from leasehold.worker.claimer import Claimer
from leasehold.worker.finisher import Finisher
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.statistics import Statistician
from tests.worker.conftest import attempts, row, working
from tests.worker.test_process import one, run_cli

Sql = psycopg.Connection[dict[str, Any]]


def refuse(sql: Sql, code: str, when: str) -> None:
    """From now on, changes of jobs for which this holds raise an error with this code."""
    sql.execute(f"""
        create sequence public.refused;
        create function public.refuse() returns trigger language plpgsql as
        $$ begin perform nextval('public.refused');
        raise exception 'refused by the test' using errcode = '{code}'; end $$""")
    sql.execute(
        f"create or replace trigger refuse before update on jobs for each row when ({when})"
        " execute function public.refuse()"
    )


def refused(sql: Sql) -> int:
    """How often that has happened."""
    found = sql.execute("select last_value as n from public.refused").fetchone()
    assert found is not None
    return int(found["n"])


def accept(sql: Sql) -> None:
    sql.execute("drop trigger refuse on jobs")


@pytest.mark.parametrize("code", ["0A000", "22000", "23514", "54000"])
async def test_a_report_that_is_refused_for_its_values_fails_alone_with_the_reason(
    app: App, sql: Sql, code: str
) -> None:
    @app.task(kind="poison", max_attempts=1)
    async def poison() -> str:
        return "poison"

    @app.task(kind="innocent")
    async def innocent(n: int) -> int:
        return n

    refuse(sql, code, "new.state = 'success' and new.kind = 'poison'")
    jobs = await app.aenqueue_many([*(innocent.intent(n) for n in range(30)), poison.intent(), poison.intent()])
    async with working(app, slots=50) as worker:
        await auntil(lambda: worker.finished == 32)
        await auntil(lambda: row(sql, jobs[30])["state"] == row(sql, jobs[31])["state"] == "dead")
    assert {row(sql, job)["state"] for job in jobs[:30]} == {"success"}
    [attempt] = attempts(sql, jobs[30])
    assert "refused by the test" in attempt["error_message"]


@pytest.mark.parametrize("code", ["42501", "3F000", "42883", "55000", "XX000", "25P04"])
async def test_what_the_database_refuses_for_a_while_is_repeated_until_it_is_taken(
    app: App, sql: Sql, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    @app.task(kind="work")
    async def work() -> None: ...

    refuse(sql, code, "new.state = 'success'")
    jobs = await app.aenqueue_many(work.intent() for _ in range(5))
    async with working(app) as worker:
        await auntil(lambda: worker.finished == 5)
        await auntil(lambda: "refused by the test" in caplog.text)
        await auntil(lambda: refused(sql) >= 12, "the reports are repeated")
        accept(sql)
        await auntil(lambda: {row(sql, job)["state"] for job in jobs} == {"success"})
    assert [attempt for job in jobs for attempt in attempts(sql, job)] == []
    assert caplog.text.count("refused by the test") == 1


@pytest.mark.parametrize("code", ["42501", "3F000", "55000", "XX000"])
async def test_an_error_while_claiming_does_not_end_the_worker(
    app: App, sql: Sql, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    @app.task(kind="work")
    async def work() -> None: ...

    refuse(sql, code, "new.state = 'running'")
    job = await work.aenqueue()
    async with working(app):
        await auntil(lambda: "refused by the test" in caplog.text)
        await auntil(lambda: refused(sql) >= 3, "the claim is repeated")
        accept(sql)
        await auntil(lambda: row(sql, job)["state"] == "success")
    assert caplog.text.count("refused by the test") == 1


def refuse_once(sql: Sql, table: str, when: str, code: str) -> None:
    """The next change of this table for which this holds raises an error; what numbers are taken, stays taken."""
    sql.execute("create sequence public.refusals")
    sql.execute(f"""
        create function public.refuse_once() returns trigger language plpgsql as $$ begin
        if nextval('public.refusals') = 1 then raise exception 'refused by the test' using errcode = '{code}'; end if;
        return new; end $$""")
    sql.execute(
        f"create trigger refuse_once before insert or update on {table} for each row when ({when})"
        " execute function public.refuse_once()"
    )


@pytest.mark.parametrize(
    ("table", "when", "code"),
    [
        ("jobs", "new.state = 'running'", "XX000"),
        ("jobs", "new.state = 'success'", "XX000"),
        ("jobs", "new.state = 'success'", "22000"),
        ("jobs", "new.state = 'retry'", "23000"),
        ("schedules", "new.locked_by is not null", "40001"),
        ("statistics", "true", "57P01"),
    ],
)
async def test_a_call_that_is_refused_once_and_repeated_is_in_the_log(
    app: App,
    sql: Sql,
    table: str,
    when: str,
    code: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(statistics, "_PERIOD", 0.2)

    @app.schedule(every=timedelta(seconds=1), key="tick")
    @app.task(kind="tick")
    async def tick() -> None: ...

    @app.task(kind="flaky", retry=FixedDelay(0.01))
    async def flaky() -> None:
        if current_job().attempt == 1:
            raise ValueError("not yet")

    refuse_once(sql, table, when, code)
    job = await flaky.aenqueue()
    async with working(app):
        await auntil(lambda: row(sql, job)["state"] == "success")
        await auntil(lambda: "refused by the test" in caplog.text)


async def test_a_call_of_a_program_that_is_repeated_is_in_the_log(
    app: App, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(kind="work")
    async def work() -> None: ...

    refuse_once(sql, "jobs", "true", "40001")
    await work.aenqueue()
    assert "a call waits for the database" in caplog.text
    assert "refused by the test" in caplog.text
    assert "the database is back" in caplog.text


@pytest.mark.parametrize("part", [Claimer, Finisher, Sweeper, Scheduler, Listener, Prober, Statistician, LeaseKeeper])
async def test_a_loop_that_dies_ends_the_worker_and_its_leases_are_renewed_no_more(
    app: App, sql: Sql, part: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @app.task(kind="endless", lease=60)
    async def endless() -> None:
        started.set()
        try:
            await asyncio.sleep(120)
        finally:
            ended.set()

    async def die(_part: Any) -> None:
        if part is not Claimer:
            await started.wait()
        raise KeyError("a defect of the test")

    def die_in_thread(_part: Any) -> None:
        raise KeyError("a defect of the test")

    monkeypatch.setattr(part, "_run" if part is LeaseKeeper else "run", die_in_thread if part is LeaseKeeper else die)
    await endless.aenqueue()
    worker = Worker(app, WorkerOptions(grace=60))
    with pytest.raises(WorkerFailed, match=f"{part.__name__}.*a defect of the test"):
        await asyncio.wait_for(worker.run(), 60)
    assert ended.is_set() == started.is_set()
    assert started.is_set() or part in (Claimer, LeaseKeeper)
    await auntil(lambda: "leasehold-keeper" not in {thread.name for thread in threading.enumerate()})


async def test_a_finisher_that_dies_while_the_worker_stops_does_not_hold_it(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(kind="nap")
    async def nap() -> None:
        await asyncio.sleep(0.5)

    def complete(*_: Any) -> None:
        raise KeyError("a defect of the test")

    monkeypatch.setattr(Store, "complete", complete)
    job = await nap.aenqueue()
    worker = Worker(app, WorkerOptions(grace=60))
    running = asyncio.create_task(worker.run())
    await auntil(lambda: row(sql, job)["state"] == "running")
    worker.stop()
    with pytest.raises(WorkerFailed, match="Finisher"):
        await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("away", [False, True], ids=["for reports", "altogether"])
async def test_a_worker_that_renews_leases_and_cannot_connect_for_reports_ends(
    app: App, sql: Sql, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()

    @app.task(kind="work", lease=1, retry=FixedDelay(0.01))
    async def work() -> None:
        await go.wait()

    connect, refusals = Dialer.connect, list[float]()

    async def refuse(dialer: Dialer, *args: Any, **options: Any) -> Any:
        if "finisher" not in dialer._options["application_name"]:
            return await connect(dialer, *args, **options)
        refusals.append(time.monotonic())
        raise DatabaseUnavailable("refused by the test")

    def beat(*_: Any) -> None:
        raise DatabaseUnavailable("refused by the test")

    monkeypatch.setattr(finisher, "_CUT_OFF", 1.0)
    job = await work.aenqueue()
    worker = Worker(app, WorkerOptions(grace=60))
    running = asyncio.create_task(worker.run())
    await auntil(lambda: row(sql, job)["state"] == "running")
    with monkeypatch.context() as patch:
        patch.setattr(Dialer, "connect", refuse)
        if away:
            patch.setattr(LeaseKeeper, "_beat", beat)
        reports = "application_name like 'leasehold finisher%' and datname = current_database()"
        sql.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {reports}")
        go.set()
        if not away:
            with pytest.raises(WorkerFailed, match=r"Finisher.*refused by the test"):
                await asyncio.wait_for(running, 60)
            return
        await auntil(lambda: refusals and refusals[-1] - refusals[0] > 3, "longer than the bound")
    await auntil(lambda: row(sql, job)["state"] == "success")
    worker.stop()
    await asyncio.wait_for(running, 60)


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


async def _exit() -> None:
    sys.exit(3)


async def _interrupt() -> None:
    raise KeyboardInterrupt


async def _in_gather() -> None:
    await asyncio.gather(_exit(), asyncio.sleep(0.1))


async def _in_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_interrupt())
        group.create_task(asyncio.sleep(0.1))


async def _in_task() -> None:
    await asyncio.create_task(_exit())


async def _rude() -> None:
    raise Rude


async def _never_started() -> None:
    asyncio.create_task(asyncio.sleep(10)).cancel()
    await asyncio.gather(_in_gather())


@pytest.mark.parametrize("way", [_exit, _interrupt, _in_gather, _in_group, _in_task, _rude, _never_started])
async def test_what_is_meant_for_the_process_fails_its_own_job_only(app: App, sql: Sql, way: Any) -> None:
    @app.task(kind="bad", retry=NoRetry())
    async def bad() -> None:
        await way()

    @app.task(kind="good")
    async def good() -> int:
        await asyncio.sleep(0.3)
        return current_job().attempt

    jobs = await app.aenqueue_many([good.intent(), bad.intent(), good.intent()])
    async with working(app):
        await auntil(lambda: row(sql, jobs[1])["state"] == "dead")
        assert [await job.aresult(60) for job in (jobs[0], jobs[2])] == [1, 1]


@pytest.mark.parametrize("reason", ["bad byte \x00", "file \udcff", "x" * 5_000_000])
async def test_a_reason_that_the_database_does_not_take_costs_only_its_own_job(app: App, sql: Sql, reason: str) -> None:
    @app.task(kind="cancel", lease=60)
    async def cancel() -> None:
        raise Cancel(reason)

    @app.task(kind="good", lease=60)
    async def good() -> int:
        return 1

    jobs = await app.aenqueue_many([cancel.intent(), good.intent()])
    async with working(app):
        await auntil(lambda: row(sql, jobs[0])["state"] == "dead")
        assert await jobs[1].aresult(60) == 1
    assert row(sql, jobs[0])["reason"] == "cancelled"


async def test_health_names_the_part_that_does_not_move(app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(kind="work")
    async def work() -> None: ...

    monkeypatch.setattr(loops, "_STUCK", 0.3)
    refuse(sql, "55000", "new.state = 'success'")
    async with working(app) as worker:
        await auntil(lambda: worker.snapshot().state == "working")
        job = await work.aenqueue()
        await auntil(lambda: set(worker.snapshot().stuck) == {"finisher"})
        accept(sql)
        await auntil(lambda: worker.snapshot().state == "working")
        assert await job.aresult(60) is None


TASKS = """
import asyncio
from leasehold import App
from leasehold.db.store import Store

def complete(*_):
    raise KeyError("a defect of the test")

Store.complete = complete
app = App()

@app.task(kind="work", lease=60)
async def work() -> None: ...

@app.task(kind="stubborn", lease=60)
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""


def test_a_process_whose_finisher_dies_ends_with_70_whatever_its_tasks_do(dsn: str, sql: Sql, tmp_path: Path) -> None:
    (tmp_path / "mytasks.py").write_text(textwrap.dedent(TASKS))
    sql.execute("select enqueue('stubborn'), enqueue('work')")
    ended = run_cli(tmp_path, "worker", "mytasks:app", "--slots", "2", LEASEHOLD_DSN=dsn)
    assert ended.returncode == 70, ended.stderr
    assert "its Finisher has died, so the worker ends" in ended.stderr
    assert "a defect of the test" in ended.stderr
    assert one(sql, "select count(*) from jobs where state = 'running'") == 2  # until their leases run out
