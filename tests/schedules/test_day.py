"""Law: one job for each schedule and due time, and none missing, whichever process dies, on days of changing clocks.

A day is compressed into a minute by the clock of the database; the seconds that schedulers sleep are real ones. CI sees
a few hours around the change, the full run the whole day and both zones in both directions.
"""

import multiprocessing
import random
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.schedules import mortal
from tests.schedules.conftest import runs_of
from tests.schedules.oracle import due_times
from tests.survival.conftest import FULL, rounds

SPEED = 1440
SCHEDULERS = 5
HOURS = rounds(3, 24)
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
# The moment at which the clocks are moved.
CHANGES = {
    "Berlin in spring": (BERLIN, datetime(2026, 3, 29, 1, tzinfo=UTC)),
    "New York in autumn": (NEW_YORK, datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Berlin in autumn": (BERLIN, datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "New York in spring": (NEW_YORK, datetime(2026, 3, 8, 7, tzinfo=UTC)),
}
RULES: list[dict[str, Any]] = [
    *({"every": timedelta(minutes=n)} for n in (5, 7, 15, 60)),
    *(
        {"cron": cron}
        for cron in (
            "*/5 * * * *", "*/10 * * * *", "*/15 * * * *", "0 * * * *", "7 * * * *", "30 2 * * *", "30 1 * * *",
            "0 2 * * *", "0 2,3 * * *", "0 1,2 * * *", "15,45 1-3 * * *", "*/30 2 * * *", "*/20 1-2 * * *",
            "59 1 * * *", "0 */2 * * *", "5 3 * * 0",
        )
    ),
]  # fmt: skip
assert len(RULES) == 20

CLOCK = """
create table hands as select %s::timestamptz as start, clock_timestamp() as began;
create or replace function clock() returns timestamptz language sql volatile as
  $$ select start + (clock_timestamp() - began) * {speed} from leasehold.hands $$;
"""
UNFINISHED = "select exists (select from schedules where not over)"


@dataclass
class Day:
    """Twenty schedules on one compressed day."""

    session: Any
    zone: str
    start: datetime
    end: datetime

    @classmethod
    def prepare(cls, session, zone: str, change: datetime) -> "Day":
        start = change - timedelta(hours=HOURS / 2)
        day = cls(session, zone, start, start + timedelta(hours=HOURS))
        # One kind's claims expire within 42 real milliseconds: often before they are fired. The other's in 2 seconds.
        session.one("declare_kinds", kinds=["hasty", "steady"], lease_seconds=[60, 2 * SPEED])
        seconds = "extract(epoch from greatest(s.next_run_at, s.locked_until) - now.at)"
        session.mutate("schedule_due_v1", seconds, f"{seconds} / {SPEED}")
        # Time to die in, between the jobs and the step forward.
        session.mutate(
            "schedule_fire_v1", "\n  update schedules t", "\n  perform pg_sleep(random() * 0.01);\n  update schedules t"
        )
        session.execute(CLOCK.format(speed=SPEED).replace("%s", f"'{start.isoformat()}'"))
        for n, rule in enumerate(RULES):
            session.one(
                "schedule_put", key=f"s{n}", kind="hasty" if n % 2 else "steady", time_zone=zone, missed="all",
                max_missed=10000, starts_at=None, ends_at=day.end, **rule,
            )  # fmt: skip
        session.execute("update schedules set due_after = %s", [start - timedelta(microseconds=1)])
        return day

    def live(self, dsn: str, log: Path, chance: float) -> Counter[str]:
        """Let schedulers run, die and be replaced until everything is over; returns how they died."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.schedules.mortal"])
        processes: list[Any] = []
        deaths: Counter[str] = Counter()
        deadline = time.monotonic() + HOURS * 3600 / SPEED + 90
        try:
            while self.session.value(UNFINISHED):
                assert time.monotonic() < deadline, f"not over: {self.session.rows('schedule_due')}"
                processes = [process for process in processes if process.is_alive()]
                while len(processes) < SCHEDULERS:
                    process = context.Process(target=mortal.main, args=(dsn, str(log), chance), daemon=True)
                    process.start()
                    processes.append(process)
                time.sleep(random.random() * 0.1)
                fate = random.random()
                if chance and fate < 0.1:
                    random.choice(processes).kill()
                    deaths["killed from outside"] += 1
                elif chance and fate < 0.2:
                    broken = self.session.values(
                        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
                        " and datname = current_database() order by random() limit 1",
                        mortal.NAME,
                    )
                    deaths["connection broken"] += len(broken)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join(60)
        return deaths + Counter(log.read_text().splitlines() if log.exists() else ())

    def wrong(self) -> dict[str, Any]:
        """Whatever differs from an independent list of due times."""
        found = {}
        for n, rule in enumerate(RULES):
            expected = due_times(self.start, self.end, time_zone=self.zone, **rule)
            runs = runs_of(self.session, f"s{n}")
            fired, missed = self.session.execute(
                "select fired, missed_runs from schedules where key = %s", [f"s{n}"]
            ).fetchone()
            if (runs, fired, missed) != (expected, len(expected), 0):
                found[f"s{n} {rule}"] = (len(runs), fired, missed, len(expected), set(expected) ^ set(runs))
        return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", list(CHANGES) if FULL else list(CHANGES)[:2])
def test_a_day_of_dying_schedulers_makes_one_job_for_each_due_time(dsn, session, tmp_path, change):
    day = Day.prepare(session, *CHANGES[change])
    deaths = day.live(dsn, tmp_path / "deaths", chance=0.02)
    print(f"{change}: {session.value('select count(*) from jobs')} jobs, deaths: {dict(deaths)}")
    assert day.wrong() == {}
    assert session.value("select count(*) from jobs") == session.value("select sum(fired) from schedules")
    assert deaths.total() >= rounds(5, 50)
    if FULL:
        assert set(mortal.POINTS) | {"killed from outside", "connection broken"} == set(deaths)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not FULL, reason="the full run: LEASEHOLD_SURVIVAL=full")
def test_the_same_day_catches_a_fire_that_does_not_ask_whose_claim_it_is(dsn, session, tmp_path):
    day = Day.prepare(session, *CHANGES["Berlin in spring"])
    guard = (
        "s.locked_by is distinct from worker or s.claim_id is distinct from token or s.next_run_at is distinct from was"
    )
    session.mutate("schedule_fire_v1", guard, "false")
    session.mutate("schedule_fire_v1", "due_after = s.claimed_at", "due_after = coalesce(s.claimed_at, t.due_after)")
    day.live(dsn, tmp_path / "deaths", chance=0.02)
    wrong = day.wrong()
    print(f"{len(wrong)} of {len(RULES)} schedules are wrong")
    assert wrong != {}
