"""Laws of bulk changes: bounded, as if each job had been changed by itself, and without waiting."""

import psycopg
import pytest

from tests.sql.operations import die, variety


def change(session, function, **arguments):
    (row,) = session.rows(function, **arguments)
    return tuple(row)


def test_retry_many_retries_the_dead_jobs_that_match(session, db):
    jobs = variety(session)
    fits = {"error_class": "ValueError"}
    before = session.everything()
    assert change(session, "retry_many", filter=fits, dry_run=True) == (2, 0, False)
    assert session.everything() == before
    assert change(session, "retry_many", filter=fits) == (2, 2, False)
    assert [session.job(job)["state"] for job in jobs["dead"]] == ["queued", "queued", "dead"]
    assert session.job(jobs["dead"][0])["retry_count"] == 0
    assert change(session, "retry_many", filter=fits) == (0, 0, False)
    db.assert_consistent(session)


def test_retry_many_takes_no_more_than_its_cap_and_says_that_there_are_more(session, db):
    db.insert(
        session,
        25,
        state="'dead'",
        finished_at="now() - n * interval '1 s'",
        reason="'fatal'",
        attempt="0",
        queue="'mail'",
    )
    waiting = db.connect()
    waiting.execute("listen leasehold")
    assert change(session, "retry_many", filter={}, max=10) == (10, 10, True)
    assert [n.payload for n in waiting.notifies(timeout=30, stop_after=1)] == ["mail"]
    assert change(session, "retry_many", filter={}, max=10) == (10, 10, True)
    assert change(session, "retry_many", filter={}, max=10) == (5, 5, False)
    assert change(session, "retry_many", filter={"kind": "other"}, max=10, scan=3) == (0, 0, False)


def test_a_bulk_change_that_looked_at_its_budget_says_that_there_may_be_more(session, db):
    db.insert(session, 25, state="'dead'", finished_at="now()", reason="'fatal'")
    assert change(session, "retry_many", filter={"kind": "other"}, scan=10) == (0, 0, True)
    db.insert(session, 25)
    assert change(session, "cancel_many", filter={"kind": "other"}, scan=10) == (0, 0, True)


def test_cancel_many_ends_every_job_that_fits_and_has_not_ended(session, db):
    jobs = variety(session)
    live = [job for state in ("created", "queued", "running", "retry") for job in jobs[state]]
    over = {job: session.job(job) for state in ("success", "dead") for job in jobs[state]}
    assert change(session, "cancel_many", filter={}, dry_run=True) == (len(live), 0, False)
    assert change(session, "cancel_many", filter={}, why="by mistake") == (len(live), len(live), False)
    for job in live:
        row = session.job(job)
        assert (row["state"], row["reason"], row["reason_detail"]) == ("dead", "cancelled", "by mistake")
    assert {job: session.job(job) for job in over} == over
    db.assert_consistent(session)


def test_cancel_many_obeys_its_filter(session, db):
    jobs = variety(session)
    assert change(session, "cancel_many", filter={"queue": "mail", "state": "queued", "kind": "l"}) == (2, 2, False)
    assert change(session, "cancel_many", filter={"state": "retry"}) == (1, 1, False)
    assert session.job(jobs["retry"][0])["reason"] == "cancelled"
    db.assert_consistent(session)


def test_cancelling_the_holders_of_keys_lets_their_siblings_go_on(session, db):
    for key in ("x", "y"):
        for _ in range(3):
            session.one("enqueue", kind="k", exclusive_key=key)
    assert len(session.column("claim", worker="w", count=9)) == 2
    assert change(session, "cancel_many", filter={"state": "running"}) == (2, 2, False)
    db.assert_consistent(session)
    assert len(session.column("claim", worker="w", count=9)) == 2


@pytest.mark.parametrize(
    ("function", "state"), [("retry_many", "queued"), ("cancel_many", "dead"), ("cancel_many", "success")]
)
def test_a_bulk_change_of_a_state_that_it_is_not_for_is_refused(shared, function, state):
    for wrong in (state, ["running", "dead"]):
        with pytest.raises(psycopg.Error) as refused:
            shared.rows(function, filter={"state": wrong})
        assert refused.value.sqlstate == "LH003"


@pytest.mark.parametrize("function", ["retry_many", "cancel_many"])
def test_a_bulk_change_leaves_out_what_another_session_is_writing_and_does_not_wait(session, db, function):
    jobs = [die(session) if function == "retry_many" else session.one("enqueue", kind="k") for _ in range(3)]
    other = db.connect()
    other.execute("begin")
    other.execute("select from jobs where id = %s for update", [jobs[1]])
    session.execute("set lock_timeout = '2s'")  # a call that waits raises
    assert change(session, function, filter={}) == (3, 2, True)
    other.execute("commit")
    assert change(session, function, filter={}) == (1, 1, False)


def test_bulk_changes_claims_and_ends_at_the_same_time_lose_nothing_and_never_wait_for_each_other(session, db):
    db.insert(session, 600, exclusive_key="case when n % 3 = 0 then 'x' || n % 7 end")

    def act(mine, place):
        for _ in range(40):
            if place % 3 == 0:
                mine.rows("cancel_many", filter={}, max=5)
            elif place % 3 == 1:
                mine.rows("retry_many", filter={}, max=5)
            else:
                claimed = mine.rows("claim", worker=f"w{place}", kinds=["k"], count=3)
                ids = sorted(row.id for row in claimed)
                attempts = [next(row.attempt for row in claimed if row.id == job) for job in ids]
                mine.column("complete", worker=f"w{place}", ids=ids, attempts=attempts)

    db.crowd(9, act)
    assert session.value("select count(*) from jobs") == 600
    db.assert_consistent(session)
    assert session.value("select count(*) from jobs where state = 'success'") > 0
