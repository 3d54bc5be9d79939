"""Schedules in Python: declared by a decorator, and made and changed at run time."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasehold import App, ConfigError, JobUnknown, Schedule, Task
from leasehold.retry import USUAL_ATTEMPTS


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    async with App(dsn) as app:
        yield app


def declared(app: App, key: str) -> Schedule:
    return {schedule.key: schedule for schedule in app.schedules.declared}[key]


# -- declaring


def test_a_plain_function_becomes_a_task_with_a_schedule(app: App) -> None:
    @app.schedule("*/5 * * * *", key="refresh")
    async def refresh() -> int:
        return 1

    assert isinstance(refresh, Task)
    assert app.tasks[refresh.kind] is refresh
    assert declared(app, "refresh") == Schedule(
        key="refresh", kind=refresh.kind, cron="*/5 * * * *", queue="default", priority=0, max_attempts=USUAL_ATTEMPTS
    )


def test_a_task_keeps_what_it_declares_and_may_have_several_schedules(app: App) -> None:
    @app.schedule(every=timedelta(hours=1), key="hourly", queue="slow")
    @app.schedule("0 6 * * *", key="daily", time_zone="Europe/Berlin", arguments={"full": True})
    @app.task(kind="REPORT", queue="reports", priority=4, max_attempts=2)
    def report(*, full: bool = False) -> None: ...

    daily, hourly = declared(app, "daily"), declared(app, "hourly")
    assert (daily.kind, daily.queue, daily.priority, daily.max_attempts) == ("REPORT", "reports", 4, 2)
    assert (daily.payload, hourly.payload, hourly.queue) == ('{"full":true}', "{}", "slow")


def test_the_due_time_is_an_argument_of_the_task(app: App) -> None:
    @app.schedule("0 0 * * *", due_argument="day", arguments={"n": 1})
    def close_books(day: datetime, n: int) -> None: ...

    assert declared(app, close_books.kind).payload == '{"n": 1}'
    with pytest.raises(ConfigError, match="unknown argument 'date'"):
        app.schedule("0 0 * * *", key="other", due_argument="date", arguments={"n": 1})(close_books)


async def nothing() -> None: ...


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"cron": "61 * * * *"}, r"schedule 'x': cron '61 \* \* \* \*': bad minute"),
        ({"cron": "* * * * *", "time_zone": "Mars/Olympus"}, "schedule 'x': time zone 'Mars/Olympus' unknown"),
        ({}, "either a cron expression or every="),
        ({"every": 60}, "every 60 is not a timedelta"),
        ({"every": timedelta(1), "missed": "maybe"}, "missed 'maybe' unknown.*known: skip, once, all"),
        ({"every": timedelta(1), "overlap": "no"}, "overlap 'no' unknown"),
        ({"every": timedelta(1), "jitter": timedelta(-1)}, "jitter"),
        ({"every": timedelta(1), "jitter": timedelta(days=2)}, "jitter"),
        ({"every": timedelta(1), "grace": 5}, "grace 5 is not a timedelta"),
        ({"every": timedelta(1), "max_missed": 0}, "max_missed 0"),
        ({"every": timedelta(1), "queue": ""}, "queue '' does not have 1 to 200 bytes"),
        ({"every": timedelta(1), "priority": 99999}, "priority 99999"),
        ({"every": timedelta(1), "tags": "a"}, "tags"),
        ({"every": timedelta(1), "arguments": {"a": 1}}, "unknown argument 'a'"),
        ({"every": timedelta(1), "kind": "OTHER", "over_a_task": True}, "of kind 'NOTHING', not 'OTHER'"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_declared(app: App, options: dict[str, Any], what: str) -> None:
    task: Any = app.task(kind="NOTHING")(nothing) if options.pop("over_a_task", False) else nothing
    with pytest.raises(ConfigError, match=what):
        app.schedule(**{"key": "x", **options})(task)
    assert app.schedules.declared == ()


def test_one_key_is_one_schedule(app: App) -> None:
    app.schedule("* * * * *", key="x")(nothing)
    app.schedule("* * * * *", key="x")(app.tasks[next(iter(app.tasks))])
    with pytest.raises(ConfigError, match="schedule 'x' is declared twice"):
        app.schedule("0 * * * *", key="x")(app.tasks[next(iter(app.tasks))])


def test_the_lease_of_every_registered_kind_is_what_its_schedules_are_claimed_for(app: App, session, clock) -> None:
    """The one source: what tasks declare fills it, lease_seconds() reads it, claims of schedules last so long."""
    leases = {"A": 5.0, "B": 120.0, "C": 15.0}
    for kind, lease in leases.items():
        app.schedule(every=timedelta(minutes=1), key=f"of {kind}")(app.task(kind=kind, lease=lease)(nothing_of(kind)))
    app.database.run(app.store.start_worker("w", host="h", pid=1, queues=None, slots=1, kinds=list(app.tasks)))
    app.database.run(app.store.declare_tasks(app.declaration()))
    assert app.schedules.apply() == ["of A", "of B", "of C"]
    clock.advance(60)
    for schedule in app.schedules.list():
        claimed = session.rows("schedule_claim", key=schedule.key, worker="w")[0]
        seconds = session.one("lease_seconds", kind=schedule.kind)
        assert (claimed.locked_until - clock.now).total_seconds() == seconds == leases[schedule.kind]
    assert {kind: task.options.lease for kind, task in app.tasks.items()} == leases


def nothing_of(kind: str) -> Any:
    async def run() -> None: ...

    run.__qualname__ = kind
    return run


# -- at run time


SCHEDULE = Schedule(
    key="s", kind="k", cron="0 * * * *", time_zone="Europe/Berlin", payload='{"a": 1}', queue="q", priority=1,
    max_attempts=3, exclusive_key="x", tags=("t",), due_argument="due", starts_at=datetime(2026, 1, 1, tzinfo=UTC),
    ends_at=datetime(2036, 1, 1, tzinfo=UTC), jitter=timedelta(seconds=1.5), missed="all",
    grace=timedelta(seconds=2), max_missed=7, overlap="exclusive", enabled=False,
)  # fmt: skip


def test_what_is_put_is_what_is_read_by_whichever_way(app: App) -> None:
    by_code = replace(SCHEDULE, key="declared")
    app.schedules.declare(by_code)
    assert app.schedules.put(SCHEDULE) is True
    assert app.schedules.put(SCHEDULE) is False
    assert app.schedules.apply() == ["declared"]
    assert app.schedules.apply() == []
    app.schedules.put(Schedule(key="new", kind="k", every=timedelta(hours=1)))
    app.schedules.disable("new")
    app.schedules.put(Schedule(key="new", kind="k", every=timedelta(hours=2)))
    assert app.schedules.get("new").enabled is False, "it says nothing about that"
    for schedule in (SCHEDULE, by_code):
        stored = app.schedules.get(schedule.key)
        for name in Schedule.__dataclass_fields__.keys() - {"metadata"}:  # that is read with its jobs
            expected = list(schedule.tags) if name == "tags" else getattr(schedule, name)
            assert getattr(stored, name) == expected, name
        assert stored.is_declared is (schedule is by_code)
    assert [stored.key for stored in app.schedules.list()] == ["declared", "new", "s"]


def test_a_job_of_a_schedule_has_its_metadata(app: App) -> None:
    traced = {"trace": "1", "deep": {"n": [1, None]}}
    app.schedule(every=timedelta(hours=1), key="declared", metadata=traced)(nothing)
    app.schedules.apply()
    app.schedules.put(Schedule(key="put", kind="k", every=timedelta(hours=1), metadata=traced))
    for key in ("declared", "put"):
        detail = app.call(app.store.job_detail(app.schedules.run_now(key).id))
        assert detail is not None
        assert detail.job.metadata == traced
    with pytest.raises(ConfigError, match="schedule 'x': metadata"):
        Schedule(key="x", kind="k", every=timedelta(hours=1), metadata={"long": "x" * 5000})


def test_schedules_are_changed_at_run_time(app: App) -> None:
    app.schedules.put(Schedule(key="s", kind="k", every=timedelta(hours=1), payload='{"n": 1}'))
    assert (app.schedules.disable("s"), app.schedules.disable("s")) == (True, False)
    assert app.schedules.get("s").upcoming(3) == []
    assert (app.schedules.enable("s", from_now=True), app.schedules.enable("s")) == (True, False)
    upcoming = app.schedules.get("s").upcoming(3)
    assert [b - a for a, b in zip(upcoming, upcoming[1:], strict=False)] == [timedelta(hours=1)] * 2  # noqa: RUF007
    job = app.schedules.run_now("s")
    assert job.status == "PENDING"
    assert app.schedules.get("s").last_job == job.id
    asked = [app.schedules.run_now("s", idempotency_key="x").id for _ in range(2)]
    assert asked[0] == asked[1] != job.id
    assert (app.schedules.remove("s"), app.schedules.remove("s")) == (True, False)
    for ask in (app.schedules.get, app.schedules.enable, app.schedules.disable, app.schedules.run_now):
        with pytest.raises(JobUnknown, match="no schedule has the key 's'"):
            ask("s")


async def test_coroutines_have_the_same(app: App) -> None:
    app.schedules.declare(SCHEDULE)
    assert await app.schedules.aapply() == ["s"]
    assert await app.schedules.aput(replace(SCHEDULE, enabled=True)) is True
    assert await app.schedules.adisable("s") is True
    assert await app.schedules.aenable("s", from_now=True) is True
    assert (await app.schedules.aget("s")).enabled
    job = await app.schedules.arun_now("s")
    assert [stored.last_job for stored in await app.schedules.alist()] == [job.id]
    asked = [(await app.schedules.arun_now("s", idempotency_key="x")).id for _ in range(2)]
    assert asked[0] == asked[1] != job.id
    assert await app.schedules.aremove("s") is True
    with pytest.raises(JobUnknown):
        await app.schedules.aget("s")
