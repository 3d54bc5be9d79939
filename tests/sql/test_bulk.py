"""Laws of bulk changes: bounded, as if each job had been changed by itself, and without waiting."""

import psycopg
import pytest

from tests.sql.operations import die, variety


def change(session, function, **arguments):
    (row,) = session.rows(function, **arguments)
    assert row.capped or row.cursor_here is None
    return row.matched, row.changed, row.capped


def carry_on(session, function, **arguments):
    """Call it with the cursor of the call before until one comes to the end; return what each call answered."""
    (row,) = session.rows(function, **arguments)
    answers = [row]
    while row.cursor_here is not None:
        assert len(answers) < 100
        (row,) = session.rows(function, **arguments, cursor=row.cursor_here)
        answers.append(row)
    return answers


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


BEHIND = {
    "wait": {"state": "'created'", "run_at": "'2100-01-01'"},
    "wait to be retried": {"state": "'retry'", "run_at": "'2100-01-01'", "retry_count": "1", "attempt": "1"},
    "queued": {},
    "queued, with keys": {"exclusive_key": "'x' || n"},
    "parked": {"exclusive_key": "'x'", "parked": "true"},
    "running": {
        "state": "'running'", "lease_owner": "'w'", "attempt": "1", "claimed_at": "now()",
        "lease_expires_at": "now() + interval '1 day'",
    },
    "dead": {"state": "'dead'", "finished_at": "now()", "reason": "'fatal'"},
}  # fmt: skip


@pytest.mark.parametrize("state", BEHIND)
def test_a_bulk_change_that_is_cut_goes_on_behind_what_it_has_read(session, db, state):
    """However many jobs that do not fit come first, and though all of them have the same time."""
    function = "retry_many" if state == "dead" else "cancel_many"
    mine = db.insert(session, 3, **{**BEHIND[state], "kind": "'mine'", "queue": "'secret queue'"})
    db.insert(session, 35, **{**BEHIND[state], "queue": "'a secret queue'", "kind": "'a secret kind'"})
    db.insert(session, 35, **{**BEHIND[state], "queue": "'x secret queue'", "kind": "'x secret kind'"})
    if state == "dead":
        session.execute("update jobs set finished_at = finished_at - interval '1 hour' where kind = 'mine'")
    answers = carry_on(session, function, filter={"kind": "mine"}, scan=10)
    assert sum(row.changed for row in answers) == 3
    assert [row.capped for row in answers] == [True] * (len(answers) - 1) + [False]
    assert not any("secret" in row.cursor_here or "x" in row.cursor_here for row in answers[:-1])
    after = "queued" if state == "dead" else "dead"
    assert {session.job(job)["state"] for job in mine} == {after}
    assert session.value("select count(*) from jobs where kind <> 'mine' and state = %s", after) == 0


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_a_dry_run_that_goes_on_counts_each_job_once(session, db, most):
    variety(session)
    for columns in BEHIND.values():
        if columns not in (BEHIND["dead"], BEHIND["parked"]):
            db.insert(session, 3, **columns, queue="'q' || n")
    for function, states in (("cancel_many", ("created", "retry", "queued", "running")), ("retry_many", ("dead",))):
        expected = session.value("select count(*) from jobs where accepted and state::text = any(%s)", list(states))
        answers = carry_on(session, function, filter={}, max=most, scan=2, dry_run=True)
        assert sum(row.matched for row in answers) == expected
        assert max(row.matched for row in answers) <= most


def test_a_bulk_change_goes_on_though_the_job_where_it_was_cut_is_gone(session, db):
    db.insert(session, 20)
    (row,) = session.rows("cancel_many", filter={"kind": "other"}, scan=10)
    session.execute("delete from jobs")
    (job,) = db.insert(session, 1, kind="'other'")
    (row,) = session.rows("cancel_many", filter={"kind": "other"}, cursor=row.cursor_here)
    assert (row.changed, row.capped, row.cursor_here, session.job(job)["state"]) == (1, False, None, "dead")


@pytest.mark.parametrize("cursor", ["5", "[]", "{}", '["x"]', '["ids"]', '["finished"]', "[null]", "null"])
def test_a_cursor_of_another_search_is_refused(shared, cursor):
    with pytest.raises(psycopg.Error) as refused:
        shared.rows("cancel_many", filter={}, cursor=cursor)
    assert refused.value.sqlstate == "LH003"


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
    session.one("promote")  # upkeep, which the cancel wakes
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
