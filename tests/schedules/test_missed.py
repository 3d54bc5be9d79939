"""Laws of missed runs: no worker runs for an hour, or for a day, and then one starts."""

import errno
import os
from datetime import timedelta
from typing import NoReturn

import pytest

from leasehold import cron
from leasehold.db.connections.link import Link
from leasehold.db.store import Store
from leasehold.upkeep.scheduler import plan
from tests.schedules.conftest import claim, runs_of, stored

HOUR, DAY, MINUTE = timedelta(hours=1), timedelta(days=1), timedelta(minutes=1)


def put(session, **more):
    session.one("schedule_put", **{"key": "s", "kind": "k", **more})


async def away(scheduler, clock, length: timedelta) -> None:
    """A scheduler is there, is gone for some time, and comes back."""
    await scheduler.round()
    clock.advance(length.total_seconds())
    await scheduler.round()


# The clock of these tests starts at 12:00 UTC on 2031-05-17; 90 s past it nothing below is due this very moment.
@pytest.fixture
def start(clock):
    clock.advance(90)
    return clock.now - timedelta(seconds=90)


@pytest.mark.parametrize("length", [HOUR, DAY], ids=["an hour", "a day"])
@pytest.mark.parametrize("rule", [{"every": "10 minutes"}, {"cron": "*/10 * * * *"}], ids=["every", "cron"])
async def test_skip_makes_up_for_none_but_the_latest_within_its_grace(session, clock, start, scheduler, rule, length):
    put(session, missed="skip", **rule)
    await away(scheduler, clock, length)
    count = length // (10 * MINUTE)
    assert runs_of(session) == [start + length], "90 s late: within the grace of five minutes"
    assert stored(session).missed_runs == count - 1
    assert stored(session).next_run_at == start + length + 10 * MINUTE
    await away(scheduler, clock, length - 90 * timedelta(seconds=1) + 9 * MINUTE)
    assert len(runs_of(session)) == 1, "nine minutes late: missed"
    assert stored(session).next_run_at == start + 2 * length + 10 * MINUTE


@pytest.mark.parametrize("length", [HOUR, DAY], ids=["an hour", "a day"])
@pytest.mark.parametrize("rule", [{"every": "10 minutes"}, {"cron": "*/10 * * * *"}], ids=["every", "cron"])
async def test_once_makes_up_for_all_of_them_with_one(session, clock, start, scheduler, rule, length):
    put(session, missed="once", grace="0", **rule)
    await away(scheduler, clock, length + 8 * MINUTE)
    assert runs_of(session) == [start + length]
    assert stored(session).missed_runs == length // (10 * MINUTE) - 1
    await scheduler.round()
    assert len(runs_of(session)) == 1


