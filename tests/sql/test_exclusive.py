"""Exclusive keys: at most one job a key runs, and a backlog behind a busy key hides no other job."""

import pytest

from tests.sql.exclusive import ENDINGS, claimed, complete, current, parked


def test_of_several_jobs_of_a_key_only_the_best_is_claimed_and_the_rest_is_parked(db, session):
    low, high, middle = (session.one("enqueue", kind="k", exclusive_key="x", priority=p) for p in (1, 9, 5))
    free = session.one("enqueue", kind="k", priority=-1)
    assert claimed(session) == [high, free]
    assert parked(session) == sorted([low, middle])
    complete(session, high)
    assert parked(session) == [low]
    assert claimed(session) == [middle]
    complete(session, middle)
    assert claimed(session) == [low]
    assert current(session) == [low]


def test_a_backlog_behind_a_busy_key_hides_no_other_job(db, session):
    db.insert(session, 500, exclusive_key="'x'", priority="100")
    other = session.one("enqueue", kind="k", exclusive_key="y")
    free = session.one("enqueue", kind="k")
    (first,) = claimed(session, count=1)
    assert claimed(session, count=2) == [other, free]
    assert claimed(session, count=2) == []
    complete(session, first)
    assert len(claimed(session)) == 1


def test_one_claim_returns_as_many_jobs_of_different_keys_as_were_wanted_in_claim_order(db, session):
    """Less than wanted would mean to a worker that there is no more, and it would wait."""
    db.insert(session, 700, exclusive_key="case when n % 3 > 0 then 'x' || n end", priority="n % 2")
    best = session.values("select id from jobs order by -priority, id limit 500")
    assert claimed(session, count=500) == best
    assert len(claimed(session, count=500)) == 200


def test_a_claim_stops_at_a_thousand_keys_and_says_that_there_are_more(db, session):
    db.insert(session, 1200, exclusive_key="'x' || n")
    listener = db.connect()
    listener.execute("listen leasehold")
    assert len(claimed(session, count=5000)) == 1000
    assert [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)] == ["default"]
    assert len(claimed(session, count=5000)) == 200


def test_a_long_backlog_behind_a_busy_key_is_parked_by_several_claims_that_say_so(db, session):
    (first,) = db.insert(session, 1, exclusive_key="'x'")
    assert claimed(session) == [first]
    db.insert(session, 12_000, exclusive_key="'x'")
    free = session.one("enqueue", kind="k")
    listener = db.connect()
    listener.execute("listen leasehold")
    assert claimed(session) == []
    assert [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)] == ["default"]
    assert 0 < session.value("select count(*) from jobs where parked") <= 10_000
    assert claimed(session) == [free]
    assert session.value("select count(*) from jobs where parked") == 12_000
    db.assert_consistent(session)


@pytest.mark.parametrize("keys", [99, 100, 101, 350])
def test_any_number_of_keys_is_claimed_in_the_end(db, session, keys):
    db.insert(session, 2 * keys, exclusive_key=f"'x' || n % {keys}")
    taken = []
    while ids := claimed(session, count=1000):
        taken.extend(ids)
    assert len(taken) == keys
    db.assert_consistent(session)
    for job_id in taken:
        complete(session, job_id)
    while ids := claimed(session, count=1000):
        taken.extend(ids)
    assert len(set(taken)) == 2 * keys


def test_claim_job_skips_a_busy_key_and_parks_the_job(session):
    first, second = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert session.one("claim_job", job_id=first, worker="w") is True
    assert session.one("claim_job", job_id=second, worker="w") is False
    assert parked(session) == [second]
    assert claimed(session) == []
    complete(session, first)
    assert session.one("claim_job", job_id=second, worker="w") is True
    assert current(session) == [second]


def test_claim_job_takes_a_parked_job_of_an_idle_key_before_the_head(session):
    first, second, third = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [first]
    complete(session, first)  # the second is the head now, the third is parked
    assert parked(session) == [third]
    assert session.one("claim_job", job_id=third, worker="w") is True
    assert parked(session) == [second]
    complete(session, third)
    assert claimed(session) == [second]


@pytest.mark.parametrize("end", list(ENDINGS.values()), ids=list(ENDINGS))
def test_whichever_way_the_holder_ends_its_key_is_free_and_it_is_retired(db, session, end):
    holder = session.one("enqueue", kind="k", exclusive_key="x")
    assert claimed(session) == [holder]
    waiting = session.one("enqueue", kind="k", exclusive_key="x", priority=1)
    assert claimed(session) == []
    assert parked(session) == [waiting]
    end(session, holder)
    assert parked(session) == []
    assert claimed(session, count=1) == [waiting]
    assert current(session) == [waiting]
    db.assert_consistent(session)


@pytest.mark.parametrize("swept", [True, False])
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_an_expired_holder_does_not_block_its_key_swept_or_not(db, session, clock, swept, max_attempts):
    holder = session.one("enqueue", kind="k", exclusive_key="x", max_attempts=max_attempts)
    assert claimed(session) == [holder]
    waiting = session.one("enqueue", kind="k", exclusive_key="x", priority=1)
    assert claimed(session) == []
    clock.advance(15)
    if swept:
        assert session.one("sweep") == 1
        assert claimed(session) == [waiting]
    else:
        assert session.one("claim_job", job_id=waiting, worker="w") is True
    assert session.job(holder)["state"] == ("dead" if max_attempts == 1 else "queued")
    assert [a.outcome for a in session.attempts(holder)] == ["lease_expired"]
    assert current(session) == [waiting]
    db.assert_consistent(session)


def test_the_cancelled_head_of_a_queue_lets_the_next_one_out(db, session):
    first, second, third = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [first]
    complete(session, first)
    assert parked(session) == [third]
    assert session.one("cancel", id=second) is True
    session.one("promote")
    assert parked(session) == []
    assert claimed(session) == [third]


def test_a_retried_job_waits_for_its_key_like_any_other(session):
    dead = session.one("enqueue", kind="k", exclusive_key="x")
    session.one("cancel", id=dead)
    holder = session.one("enqueue", kind="k", exclusive_key="x")
    assert claimed(session) == [holder]
    assert session.one("retry", id=dead) is True
    assert claimed(session) == []
    complete(session, holder)
    assert claimed(session) == [dead]


def test_the_best_parked_job_is_locked_and_the_next_one_of_its_key_is_put_back(db, session):
    holder, best, next_best = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [holder]
    other = db.connect()
    with other.transaction():
        other.execute("select from jobs where id = %s for update", [best])
        complete(session, holder)
        assert parked(session) == [best]
        assert claimed(session) == [next_best]


def test_claim_job_of_a_job_that_is_over_does_not_take_its_key(db, session):
    over, holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [over]
    complete(session, over)
    assert claimed(session) == [holder]
    looker = db.connect()
    with looker.transaction():
        assert looker.one("claim_job", job_id=over, worker="v") is False
        assert looker.one("claim_job", job_id=holder, worker="v") is False
        assert session.value("select pg_try_advisory_xact_lock(exclusive_lock('x'))")
        complete(session, holder)
        assert parked(session) == []
    assert claimed(session) == [waiting]
