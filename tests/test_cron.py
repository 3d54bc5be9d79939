"""Laws of due times: intervals count absolute time, cron expressions what the clocks on the wall show."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from leasehold.cron import MONDAY, Rule
from leasehold.errors import ConfigError
from tests.schedules.oracle import due_times

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
SPRING = datetime(2026, 3, 29, tzinfo=ZoneInfo(BERLIN))
"""At 2:00 the clocks of Berlin are put forward to 3:00."""
AUTUMN = datetime(2026, 10, 25, tzinfo=ZoneInfo(BERLIN))
"""At 3:00 they are put back to 2:00."""


def local(rule: Rule, day: datetime, hours: float = 24) -> list[str]:
    """The due times of a day as the clocks show them, with their offset."""
    start = day.astimezone(UTC)
    end, shown = start + timedelta(hours=hours), []
    due = rule.after(start - timedelta(microseconds=1))
    while due is not None and due < end:
        shown.append(due.astimezone(ZoneInfo(rule.time_zone)).strftime("%H:%M%z"))
        due = rule.after(due)
    return shown


# -- the clocks are moved


def test_a_named_time_that_the_clocks_skip_runs_at_the_moment_they_are_moved() -> None:
    assert local(Rule(cron="30 2 * * *", time_zone=BERLIN), SPRING) == ["03:00+0200"]
    assert local(Rule(cron="0 2,3 * * *", time_zone=BERLIN), SPRING) == ["03:00+0200"]
    assert local(Rule(cron="15,45 2 * * *", time_zone=BERLIN), SPRING) == ["03:00+0200"]


def test_a_named_time_that_comes_twice_runs_the_first_time() -> None:
    assert local(Rule(cron="30 2 * * *", time_zone=BERLIN), AUTUMN) == ["02:30+0200"]
    assert local(Rule(cron="0 1,2,3 * * *", time_zone=BERLIN), AUTUMN) == ["01:00+0200", "02:00+0200", "03:00+0100"]


def test_every_so_many_minutes_means_whenever_the_clocks_show_it() -> None:
    rule = Rule(cron="*/30 * * * *", time_zone=BERLIN)
    assert local(rule, SPRING, hours=3)[2:6] == ["01:00+0100", "01:30+0100", "03:00+0200", "03:30+0200"]
    shown = ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100", "03:00+0100"]
    assert local(rule, AUTUMN, hours=5)[4:9] == shown
    assert local(Rule(cron="*/30 2 * * *", time_zone=BERLIN), SPRING) == []
    assert local(Rule(cron="*/30 2 * * *", time_zone=BERLIN), AUTUMN) == shown[:4]


def test_an_hour_named_with_any_minute_counts_as_shown_too() -> None:
    assert local(Rule(cron="0 * * * *", time_zone=BERLIN), SPRING, hours=24).count("02:00+0100") == 0
    assert len(local(Rule(cron="0 * * * *", time_zone=BERLIN), SPRING, hours=23)) == 23
    assert len(local(Rule(cron="0 * * * *", time_zone=BERLIN), AUTUMN, hours=25)) == 25


def test_an_interval_counts_absolute_time_whatever_the_clocks_do() -> None:
    for day in (SPRING, AUTUMN):
        dues = Rule(every=timedelta(hours=6), time_zone=BERLIN).upcoming(day, 10)
        assert {b - a for a, b in pairwise(dues)} == {timedelta(hours=6)}


def test_where_the_search_begins_does_not_change_what_is_found() -> None:
    """From between the two showings of an hour, the first one lies behind us."""
    rule = Rule(cron="30 2 * * *", time_zone=BERLIN)
    second_time = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 2:10 for the second time
    assert rule.after(second_time) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert rule.after(second_time - timedelta(hours=1)) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


# Lord Howe moves its clocks by half an hour, Havana back to midnight, Beirut forward at midnight; Apia left out a day.
DAYS = [
    (BERLIN, "2026-03-28"), (BERLIN, "2026-10-24"), (NEW_YORK, "2026-03-07"), (NEW_YORK, "2026-10-31"),
    ("Australia/Lord_Howe", "2026-04-04"), ("Australia/Lord_Howe", "2026-10-03"), ("America/Havana", "2025-11-01"),
    ("America/Havana", "2025-03-08"), ("Asia/Beirut", "2026-03-28"), ("Pacific/Apia", "2011-12-29"),
    ("Africa/Casablanca", "2026-02-14"), ("Asia/Kolkata", "2026-03-28"), ("UTC", "2026-03-28"),
]  # fmt: skip
EXPRESSIONS = [
    "30 2 * * *", "0 0 * * *", "15,45 0-3 * * *", "0 2,3 * * *", "*/15 * * * *", "*/30 2 * * *", "*/20 0 * * *",
    "7 * * * *", "59 23 * * *", "0 */2 * * *", "30 1 * * 0", "0 12 30 12 *", "0 0 30 * *", "5 4 * * 1-5",
    "*/10 1-2 * * *",
]  # fmt: skip


@pytest.mark.parametrize(("name", "day"), DAYS)
def test_due_times_are_those_of_an_independent_reckoning(name: str, day: str) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(name)).astimezone(UTC)
    end = start + timedelta(days=3)
    rng = random.Random(f"{name}{day}")
    for expression in EXPRESSIONS:
        rule = Rule(cron=expression, time_zone=name)
        expected = due_times(start, end, cron=expression, time_zone=name)
        found, due = [], rule.after(start - timedelta(microseconds=1))
        while due is not None and due < end:
            found.append(due)
            due = rule.after(due)
        assert found == expected, expression
        for _ in range(20):  # and from anywhere
            moment = start + rng.random() * timedelta(days=2)
            first = next((due for due in expected if due > moment), None)
            assert first is None or rule.after(moment) == first, (expression, moment)


@pytest.mark.parametrize("name", [BERLIN, NEW_YORK])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_where_clocks_move_by_an_hour_the_due_times_are_cronsims_own(name: str, expression: str) -> None:
    for month, day in (3, 7), (3, 28), (10, 24), (10, 31):
        start = datetime(2026, month, day, tzinfo=ZoneInfo(name)).astimezone(UTC)
        end = start + timedelta(days=2)
        rule, due = Rule(cron=expression, time_zone=name), start
        for theirs in CronSim(expression, start.astimezone(ZoneInfo(name))):
            if theirs.astimezone(UTC) > end:
                break
            following = rule.after(due)
            assert following == theirs.astimezone(UTC)
            due = following


# -- intervals, start and end


def test_an_interval_without_a_start_counts_from_a_monday_midnight() -> None:
    assert MONDAY.weekday() == 0
    now = datetime(2026, 11, 15, 10, 59, 30, tzinfo=UTC)
    assert Rule(every=timedelta(hours=1)).after(now) == datetime(2026, 11, 15, 11, tzinfo=UTC)
    assert Rule(every=timedelta(weeks=1)).after(now).weekday() == 0


def test_an_interval_with_a_start_counts_from_it() -> None:
    start = datetime(2026, 11, 15, 10, 59, 30, tzinfo=UTC)
    rule = Rule(every=timedelta(minutes=7), starts_at=start)
    assert rule.after(start - timedelta(days=1)) == start
    assert rule.after(start) == start + timedelta(minutes=7)
    assert rule.upcoming(start - timedelta(days=400), 2) == [start, start + timedelta(minutes=7)]


def test_the_start_is_in_and_the_end_is_out() -> None:
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    for rule in (
        Rule(cron="0 * * * *", starts_at=noon, ends_at=noon + timedelta(hours=2)),
        Rule(every=timedelta(hours=1), starts_at=noon, ends_at=noon + timedelta(hours=2)),
    ):
        assert rule.upcoming(noon - timedelta(days=9), 10) == [noon, noon + timedelta(hours=1)]
        assert rule.after(noon + timedelta(hours=1)) is None


def test_runs_lists_the_latest_and_counts_them_all() -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    for rule in (Rule(every=timedelta(minutes=1)), Rule(cron="* * * * *")):
        runs = rule.runs(start, start + timedelta(hours=10), 3)
        assert runs.latest == tuple(start + timedelta(minutes=n) for n in (598, 599, 600))
        assert (runs.count, runs.next) == (601, start + timedelta(minutes=601))
        ended = Rule(every=rule.every, cron=rule.cron, ends_at=start + timedelta(minutes=2))
        assert (ended.runs(start, start + timedelta(hours=1), 9).count, ended.runs(start, start, 9).next) == (
            2,
            start + timedelta(minutes=1),
        )
        assert ended.runs(start, start + timedelta(hours=1), 9).next is None


def test_a_year_of_seconds_is_not_counted_one_by_one_and_the_latest_are_still_right() -> None:
    start, end = datetime(2025, 5, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC)
    runs = Rule(cron="* * * * * *").runs(start, end, 1000)
    assert runs.latest == tuple(end - timedelta(seconds=n) for n in range(999, -1, -1))
    assert 20_000 < runs.count < 50_000
    assert runs.next == end + timedelta(seconds=1)
    exact = Rule(every=timedelta(seconds=1)).runs(start, end, 1000)
    assert (exact.count, exact.latest) == (365 * 86400 + 1, runs.latest)


# -- what makes no sense


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "* * * *"}, "wrong number of fields"),
        ({"cron": ""}, "wrong number of fields"),
        ({"cron": "0 0 31 2 *"}, "bad day-of-month"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "@daily"}, "wrong number of fields"),
        ({"cron": 5}, "is not a text"),
        ({"cron": "* * * * *", "time_zone": "Europe/Berlinn"}, "time zone 'Europe/Berlinn' unknown"),
        ({"cron": "* * * * *", "time_zone": "../etc/passwd"}, "unknown"),
        ({"cron": "* * * * *", "time_zone": ""}, "unknown"),
        ({"every": timedelta(0)}, "is not a timedelta between 1 second"),
        ({"every": 60}, "is not a timedelta between 1 second"),
        ({"every": timedelta(days=4000)}, "is not a timedelta between 1 second"),
        ({}, "either a cron expression or every="),
        ({"cron": "* * * * *", "every": timedelta(1)}, "either a cron expression or every="),
        ({"cron": "* * * * *", "starts_at": datetime(2026, 1, 1)}, "no datetime with a time zone"),  # noqa: DTZ001
        ({"cron": "* * * * *", "starts_at": MONDAY, "ends_at": MONDAY}, "before it starts"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_reason(rule: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Rule(**rule)  # type: ignore[arg-type]


def test_the_calendar_ends() -> None:
    assert Rule(cron="0 0 1 1 *").after(datetime(9999, 6, 1, tzinfo=UTC)) is None
    assert Rule(every=timedelta(days=3000)).after(datetime(9999, 6, 1, tzinfo=UTC)) is None
