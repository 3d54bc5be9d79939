"""Workers fire schedules: any of them, without a leader, and wake when something changes."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from faults.waiting import auntil, until
from leasehold import App, Schedule
from leasehold.db.call import Call
from leasehold.db.store import Store
from leasehold.upkeep import scheduler
from tests.schedules.conftest import runs_of, stored
from tests.worker.conftest import working

ROOT = Path(__file__).parents[2]
SECOND = timedelta(seconds=1)


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    async with App(dsn) as app:
        yield app


async def nothing() -> None: ...


@contextmanager
def worker(dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "leasehold", "worker", "tests.schedules.tasks:app"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "LEASEHOLD_DSN": dsn}, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_what_code_declares_is_fired_and_run_with_its_due_time(app: App, session) -> None:
    seen: list[datetime] = []

    @app.schedule(every=SECOND, key="tick", due_argument="due")
    async def tick(due: datetime) -> None:
        seen.append(due)

    async with working(app):
        await auntil(lambda: len(seen) >= 2)
    assert sorted(seen) == [due for due in runs_of(session, "tick") if due in seen]
    assert all(due.microsecond == 0 and due.tzinfo is not None for due in seen)


async def test_a_schedule_put_by_plain_sql_wakes_a_worker_that_had_nothing_to_do(
    app: App, session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for net in ("_LONGEST_PAUSE", "_LONGEST_UNNOTIFIED"):
        monkeypatch.setattr(scheduler, net, 600)
    app.task(kind="k")(nothing)
    rounds: list[bool] = []
    schedule_due = Store.schedule_due

    def noted(*args: Any) -> Call[Any]:
        call = schedule_due(*args)
        return replace(call, read=lambda rows: rounds.append(True) or call.read(rows))

    monkeypatch.setattr(Store, "schedule_due", noted)
    async with working(app) as busy:
        await auntil(lambda: busy.snapshot().state == "working")  # it listens
        await auntil(lambda: rounds, "the scheduler has asked for what is due, and sleeps for its ten minutes")
        session.one("schedule_put", key="s", kind="k", cron="* * * * * *")
        await auntil(lambda: stored(session).fired)


async def test_a_schedule_is_fired_at_its_time_and_not_before(app: App, session) -> None:
    app.task(kind="k")(nothing)
    start = datetime.now(UTC) + 2 * SECOND
    async with working(app):
        app.schedules.put(Schedule(key="s", kind="k", every=SECOND, starts_at=start, ends_at=start + SECOND))
        await auntil(lambda: stored(session).over)
    assert runs_of(session) == [start]
    assert session.value("select min(created_at) from jobs") >= start


async def test_a_worker_without_schedules_of_its_own_fires_those_of_others(app: App, session) -> None:
    app.task(kind="mine")(nothing)
    app.schedules.put(Schedule(key="s", kind="another program's", every=SECOND))
    async with working(app):
        await auntil(lambda: stored(session).fired >= 2)
    assert session.value("select count(*) from jobs where state = 'queued'") == stored(session).fired


async def test_an_operators_change_survives_the_next_start_of_a_worker(app: App, session) -> None:
    app.schedule(every=timedelta(hours=1), key="s", kind="k")(nothing)
    async with working(app):
        assert stored(session).every == timedelta(hours=1)
    session.one("schedule_put", key="s", kind="k", every="10 minutes")
    session.one("schedule_disable", key="s")
    async with working(app):
        assert (stored(session).every, stored(session).enabled) == (timedelta(minutes=10), False)


async def test_schedules_that_a_session_keeps_locked_hold_up_no_others(app: App, session, db) -> None:
    """More of them than a round claims at once, and all due before the other."""
    app.task(kind="k")(nothing)
    for number in range(45):
        session.execute("select schedule_put(%s, kind => 'k', every => '1 hour')", [f"locked {number}"])
    session.execute("update schedules set next_run_at = clock() - interval '1 minute'")
    session.execute("select schedule_put('free', kind => 'k', every => '1 second')")
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.execute("select schedule_disable(key) from schedules where key <> 'free'")
        async with working(app):
            await auntil(lambda: len(runs_of(session, "free")) >= 2, within=60)


async def test_a_worker_that_stops_in_good_order_fires_what_it_has_claimed(app: App, session) -> None:
    """Else no scheduler could until the claim expires: an hour, for a kind with such a lease."""
    session.mutate("schedule_fire_v1", "\n  update schedules t", "\n  perform pg_sleep(0.2);\n  update schedules t")
    app.task(kind="k", lease=3600)(nothing)
    async with working(app):
        app.schedules.put(Schedule(key="s", kind="k", every=SECOND))
        # In one look: the first claim, which only finds the first due time, fires nothing.
        await auntil(lambda: (seen := stored(session)).locked_by and seen.next_run_at)
    now = stored(session)
    assert (now.locked_by, now.fired >= 1) == (None, True)


def test_workers_that_are_killed_leave_no_gap_and_no_double(dsn: str, session) -> None:
    """Real worker processes, killed in turn: the next one makes up for what came due, each due time once."""
    killed = 0
    while killed < 3:
        with worker(dsn), worker(dsn) as victim:
            count = len(runs_of(session, "tick"))
            until(lambda count=count: len(runs_of(session, "tick")) >= count + 2)
            victim.send_signal(signal.SIGKILL)
            killed += 1
    runs = runs_of(session, "tick")
    assert {b - a for a, b in itertools.pairwise(runs)} == {SECOND}
    assert stored(session, "tick").fired == len(runs) == session.value("select count(*) from jobs")
