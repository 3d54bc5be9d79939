"""Limits on the beginning of exclusive keys: who is parked under them, and who is put back."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.sql.exclusive import ENDINGS
from tests.sql.limits import claimed, complete, parked, set_limit


@pytest.mark.parametrize("end", list(ENDINGS.values()), ids=list(ENDINGS))
def test_whichever_way_a_job_of_the_prefix_ends_the_best_waiting_one_takes_its_place(db, session, end):
    first, second, third = db.insert(session, 3, exclusive_key="'t/' || n")
    set_limit(session, "key", "t/", 1)
    assert claimed(session, count=1) == [first]
    assert claimed(session) == []
    assert parked(session) == [second, third]
    end(session, first)
    assert parked(session) == [third]
    assert len(claimed(session)) == 1


def test_a_key_obeys_every_prefix_that_it_begins_with(db, session):
    inner = db.insert(session, 4, exclusive_key="'t/u/' || n")
    outer = db.insert(session, 4, exclusive_key="'t/v/' || n")
    set_limit(session, "key", "t/", 3)
    set_limit(session, "key", "t/u/", 1)
    assert claimed(session) == [inner[0], *outer[:2]]
    complete(session, outer[0])
    assert claimed(session) == [outer[2]]
    complete(session, inner[0])
    assert claimed(session) == [inner[1]]
    complete(session, inner[1], outer[1], outer[2])
    assert set(claimed(session)) == {inner[2], outer[3]}


def test_a_key_is_still_exclusive_under_a_limit(db, session):
    ids = db.insert(session, 3, exclusive_key="'t/x'")
    other = db.insert(session, 1, exclusive_key="'t/y'")
    set_limit(session, "key", "t/", 2)
    assert claimed(session) == [ids[0], *other]
    complete(session, *other)
    assert claimed(session) == []
    complete(session, ids[0])
    assert claimed(session) == [ids[1]]


def test_siblings_of_one_key_do_not_keep_other_keys_waiting(db, session):
    many = db.insert(session, 50, exclusive_key="'t/x'", priority="9")
    others = db.insert(session, 5, exclusive_key="'t/y' || n")
    set_limit(session, "key", "t/", 3)
    assert claimed(session) == [many[0], *others[:2]]
    complete(session, others[0])
    # The places that siblings of a busy key cannot use go on to others, at the latest with the next claim.
    taken = claimed(session) + claimed(session)
    assert taken == [others[2]]


def test_a_job_that_no_worker_claims_does_not_keep_the_rest_of_the_prefix_waiting(db, session):
    first = db.insert(session, 1, exclusive_key="'t/0'")
    db.insert(session, 3, exclusive_key="'t/a' || n", queue="'no worker is here'", priority="9")
    waiting = db.insert(session, 3, exclusive_key="'t/b' || n")
    set_limit(session, "key", "t/", 1)
    here = {"queues": ["default"]}
    assert claimed(session, **here) == first
    assert claimed(session) == []  # parks both queues
    for job, following in zip(first + waiting, [*waiting, None], strict=True):
        complete(session, job)
        assert claimed(session, **here) == ([following] if following else [])


def test_a_backlog_of_many_keys_under_an_exhausted_prefix_hides_no_other_job(db, session):
    db.insert(session, 3000, exclusive_key="'t/' || n", priority="9")
    others = db.insert(session, 3)
    set_limit(session, "key", "t/", 1)
    (first,) = claimed(session, count=1)
    assert claimed(session, count=1) == others[:1]
    assert len(parked(session)) >= 2999
    assert claimed(session, count=2) == others[1:]
    complete(session, first)
    assert len(claimed(session)) == 1


def test_a_raised_limit_lets_in_as_many_as_it_has_room_for(db, session):
    ids = db.insert(session, 20, exclusive_key="'t/' || n")
    set_limit(session, "key", "t/", 2)
    assert claimed(session) == ids[:2]
    assert claimed(session) == []
    set_limit(session, "key", "t/", 7)
    assert parked(session) == ids[7:]
    assert claimed(session) == ids[2:7]


def test_a_job_is_not_parked_behind_an_end_that_is_under_way(db, session):
    """Its end would come before the parking and unpark no job."""
    first, second = db.insert(session, 2, exclusive_key="'t/' || n")
    set_limit(session, "key", "t/", 1)
    assert claimed(session, count=1) == [first]
    ender = db.connect()
    with ender.transaction():
        complete(ender, first)
        assert claimed(session) == []
        assert session.one("claim_job", job_id=second, worker="w") is False
        assert parked(session) == []
    assert claimed(session) == [second]


def test_an_end_waits_for_a_parking_behind_it_and_undoes_it(db, session):
    first, second = db.insert(session, 2, exclusive_key="'t/' || n")
    set_limit(session, "key", "t/", 1)
    assert claimed(session, count=1) == [first]
    parker, ender = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with parker.transaction():
            assert claimed(parker) == []
            assert parked(parker) == [second]
            ending = pool.submit(complete, ender, first)
            db.until_blocked(session, [ender.info.backend_pid])
        ending.result()
    assert parked(session) == []


def test_the_sweep_puts_back_what_a_broken_off_transaction_left_behind(db, session):
    first, second = db.insert(session, 2, exclusive_key="'t/' || n")
    set_limit(session, "key", "t/", 1)
    assert claimed(session) == [first]
    assert claimed(session) == []
    canceller = db.connect()
    with canceller.transaction(force_rollback=True):
        assert canceller.one("cancel", id=second) is True
        complete(session, first)
    session.one("sweep")
    assert claimed(session) == [second]
