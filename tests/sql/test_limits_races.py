"""However many claim at once, and however their jobs end: the leases alive at one moment never exceed a limit.

Judged by a history that the database writes in the transactions themselves, never by looking in between.
"""

import os
import random
import threading
import time

import psycopg
import pytest

from tests.sql.limits import HISTORY, most_live, set_limit, utilisation
from tests.sql.test_deadlocks import disorder

FULL = os.environ.get("LEASEHOLD_SURVIVAL") == "full"
UNFINISHED = "select exists (select from jobs where state not in ('success', 'dead'))"
LEASE = {"a": 0.2, "b": 0.35, "c": 0.5}
NAMES = {"global": "", "queue": "q1", "kind": "a", "key": "t1/"}


def fill(db, session, jobs: int, keys: str = "null", *, one_lane: bool = False) -> list:
    session.execute(HISTORY)
    # Not to be relied on: every end has to unpark by itself what it must.
    session.mutate("unpark_forgotten", "\nbegin\n", "\nbegin\n  return;\n")
    session.rows("declare_kinds", kinds=list(LEASE), lease_seconds=list(LEASE.values()))
    return db.insert(
        session,
        jobs,
        kind="'a'" if one_lane else "(array['a', 'b', 'c'])[1 + n % 3]",
        queue="'q1'" if one_lane else "'q' || 1 + n / 3 % 2",
        exclusive_key=keys,
        priority="n % 3",
        max_attempts="30000",
    )


class Crew:
    """One session that claims jobs and ends them in every way there is, until none is left."""

    def __init__(self, session, place, ids, pause: float) -> None:
        self.session = session
        self.chance = random.Random(place)
        self.worker = f"w{place}"
        self.ids = ids
        self.pause = pause
        self.end = time.monotonic() + 60

    def run(self) -> None:
        ends = [self.complete] * 16 + [self.fail, self.release, self.abandon, self.renew, self.renew]
        while self.session.value(UNFINISHED):
            assert time.monotonic() < self.end, "the jobs do not finish"
            if self.chance.random() < 0.1:
                self.session.one("sweep", max=self.chance.randint(1, 20))
                self.session.one("promote")
            held = self.claim()
            if not held:
                time.sleep(self.chance.uniform(0, 0.01))
            for job, attempt in held:
                time.sleep(self.chance.uniform(0, self.pause))
                self.chance.choice(ends)(job, attempt)

    def claim(self) -> list:
        if self.chance.random() < 0.2:
            job = self.chance.choice(self.ids)
            won = self.session.one("claim_job", job_id=job, worker=self.worker)
            owned = self.session.rows("owned", worker=self.worker) if won else []
            return [(row.id, row.attempt) for row in owned if row.id == job]
        rows = self.session.rows("claim", worker=self.worker, count=self.chance.randint(1, 5))
        return [(row.id, row.attempt) for row in rows]

    def report(self, function: str, **arguments) -> None:
        """As a worker does it: a report whose row is locked for a quarter of a second is repeated."""
        while True:
            try:
                self.session.rows(function, worker=self.worker, **arguments)
            except psycopg.errors.LockNotAvailable:
                assert time.monotonic() < self.end, "the row stays locked"
            else:
                return

    def complete(self, job, attempt) -> None:
        self.report("complete", ids=[job], attempts=[attempt])

    def fail(self, job, attempt) -> None:
        self.report("fail", id=job, attempt=attempt, retry_after=0.01)

    def release(self, job, attempt) -> None:
        self.report("release", ids=[job], attempts=[attempt])

    def abandon(self, job, attempt) -> None:
        """The lease expires."""

    def renew(self, job, attempt) -> None:
        """Until the last moment, and often a little beyond it."""
        time.sleep(self.chance.uniform(0.15, 0.21))
        self.session.rows("heartbeat", worker=self.worker, ids=[job], attempts=[attempt])
        self.complete(job, attempt)


def work(db, ids, claimers: int = 32, pause: float = 0.006) -> None:
    """Any error of the database but the wait of a report, a deadlock above all, fails the test."""
    db.crowd(claimers, lambda session, place: Crew(session, place, ids, pause).run())


def assert_all_done(db, session) -> None:
    assert session.value("select count(*) from jobs where state <> 'success'") == 0
    db.assert_consistent(session)


