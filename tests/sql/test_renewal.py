"""Renewal depends on nothing: it waits for no lock, and says of each lease whether it was renewed."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import psycopg
import pytest

HURRY = "set lock_timeout = '10s'"
"""A renewal that waited for anything below would wait for ever: this turns it into an error."""


def enqueued(session, count=1, **intent):
    return [session.one("enqueue", kind="k", **intent) for _ in range(count)]


def renewed(session, *jobs, attempt=1):
    """The answers for jobs of the worker w, by job."""
    rows = session.rows("renew", worker="w", ids=list(jobs), attempts=[attempt] * len(jobs))
    return {row.id: row.answer for row in rows}


def seconds_left(session, clock, job):
    return (session.job(job)["lease_expires_at"] - clock.now).total_seconds()


@pytest.fixture
def beater(db):
    session = db.connect()
    session.execute(HURRY)
    return session


def test_each_id_gets_one_of_three_answers(db, session, clock, beater):
    idle, busy, cancelled, expired = enqueued(session, 4)
    session.rows("claim", worker="w", count=4)
    session.one("cancel", id=cancelled)
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [expired])
    clock.advance(10)
    session.execute("update jobs set lease_expires_at = clock() - interval '1 second' where id = %s", [expired])
    stranger = uuid4()
    with db.connect() as writer, writer.transaction():
        writer.execute("select from jobs where id = %s for update", [busy])
        answers = renewed(beater, idle, busy, cancelled, expired, stranger)
        assert answers == {idle: "renewed", busy: "busy", cancelled: "lost", expired: "lost", stranger: "lost"}
        # What older releases ask: still owned.
        assert set(beater.column("heartbeat", worker="w", ids=[idle, busy, expired], attempts=[1] * 3)) == {idle, busy}
    assert (seconds_left(session, clock, idle), seconds_left(session, clock, busy)) == (15, 5)
    assert renewed(beater, busy) == {busy: "renewed"}
    assert seconds_left(session, clock, busy) == 15


@pytest.mark.parametrize("mode", ["share", "share row exclusive", "exclusive"])
def test_a_renewal_does_not_wait_for_a_lock_on_the_table_of_workers(db, session, clock, beater, mode):
    (job,) = enqueued(session)
    session.rows("claim", worker="w")
    clock.advance(10)
    with db.connect() as locker, locker.transaction():
        locker.execute(f"lock table workers in {mode} mode")
        assert renewed(beater, job) == {job: "renewed"}
    assert seconds_left(session, clock, job) == 15


def test_a_renewal_does_not_wait_for_a_claim_of_the_same_worker(db, session, clock, beater):
    (job,) = enqueued(session)
    session.rows("claim", worker="w", claim_id=uuid4())
    clock.advance(10)
    claimer = db.connect()
    with claimer.transaction():
        enqueued(session)
        assert len(claimer.rows("claim", worker="w", claim_id=uuid4())) == 1  # has the worker's row, and does not end
        assert renewed(beater, job) == {job: "renewed"}
        assert beater.rows("upkeep", worker="w")  # nor does the upkeep
    assert seconds_left(session, clock, job) == 15


def test_a_renewal_does_not_wait_for_a_claim_that_waits_for_a_limit(db, session, beater):
    session.execute("select set_limit('global', '', 5)")
    (job,) = enqueued(session)
    session.rows("claim", worker="w", claim_id=uuid4())
    idle = db.connect()
    with idle.transaction():
        enqueued(session, 2)
        assert len(idle.rows("claim", worker="other", claim_id=uuid4())) == 1
        assert renewed(beater, job) == {job: "renewed"}


@pytest.mark.parametrize("limited", [False, True], ids=["behind a key", "under a limit on keys"])
def test_a_renewal_does_not_wait_for_claims_that_park_behind_its_job(db, session, clock, beater, limited):
    if limited:
        session.execute("select set_limit('key', 'x', 1)")
    (holder,) = enqueued(session, exclusive_key="x1")
    session.rows("claim", worker="w", claim_id=uuid4())
    (waiting,) = enqueued(session, exclusive_key="x2" if limited else "x1")
    clock.advance(10)
    parker = db.connect()
    with parker.transaction():
        assert parker.rows("claim", worker="v", claim_id=uuid4()) == []
        assert parker.job(waiting)["parked"] is True
        assert renewed(beater, holder) == {holder: "renewed"}
    assert seconds_left(session, clock, holder) == 15
    # The parking was not in vain, and the end of the holder puts the job back.
    assert session.column("complete", worker="w", ids=[holder], attempts=[1]) == [holder]
    assert session.job(waiting)["parked"] is False
    db.assert_consistent(session)


@pytest.mark.parametrize("limited", [False, True], ids=["behind a key", "under a limit on keys"])
def test_the_end_of_a_holder_does_not_wait_for_ever_for_a_claim_that_parks_behind_it(db, session, beater, limited):
    if limited:
        session.execute("select set_limit('key', 'x', 1)")
    (holder,) = enqueued(session, exclusive_key="x1")
    session.rows("claim", worker="w", claim_id=uuid4())
    (waiting,) = enqueued(session, exclusive_key="x2" if limited else "x1")
    parker = db.connect()
    with parker.transaction():
        assert parker.rows("claim", worker="v", claim_id=uuid4()) == []
        assert beater.column("complete", worker="w", ids=[holder], attempts=[1]) == [holder]
        assert beater.rows("upkeep", worker="w")[0].next_due <= 0.2  # there is something left to do
    assert session.job(waiting)["parked"] is True
    session.one("promote")
    assert session.job(waiting)["parked"] is False
    db.assert_consistent(session)


def test_a_renewal_lasts_as_long_as_the_lease_of_its_claim_whatever_the_kind_has_now(session, clock):
    job, unbounded, momentary = enqueued(session, 3)
    session.one("declare_kinds", kinds=["k"], lease_seconds=[30.0])
    session.rows("claim", worker="w", count=3)
    session.one("declare_kinds", kinds=["k"], lease_seconds=[5.0])
    for call in ("renew", "renew_each"):
        clock.advance(1)
        jobs = {job: 30.0, unbounded: float("inf"), momentary: 0.0}
        session.rows(call, worker="w", ids=list(jobs), attempts=[1] * 3, leases=list(jobs.values()))
        assert [seconds_left(session, clock, job) for job in jobs] == [30, 86400, 0.1]
        session.execute("update jobs set lease_expires_at = clock() + interval '9 s'")


def test_a_renewal_does_not_wait_for_a_lock_on_the_table_of_kinds(db, session, clock, beater):
    (job,) = enqueued(session)
    session.rows("claim", worker="w")
    clock.advance(10)
    with db.connect() as locker, locker.transaction():
        locker.execute("lock table kinds in access exclusive mode")
        answers = beater.rows("renew", worker="w", ids=[job], attempts=[1], leases=[15.0])
        assert [row.answer for row in answers] == ["renewed"]


def test_progress_and_notes_reach_their_own_job_only(session, clock):
    first, second = enqueued(session, 2)
    session.rows("claim", worker="w", count=2)
    tokens = {"worker": "w", "ids": [first, second], "attempts": [1, 1]}
    session.rows("renew", **tokens, progress="{0.5,null}", progress_notes="{half,not taken}")
    assert [session.job(job)["progress_note"] for job in (first, second)] == ["half", None]
    session.rows("renew", **tokens)
    assert session.job(first)["progress"] == 0.5


@pytest.mark.parametrize(
    ("locks", "answer"),
    [
        (["key share", "key share"], "renewed"),
        (["share", "key share"], "busy"),
        (["share", "share"], "busy"),
        (["update"], "busy"),
    ],
    ids=lambda value: value if isinstance(value, str) else " and ".join(value),
)
def test_a_renewal_waits_for_no_lock_on_its_row_whichever_and_however_many(db, session, beater, locks, answer):
    """Two at once make a multixact, and a session that waits for the row has its tuple lock."""
    job, other = enqueued(session, 2)
    session.rows("claim", worker="w", count=2)
    with ExitStack() as open_transactions, ThreadPoolExecutor(1) as pool:
        for lock in locks:
            locker = db.connect()
            open_transactions.enter_context(locker.transaction())
            locker.execute(f"select from jobs where id = %s for {lock}", [job])
        assert renewed(beater, job, other) == {job: answer, other: "renewed"}
        waiter = db.connect()
        waiting = pool.submit(waiter.execute, "select from jobs where id = %s for update", [job])
        db.until_blocked(session, [waiter.info.backend_pid])
        assert renewed(beater, job, other) == {job: answer, other: "renewed"}
        open_transactions.close()
        waiting.result()
    assert renewed(beater, job, other) == {job: "renewed", other: "renewed"}


def test_a_renewal_waits_a_second_for_a_lock_on_the_table(db, session):
    (job,) = enqueued(session)
    session.rows("claim", worker="w")
    with db.connect() as alterer, alterer.transaction():
        alterer.execute("lock table jobs in access exclusive mode")
        session.execute("set statement_timeout = '60s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            renewed(session, job)
    assert renewed(session, job) == {job: "renewed"}
