"""Exclusive keys under concurrency: two jobs of a key never run together, and no parked job is forgotten."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.sql.exclusive import ENDINGS, LOG, claimed, complete, current, overlaps, parked


def finish(session, job_id, worker):
    """As a worker does it: a report whose row is locked is repeated."""
    while True:
        try:
            return complete(session, job_id, worker)
        except psycopg.errors.LockNotAvailable:
            continue


@pytest.mark.parametrize("jobs", [2, 20])
def test_fifty_claimers_never_run_two_jobs_of_one_key_and_finish_them_all(db, session, jobs):
    """At no moment is a job parked that neither a running sibling, nor a runnable one, nor upkeep will put back."""
    session.execute(LOG)
    session.one("declare_kinds", kinds=["k"], lease_seconds=[600])
    ids = db.insert(session, jobs, exclusive_key="'x'")
    others = db.insert(session, 10, exclusive_key="'y' || n") + db.insert(session, 10)
    wanted = set(ids + others)

    def work(claimer, place):
        worker, chance, done = f"w{place}", random.Random(place), []
        end = time.monotonic() + 120
        while left := claimer.value("select count(*) from jobs where state <> 'success'"):
            assert time.monotonic() < end, f"{left} jobs do not finish"
            if place == 1:
                assert claimer.value("select forgotten_jobs(100)") == []
            if place % 3:
                mine = claimed(claimer, worker, chance.randint(1, 5))
            else:
                mine = [job for job in chance.sample(ids, 2) if claimer.one("claim_job", job_id=job, worker=worker)]
            for job_id in mine:
                finish(claimer, job_id, worker)
            done.extend(mine)
            if not mine and chance.random() < 0.1:
                claimer.one("promote")
        return done

    done = [job for jobs in db.crowd(50, work) for job in jobs]
    assert len(done) == len(wanted)
    assert set(done) == wanted
    assert overlaps(session) == 0
    assert current(session) == []
    db.assert_consistent(session)


def test_the_log_catches_a_claim_that_does_not_settle_keys(db, session):
    session.execute(LOG)
    session.execute("drop index jobs_current")
    session.mutate("settle_exclusive", "with head as materialized", "return candidates;\n  with head as materialized")
    db.insert(session, 2, exclusive_key="'x'")
    assert len(claimed(session)) == 2
    assert overlaps(session) == 1


def stop_before_settling(session, gate) -> None:
    """Every settling waits at the gate, with its candidates locked."""
    session.mutate(
        "settle_exclusive",
        "with head as materialized",
        f"perform {gate.SQL};\n  with head as materialized",
    )


@pytest.mark.parametrize("end", list(ENDINGS.values()), ids=list(ENDINGS))
def test_a_parked_job_that_is_being_looked_at_while_its_holder_ends_is_not_forgotten(db, session, gate, end):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    assert parked(session) == [waiting]
    stop_before_settling(session, gate)
    looker, ender = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool, ender.transaction():
        with gate:
            look = pool.submit(looker.one, "claim_job", job_id=waiting, worker="v")
            gate.wait_for(1)
            end(ender, holder)  # cannot lock the waiting job: the looker has it
        assert look.result() is False  # the holder has not committed its end
    session.one("promote")  # where the end could not wait for the looker, it has noted the key
    assert parked(session) == []
    db.assert_consistent(session)


def test_a_sibling_that_turns_up_during_a_claim_is_not_taken_as_well(db, session, gate):
    """A claim that wants more looks again, and must remember the keys that it has just taken."""
    first = session.one("enqueue", kind="k", exclusive_key="x")
    session.mutate("settle_exclusive", "\n  return array(", f"\n  perform {gate.SQL};\n  return array(")
    claimer = db.connect()
    with ThreadPoolExecutor(1) as pool:
        with gate:
            claim = pool.submit(claimed, claimer)
            gate.wait_for(1)
            second = session.one("enqueue", kind="k", exclusive_key="x")
        assert claim.result() == [first]
    db.assert_consistent(session)
    complete(session, first)
    assert claimed(session) == [second]


def test_a_rolled_back_cancel_of_a_parked_job_does_not_leave_it_behind(db, session):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    canceller = db.connect()
    with canceller.transaction(force_rollback=True):
        assert canceller.one("cancel", id=waiting) is True
        complete(session, holder)
    session.one("promote")
    db.assert_consistent(session)
    assert claimed(session) == [waiting]


def test_a_claim_job_that_dies_does_not_leave_its_job_behind(db, session, gate):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    stop_before_settling(session, gate)
    looker = db.connect()
    with ThreadPoolExecutor(1) as pool, gate:
        look = pool.submit(looker.one, "claim_job", job_id=waiting, worker="v")
        gate.wait_for(1)
        complete(session, holder)
        session.execute("select pg_cancel_backend(%s)", [looker.info.backend_pid])
        assert isinstance(look.exception(), psycopg.errors.QueryCanceled)
    session.one("promote")
    db.assert_consistent(session)


UNFINISHED = "select count(*) from jobs where state not in ('success', 'dead')"
ENDS = {
    "complete": (8, lambda s, w, job, n: s.rows("complete", worker=w, ids=[job], attempts=[n])),
    "fail": (2, lambda s, w, job, n: s.rows("fail", worker=w, id=job, attempt=n, retry_after=0.01)),
    "fatal": (1, lambda s, w, job, n: s.rows("fail", worker=w, id=job, attempt=n, fatal=True)),
    "snooze": (
        1,
        lambda s, w, job, n: s.rows("fail", worker=w, id=job, attempt=n, outcome="snoozed", retry_after=0.01),
    ),
    "release": (2, lambda s, w, job, n: s.rows("release", worker=w, ids=[job], attempts=[n])),
    "cancel": (1, lambda s, _w, job, _n: s.rows("cancel", id=job)),
    "abandon": (1, lambda _s, _w, _job, _n: None),  # the lease expires
}


def take_some(session, chance, worker, ids) -> list:
    if chance.random() < 0.4:
        job = chance.choice(ids)
        won = session.one("claim_job", job_id=job, worker=worker)
        return [(row.id, row.attempt) for row in session.rows("owned", worker=worker) if row.id == job] if won else []
    return [(row.id, row.attempt) for row in session.rows("claim", worker=worker, count=chance.randint(1, 9))]


def finish_all(session, place, ids, end) -> None:
    """Claim and end jobs in every way there is, until none is left."""
    worker, chance = f"w{place}", random.Random(place)
    weights = [weight for weight, _ in ENDS.values()]
    while left := session.value(UNFINISHED):
        assert time.monotonic() < end, f"{left} jobs do not finish"
        whim = chance.random()
        if whim < 0.1:
            session.one("cancel", id=chance.choice(ids))
        elif whim < 0.3:
            session.one("sweep", max=chance.randint(1, 20))
            session.one("promote")
        for job, attempt in take_some(session, chance, worker, ids):
            _, finish = chance.choices(list(ENDS.values()), weights)[0]
            finish(session, worker, job, attempt)


def test_no_job_stays_parked_for_ever_whatever_its_siblings_do(db, session):
    session.execute(LOG)
    session.one("declare_kinds", kinds=["k"], lease_seconds=[0.1])
    ids = db.insert(session, 300, exclusive_key="'x' || n % 7", priority="n % 3", max_attempts="30000")
    ids += db.insert(session, 50)
    end = time.monotonic() + 40
    db.crowd(24, lambda s, place: finish_all(s, place, ids, end))
    assert session.value(UNFINISHED) == 0
    assert overlaps(session) == 0
    db.assert_consistent(session)


def test_a_job_that_ends_under_an_old_snapshot_leaves_none_of_its_key_behind(db, session):
    """What was parked after the snapshot is not seen by it: upkeep puts it back."""
    first = session.one("enqueue", kind="k", exclusive_key="x")
    assert session.one("claim_job", job_id=first, worker="w") is True
    old = db.connect()
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with old.transaction():
        old.execute("select 1 from jobs limit 1")
        second = session.one("enqueue", kind="k", exclusive_key="x")
        assert session.column("claim", worker="v", count=10) == []
        assert session.job(second)["parked"]
        assert old.column("complete", worker="w", ids=[first], attempts=[1]) == [first]
    session.one("promote")
    assert session.column("claim", worker="v", count=10) == [second]


def test_no_text_of_a_key_is_taken_for_something_else_that_upkeep_has_to_check(db, session):
    """Limits that claims have waited for were once noted beside keys, as texts that begin like this one."""
    session.one("set_limit", scope="queue", name="q", max_running=5)
    key = "\x01limit queue q"
    first, second = (session.one("enqueue", kind="k", exclusive_key=key) for _ in range(2))
    assert claimed(session) == [first]
    assert parked(session) == [second]
    with db.connect() as other, other.transaction():  # so that the key has to be noted for later
        other.execute("select from jobs where id = %s for update", [second])
        complete(session, first)
    session.rows("upkeep")
    assert claimed(session) == [second]


def advisory_locks(session, backend) -> int:
    return session.value(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = %s", backend.info.backend_pid
    )


def test_a_report_of_many_keys_locks_500_of_them_and_upkeep_frees_the_rest(db, session):
    """Each lock takes a place in a table that the whole server shares."""
    db.insert(session, 2000, exclusive_key="'x' || n % 1000")
    first = claimed(session, count=1000)
    assert len(first) == 1000
    assert len(parked(session)) == 1000
    reporter, listener = db.connect(), db.connect()
    listener.execute("listen leasehold")
    with reporter.transaction():
        assert len(reporter.column("complete", worker="w", ids=first, attempts=[1] * 1000)) == 1000
        assert advisory_locks(session, reporter) == 500
    assert "@due" in [notify.payload for notify in listener.notifies(timeout=60, stop_after=2)]
    assert session.value("select count(*) from unpark_later") == 500
    assert len(parked(session)) == 500
    assert session.value("select next_due from upkeep()") is None
    assert session.value("select count(*) from unpark_later") == 0
    assert parked(session) == []
    assert len(claimed(session, count=1000)) == 1000
    db.assert_consistent(session)


def test_the_end_of_a_job_whose_key_is_in_use_wakes_upkeep(db, session):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    looker, listener = db.connect(), db.connect()
    listener.execute("listen leasehold")
    with looker.transaction():
        assert looker.one("claim_job", job_id=waiting, worker="v") is False
        complete(session, holder)
    assert [notify.payload for notify in listener.notifies(timeout=60, stop_after=1)] == ["@due"]
    assert session.value("select next_due from upkeep()") is None
    assert claimed(session) == [waiting]