@pytest.mark.parametrize("max_running", [1, 7, 50])
@pytest.mark.parametrize("scope", list(NAMES))
def test_live_leases_never_exceed_a_limit_and_all_jobs_finish(db, session, scope, max_running):
    many = max_running == 50
    keys = "'t1/' || n" if many else "'t' || n % 2 || '/' || n % 120"
    ids = fill(db, session, {1: 60, 7: 240, 50: 400}[max_running], keys, one_lane=many)
    set_limit(session, scope, NAMES[scope], max_running)
    work(db, ids, pause=0.1 if many else 0.006)
    live = most_live(session, scope, NAMES[scope])
    assert live <= max_running
    assert live >= (max_running if FULL else min(max_running, 7))  # a busy machine may not get all of them going
    assert_all_done(db, session)


def test_a_job_obeys_all_its_limits_at_once(db, session):
    of_tenants = "case n % 4 when 0 then 't1/u' || n % 5 || '/' || n % 20 when 1 then 't2/' || n end"
    ids = fill(db, session, 200, keys=of_tenants)
    limits = [("global", "", 10), ("queue", "q1", 3), ("kind", "a", 2)]
    limits += [("key", "t1/u0/", 1), ("key", "t1/", 2), ("key", "t2/", 4)]
    for limit in limits:
        set_limit(session, *limit)
    work(db, ids)
    assert [limit for limit in limits if most_live(session, *limit[:2]) > limit[2]] == []
    assert most_live(session, "global", "") > 5
    assert_all_done(db, session)


def test_limits_that_come_and_go_hold_from_the_moment_they_are_set(db, session):
    """What a limit finds running goes on; from when it has fallen below, it stays there."""
    ids = fill(db, session, 300, keys="case when n % 2 = 0 then 't1/' || n % 40 end")
    session.rows("set_limit", scope="global", name="", max_running=20)
    over = threading.Event()
    failures: list[str] = []

    def change() -> None:
        chance, keeper = random.Random(0), db.connect()
        names = list(NAMES.items())[1:]
        while not over.is_set():
            scope, name = chance.choice(names)
            if chance.random() < 0.3:
                keeper.rows("drop_limit", scope=scope, name=name)
            else:
                set_limit(keeper, scope, name, chance.choice([0, 1, 3, 9]))
            set_limit(keeper, "global", "", chance.randint(15, 20))
            time.sleep(0.02)
        for scope, name in names:
            keeper.rows("drop_limit", scope=scope, name=name)

    def changing() -> None:
        try:
            change()
        except psycopg.Error as error:
            failures.append(f"{error.sqlstate} {error}")

    changer = threading.Thread(target=changing)
    changer.start()
    stop = threading.Timer(4, over.set)
    stop.start()
    try:
        work(db, ids, claimers=16)
    finally:
        over.set()
        changer.join()
        stop.cancel()
    assert failures == []
    assert most_live(session, "global", "") <= 20
    assert_all_done(db, session)


def test_the_history_catches_the_naive_version_that_locks_and_counts_in_one_statement(db, session):
    ids = fill(db, session, 240)
    set_limit(session, "global", "", 7)
    session.execute("alter function running_under(limits) stable")
    session.execute(
        "create or replace function room_under(l limits) returns integer language sql stable"
        " as $$ select l.max_running - leasehold.running_under(l) $$"
    )
    session.mutate("take_limits", " for no key update skip locked", "")
    session.mutate(
        "admit_lanes",
        "from unnest(applying) a join limits l on l.scope = a.scope and l.name = a.name",
        "from (select l.* from limits l where l.scope = 'global' for no key update) l",
    )
    work(db, ids)
    assert most_live(session, "global", "") > 7


@pytest.mark.parametrize("scope", list(NAMES))
def test_places_do_not_stay_empty_while_jobs_wait(db, session, scope):
    session.execute(HISTORY)
    db.insert(session, 21, queue="'q1'", kind="'a'", exclusive_key="'t1/' || n")
    set_limit(session, scope, NAMES[scope], 7)

    def steady(claimer, place) -> None:
        while claimer.value(UNFINISHED):
            rows = claimer.rows("claim", worker=f"w{place}", count=1)
            time.sleep(1.2 if rows else 0.003)
            claimer.rows("complete", worker=f"w{place}", ids=[row.id for row in rows], attempts=[1] * len(rows))

    db.crowd(10, steady)
    assert most_live(session, scope, NAMES[scope]) == 7
    if FULL:  # a figure: for a quiet machine
        assert utilisation(session, 7) >= 0.95
    assert_all_done(db, session)


def test_no_mix_of_calls_deadlocks_under_limits(db, session):
    for limit in [("global", "", 30), ("queue", "default", 20), ("kind", "a", 9), ("key", "x", 4), ("key", "x1", 1)]:
        set_limit(session, *limit)
    done = disorder(db, session)
    assert [name for name in done if ":" in name] == []
    db.assert_consistent(session)