@pytest.mark.parametrize("length", [HOUR, DAY], ids=["an hour", "a day"])
@pytest.mark.parametrize("rule", [{"every": "10 minutes"}, {"cron": "*/10 * * * *"}], ids=["every", "cron"])
async def test_all_makes_up_for_each_of_them(session, clock, start, scheduler, rule, length):
    put(session, missed="all", grace="0", **rule)
    await away(scheduler, clock, length)
    assert runs_of(session) == [start + n * 10 * MINUTE for n in range(1, length // (10 * MINUTE) + 1)]
    assert stored(session).missed_runs == 0


async def test_all_makes_up_for_so_many_at_most_and_counts_the_rest(session, clock, start, scheduler):
    put(session, missed="all", every="1 minute", max_missed=100)
    await away(scheduler, clock, DAY)
    assert runs_of(session) == [start + DAY + MINUTE - n * MINUTE for n in range(99, -1, -1)]
    now = stored(session)
    assert (now.fired, now.missed_runs) == (100, 1440 - 100)


async def test_a_daily_run_survives_a_short_restart_and_not_a_long_one(session, clock, start, scheduler):
    put(session, cron="0 13 * * *")
    await scheduler.round()
    clock.advance(3600)  # 13:01:30
    await scheduler.round()
    assert runs_of(session) == [start + HOUR]
    clock.advance(DAY.total_seconds() + 300)  # 13:06:30
    await scheduler.round()
    assert (len(runs_of(session)), stored(session).missed_runs) == (1, 1)


async def test_a_run_that_was_claimed_in_time_is_not_missed_however_late_the_claim_expires(
    session, clock, start, scheduler
):
    """A scheduler that takes over judges as of the first claim: schedulers that die in turn lose nothing."""
    session.one("declare_kinds", kinds=["k"], lease_seconds=[1800])
    put(session, every="1 hour", missed="skip")
    await scheduler.round()
    clock.advance(HOUR.total_seconds())  # 13:01:30
    for worker in ("first", "second", "third"):
        claim(session, worker=worker)
        clock.advance(1800)
    await scheduler.round()  # 14:31:30
    assert runs_of(session) == [start + HOUR]
    assert stored(session).next_run_at == start + 3 * HOUR


async def test_what_came_due_while_it_was_disabled_is_missed_or_forgotten_at_wish(session, clock, start, scheduler):
    for policy, expected in (("skip", 0), ("once", 1), ("all", 5)):
        for from_now in (False, True):
            key = f"{policy} {from_now}"
            session.one("schedule_put", key=key, kind="k", every="1 hour", missed=policy, grace="0")
            await scheduler.round()
            session.one("schedule_disable", key=key)
            clock.advance(5 * 3600)
            await scheduler.round()
            session.one("schedule_enable", key=key, from_now=from_now)
            await scheduler.round()
            assert len(runs_of(session, key)) == (0 if from_now else expected), key
            clock.advance(3600 - 90)
            await scheduler.round()
            assert len(runs_of(session, key)) == (1 if from_now else expected + 1), key
            clock.advance(90)


async def test_a_schedule_made_while_no_scheduler_was_there_counts_from_when_it_was_made(
    session, clock, start, scheduler
):
    put(session, every="1 hour", missed="all")
    clock.advance(3 * 3600)
    await scheduler.round()
    assert runs_of(session) == [start + n * HOUR for n in (1, 2, 3)]


async def test_a_schedule_begins_at_its_start_and_is_over_at_its_end(session, clock, start, scheduler):
    put(session, every="10 minutes", missed="all", starts_at=start + HOUR, ends_at=start + 2 * HOUR)
    await away(scheduler, clock, DAY)
    assert runs_of(session) == [start + HOUR + n * 10 * MINUTE for n in range(6)]
    assert stored(session).over
    assert session.rows("schedule_due") == []
    put(session, every="10 minutes", missed="all", starts_at=start + HOUR, ends_at=start + 2 * DAY)
    assert not stored(session).over


async def test_a_process_without_free_descriptors_is_no_problem_of_a_schedule(
    session, clock, start, scheduler, monkeypatch
):
    put(session, cron="0 * * * *", time_zone="Asia/Tokyo", missed="all")

    def no_descriptor(_: str) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(cron, "ZoneInfo", no_descriptor)
        await away(scheduler, clock, HOUR)
    assert stored(session).problem is None
    assert runs_of(session) == []
    await away(scheduler, clock, HOUR)
    assert len(runs_of(session)) == 2


async def test_an_invalid_rule_is_logged_once_and_does_not_stop_the_others(session, clock, start, scheduler, caplog):
    session.one("schedule_put", key="bad", kind="k", cron="99 * * * *")
    session.one("schedule_put", key="odd", kind="k", cron="0 * * * *", time_zone="EST5EDT4,M3.2.0,M11.1.0")
    put(session, every="1 hour", missed="all")
    for _ in range(3):
        await away(scheduler, clock, HOUR)
    assert len(runs_of(session)) == 3
    assert "bad minute" in stored(session, "bad").problem
    assert "time zone 'EST5EDT4,M3.2.0,M11.1.0' unknown" in stored(session, "odd").problem
    assert [record.levelname for record in caplog.records if "cannot be fired" in record.message] == ["WARNING"] * 2


async def test_who_comes_second_has_an_ordinary_answer_and_logs_nothing(session, clock, start, scheduler, caplog):
    caplog.set_level("DEBUG", logger="leasehold")
    for key in ("locked", "gone", "disabled", "not due"):
        session.one("schedule_put", key=key, kind="k", every="1 hour")
    claim(session, key="locked", worker="other")
    session.one("schedule_disable", key="disabled")
    await scheduler.fire("not due")
    session.one("schedule_remove", key="gone")
    for key in ("locked", "gone", "disabled", "not due", "never was"):
        assert await scheduler.fire(key) is False
    assert [record for record in caplog.records if record.name.startswith("leasehold.upkeep")] == []


async def test_repeating_a_claim_returns_the_same_plan(dsn, session, clock, start):
    put(session, cron="*/10 * * * *", missed="all")
    clock.advance(3600)
    token = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    link = Link(dsn, name="t")
    try:
        first = await link.run(Store("leasehold").schedule_claim("s", "w", token))
        clock.advance(10)
        again = await link.run(Store("leasehold").schedule_claim("s", "w", token))
    finally:
        await link.close()
    assert plan(first) == plan(again)
    assert len(plan(first).due) == 6
