"""Transactions that are left open: what they hold up, and what goes on beside them."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.sql.limits import complete, set_limit

HELD = {"queue": "held", "kind": "held", "key": "held/"}
"""A limit of each scope."""
UNDER = {"queue": {"queue": "held"}, "kind": {"kind": "held"}, "key": {"exclusive_key": "held/a"}}
"""What makes a job come under it."""


def enqueued(session, count=1, **intent):
    return [session.one("enqueue", **({"kind": "k"} | intent)) for _ in range(count)]


def claimed(session, function="claim", worker="w", count=10, **options):
    return [row.id for row in session.rows(function, worker=worker, count=count, claim_id=uuid4(), **options)]


@pytest.mark.parametrize("scope", HELD)
@pytest.mark.parametrize("function", ["claim", "claim_each"])
def test_a_claim_left_open_holds_up_only_the_jobs_of_its_limit(db, session, scope, function):
    set_limit(session, scope, HELD[scope], 5)
    set_limit(session, "queue", "another", 5)
    enqueued(session, **UNDER[scope])
    sleeper = db.connect()
    with sleeper.transaction():
        assert len(claimed(sleeper, "claim", "v", count=1)) == 1
        (held,) = enqueued(session, **({"exclusive_key": "held/b"} if scope == "key" else UNDER[scope]))
        others = enqueued(session, 2) + enqueued(session, 2, queue="another") + enqueued(session, exclusive_key="free")
        assert sorted(claimed(session, function)) == sorted(others)
        assert session.one("claim_job", job_id=held, worker="w") is False
        assert session.job(held)["state"] == "queued"
    assert claimed(session, function) == [held]
    db.assert_consistent(session)


@pytest.mark.parametrize("function", ["claim", "claim_each"])
def test_a_place_that_a_claim_left_open_may_have_is_given_to_no_other(db, session, function):
    set_limit(session, "global", "", 1)
    enqueued(session, 3)
    sleeper = db.connect()
    with sleeper.transaction():
        (first,) = claimed(sleeper, "claim", "v", count=1)
        assert claimed(session, function) == []
    assert claimed(session, function) == []
    complete(session, first, worker="v")
    assert len(claimed(session, function)) == 1


@pytest.mark.parametrize("scope", HELD)
def test_a_claim_that_ends_soon_is_waited_for(db, session, scope):
    session.execute("alter function wait_for_limits(limits[]) set lock_timeout = '60s'")
    set_limit(session, scope, HELD[scope], 5)
    enqueued(session, **UNDER[scope])
    holder, claimer = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with holder.transaction():
            holder.execute("select from limits for no key update")
            claim = pool.submit(claimed, claimer)
            db.until_blocked(session, [claimer.info.backend_pid])
        assert len(claim.result()) == 1


@pytest.mark.parametrize("scope", HELD)
def test_explain_names_the_session_that_keeps_a_limit(db, session, scope):
    set_limit(session, scope, HELD[scope], 5)
    enqueued(session, **UNDER[scope])
    session.rows("start_worker", worker="w", kinds=["k", "held"])
    sleeper = db.connect()
    with sleeper.transaction():
        assert len(claimed(sleeper, "claim", "v", count=1)) == 1
        (held,) = enqueued(session, **({"exclusive_key": "held/b"} if scope == "key" else UNDER[scope]))
        pid = f"pid {sleeper.info.backend_pid}"
        db.until(lambda: any(pid in row.detail for row in session.rows("explain", job_id=held)), "it is named")
        assert session.rows("explain", job_id=enqueued(session)[0]) == []
    assert session.rows("explain", job_id=held) == []
