"""Workers fire schedules: any of them, without a leader, and wake when something changes."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasehold import App, Schedule
from leasehold.upkeep import scheduler
from tests.schedules.conftest import runs_of, stored
from tests.worker.conftest import until, working

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
        await until(lambda: len(seen) >= 2, within=60)
    assert sorted(seen) == [due for due in runs_of(session, "tick") if due in seen]
    assert all(due.microsecond == 0 and due.tzinfo is not None for due in seen)


async def test_a_schedule_put_by_plain_sql_wakes_a_worker_that_had_nothing_to_do(
    app: App, session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for net in ("_LONGEST_PAUSE", "_LONGEST_WITHOUT_HINTS"):
        monkeypatch.setattr(scheduler, net, 600)
    app.task(kind="k")(nothing)
    async with working(app) as busy:
        assert busy._parts is not None
        await until(busy._parts.listener.listening.is_set)
        await asyncio.sleep(0.5)  # it has looked, and sleeps for its ten minutes
        session.one("schedule_put", key="s", kind="k", cron="* * * * * *")
        await until(lambda: stored(session).fired, within=60)


async def test_a_schedule_is_fired_at_its_time_and_not_before(app: App, session) -> None:
    app.task(kind="k")(nothing)
    start = datetime.now(UTC) + 2 * SECOND
    async with working(app):
        app.schedules.put(Schedule(key="s", kind="k", every=SECOND, starts_at=start, ends_at=start + SECOND))
        await until(lambda: stored(session).over, within=60)
    assert runs_of(session) == [start]
    assert session.value("select min(created_at) from jobs") >= start


async def test_a_worker_without_schedules_of_its_own_fires_those_of_others(app: App, session) -> None:
    app.task(kind="mine")(nothing)
    app.schedules.put(Schedule(key="s", kind="somebody else's", every=SECOND))
    async with working(app):
        await until(lambda: stored(session).fired >= 2, within=60)
    assert session.value("select count(*) from jobs where state = 'queued'") == stored(session).fired


async def test_an_operators_change_survives_the_next_start_of_a_worker(app: App, session) -> None:
    app.schedule(every=timedelta(hours=1), key="s", kind="k")(nothing)
    async with working(app):
        assert stored(session).every == timedelta(hours=1)
    session.one("schedule_put", key="s", kind="k", every="10 minutes")
    session.one("schedule_disable", key="s")
    async with working(app):
        assert (stored(session).every, stored(session).enabled) == (timedelta(minutes=10), False)


async def test_a_worker_that_stops_in_good_order_fires_what_it_has_claimed(app: App, session) -> None:
    """Else nobody could until the claim expires: an hour, for a kind with such a lease."""
    session.mutate("schedule_fire_v1", "\n  update schedules t", "\n  perform pg_sleep(0.2);\n  update schedules t")
    app.task(kind="k", lease=3600)(nothing)
    async with working(app):
        app.schedules.put(Schedule(key="s", kind="k", every=SECOND))
        # In one look: the first claim, which only finds the first due time, fires nothing.
        await until(lambda: (seen := stored(session)).locked_by and seen.next_run_at, within=60)
    now = stored(session)
    assert (now.locked_by, now.fired >= 1) == (None, True)


def test_workers_that_are_killed_leave_no_gap_and_no_double(dsn: str, session) -> None:
    """Real worker processes, killed in turn: the next one makes up for what came due, each due time once."""
    killed = 0
    deadline = time.monotonic() + 90
    while killed < 3:
        with worker(dsn), worker(dsn) as victim:
            count = len(runs_of(session, "tick"))
            while len(runs_of(session, "tick")) < count + 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            victim.send_signal(signal.SIGKILL)
            killed += 1
    runs = runs_of(session, "tick")
    assert {b - a for a, b in itertools.pairwise(runs)} == {SECOND}
    assert stored(session, "tick").fired == len(runs) == session.value("select count(*) from jobs")
