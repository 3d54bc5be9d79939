"""Only the attempt that holds the lease may write; every other report is refused and changes nothing."""

from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

WORKER = "w"


def one_report(job, worker, attempt, claim_id):
    return {"worker": worker, "ids": [job], "attempts": [attempt], "claim_ids": [claim_id] if claim_id else None}


def heartbeat(s, job, worker, attempt, claim_id=None):
    return s.column("heartbeat", **one_report(job, worker, attempt, claim_id)) == [job]


def complete(s, job, worker, attempt, claim_id=None):
    return s.column("complete", **one_report(job, worker, attempt, claim_id)) == [job]


def release(s, job, worker, attempt, claim_id=None):
    return s.column("release", **one_report(job, worker, attempt, claim_id)) == [job]


def fail(s, job, worker, attempt, claim_id=None):
    rows = s.rows("fail", worker=worker, id=job, attempt=attempt, claim_id=claim_id, retry_after=5)
    return bool(rows) and rows[0][0] is not None


def fail_many(s, job, worker, attempt, claim_id=None):
    failure = {"id": str(job), "attempt": attempt, "retry_after": 5}
    if claim_id:
        failure["claim_id"] = str(claim_id)
    return [row.id for row in s.rows("fail_many", worker=worker, failures=[failure])] == [job]


def renew(s, job, worker, attempt, claim_id=None):
    (row,) = s.rows("renew", **one_report(job, worker, attempt, claim_id))
    return row == (job, "renewed")


def note_progress(s, job, worker, attempt, claim_id=None):
    report = one_report(job, worker, attempt, claim_id)
    return s.rows("renew", **report, progress="{0.5}", progress_notes="{half}") == [(job, "renewed")]


def snooze(s, job, worker, attempt, claim_id=None):
    rows = s.rows("fail", worker=worker, id=job, attempt=attempt, claim_id=claim_id, outcome="snoozed", retry_after=5)
    return bool(rows) and rows[0][0] is not None


def add_logs(s, job, worker, attempt, claim_id=None):
    report = one_report(job, worker, attempt, claim_id) | {"claim_ids": [claim_id]}
    return s.column("add_logs", **report, lines=[Jsonb([["2030-01-01", "info", "said"]])]) == [job]


REPORTS = [heartbeat, renew, complete, fail, fail_many, snooze, release]
OWNER_CALLS = [*REPORTS, note_progress, add_logs]
every_report = pytest.mark.parametrize("report", REPORTS, ids=[report.__name__ for report in REPORTS])
every_owner_call = pytest.mark.parametrize("report", OWNER_CALLS, ids=[report.__name__ for report in OWNER_CALLS])


@pytest.fixture
def session(shared):
    return shared


def running(session, worker=WORKER):
    """A running job of the worker's, with its claim."""
    job, claim_id = session.one("enqueue", kind="k"), uuid4()
    assert session.one("claim_job", job_id=job, worker=worker, claim_id=claim_id) is True
    return job, claim_id


def assert_refused(session, report, *token):
    before = session.everything()
    assert report(session, *token) is False
    assert session.everything() == before


def expire_and_sweep(session, job):
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [job])
    assert session.one("sweep") == 1


@every_report
def test_the_owner_with_the_right_token_is_believed(session, report):
    job, claim_id = running(session)
    assert report(session, job, WORKER, 1, claim_id) is True


@every_report
def test_another_worker_is_refused(session, report):
    job, claim_id = running(session)
    assert_refused(session, report, job, "other", 1)
    assert_refused(session, report, job, "other", 1, claim_id)


@every_report
def test_a_stale_owner_is_refused(session, report):
    job, claim_id = running(session)
    expire_and_sweep(session, job)
    assert_refused(session, report, job, WORKER, 1, claim_id)
    assert session.one("claim_job", job_id=job, worker="next") is True
    assert_refused(session, report, job, WORKER, 1, claim_id)
    assert_refused(session, report, job, WORKER, 2)


@every_report
def test_a_stale_attempt_of_the_same_worker_is_refused(session, report):
    job, claim_id = running(session)
    expire_and_sweep(session, job)
    assert session.one("claim_job", job_id=job, worker=WORKER) is True
    assert_refused(session, report, job, WORKER, 1)
    assert_refused(session, report, job, WORKER, 1, claim_id)
    assert_refused(session, report, job, WORKER, 3)
    assert report(session, job, WORKER, 2) is True


@every_report
def test_a_stale_claim_is_refused_though_worker_and_attempt_are_right(session, report):
    job, _ = running(session)
    assert_refused(session, report, job, WORKER, 1, uuid4())


@every_report
def test_an_unknown_job_is_refused(session, report):
    running(session)
    assert_refused(session, report, uuid4(), WORKER, 1)


@every_report
def test_a_cancelled_job_is_refused(session, report):
    job, claim_id = running(session)
    assert session.one("cancel", id=job) is True
    assert_refused(session, report, job, WORKER, 1, claim_id)


@pytest.mark.parametrize("report", [heartbeat, fail, fail_many, release])
def test_a_completed_job_is_refused_to_every_other_report(session, report):
    job, claim_id = running(session)
    assert complete(session, job, WORKER, 1, claim_id)
    assert_refused(session, report, job, WORKER, 1, claim_id)


@pytest.mark.parametrize("report", [heartbeat, complete, release])
@pytest.mark.parametrize("fatal", [True, False])
def test_a_failed_attempt_is_refused_to_every_other_report(session, report, fatal):
    job, claim_id = running(session)
    session.rows("fail", worker=WORKER, id=job, attempt=1, fatal=fatal)
    assert_refused(session, report, job, WORKER, 1, claim_id)


@every_report
def test_a_released_job_is_refused(session, report):
    job, claim_id = running(session)
    assert release(session, job, WORKER, 1, claim_id)
    assert_refused(session, report, job, WORKER, 1, claim_id)


@pytest.mark.parametrize("report", [complete, fail, fail_many])
@pytest.mark.parametrize("with_claim", [True, False])
def test_a_repeated_report_succeeds_again_and_writes_nothing(session, report, with_claim):
    job, claim_id = running(session)
    token = (job, WORKER, 1, claim_id if with_claim else None)
    assert report(session, *token) is True
    before = session.everything()
    assert report(session, *token) is True
    assert report(session, *token) is True
    assert session.everything() == before
    for stale in ((job, "other", 1), (job, WORKER, 2), (job, WORKER, 1, uuid4())):
        assert_refused(session, report, *stale)


def test_a_repeated_batch_returns_those_that_count_and_leaves_out_the_others(session):
    (mine, _), (done, _), (lost, _) = running(session), running(session), running(session)
    complete(session, done, WORKER, 1)
    expire_and_sweep(session, lost)
    given = session.column("complete", worker=WORKER, ids=[mine, done, lost, uuid4()], attempts=[1, 1, 1, 1])
    assert sorted(given) == sorted([mine, done])
    assert session.job(lost)["state"] == "queued"


def test_a_repeated_failure_still_counts_when_the_job_runs_again(session):
    job, _ = running(session)
    session.rows("fail", worker=WORKER, id=job, attempt=1, retry_after=0)
    session.one("promote")
    assert session.one("claim_job", job_id=job, worker="next") is True
    before = session.everything()
    assert session.one("fail", worker=WORKER, id=job, attempt=1, retry_after=0) == "running"
    assert session.everything() == before


@pytest.mark.parametrize("with_claim", [True, False])
@every_owner_call
def test_an_expired_lease_can_do_nothing_swept_or_not(session, report, with_claim):
    job, claim_id = running(session)
    token = (job, WORKER, 1, claim_id if with_claim else None)
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [job])
    assert_refused(session, report, *token)
    assert session.one("sweep") == 1
    assert_refused(session, report, *token)


@pytest.mark.parametrize("report", [complete, fail, fail_many, snooze])
def test_what_was_reported_in_time_is_repeated_whenever_that_is(session, report):
    job, claim_id = running(session)
    assert report(session, job, WORKER, 1, claim_id) is True
    session.execute("update jobs set claimed_at = claimed_at - interval '1 hour' where id = %s", [job])
    before = session.everything()
    assert report(session, job, WORKER, 1, claim_id) is True
    assert session.everything() == before


def test_a_repeated_claim_does_not_give_what_has_expired_meanwhile(session):
    claim_id = uuid4()
    kept, expired = session.one("enqueue", kind="repeated"), session.one("enqueue", kind="repeated")
    again = {"worker": "repeater", "kinds": ["repeated"], "count": 2, "claim_id": claim_id}
    assert {row.id for row in session.rows("claim", **again)} == {kept, expired}
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [expired])
    assert [row.id for row in session.rows("claim", **again)] == [kept]


def test_one_guard_decides_about_every_owner_call(db):
    """Without its look at the expiry each of them would write for an expired lease."""
    session = db.connect()
    session.mutate("owns", " and j.lease_expires_at > owns.at", "")
    for report in OWNER_CALLS:
        job, claim_id = running(session)
        session.execute("update jobs set lease_expires_at = clock() where id = %s", [job])
        assert report(session, job, WORKER, 1, claim_id) is True, report.__name__


@pytest.mark.parametrize(
    ("function", "guard", "report"),
    [
        ("succeed", "owns(j, worker, t.attempt,", complete),
        ("release_v1", "owns(j, worker, t.attempt,", release),
        ("renew_v1", "owns(j, worker, t.attempt,", renew),
    ],
)
def test_a_stale_attempt_catches_a_guard_without_the_attempt(db, function, guard, report):
    session = db.connect()
    job, _ = running(session)
    expire_and_sweep(session, job)
    assert session.one("claim_job", job_id=job, worker=WORKER) is True
    session.mutate(function, guard, guard.replace("t.attempt", "j.attempt"))
    before = session.everything()
    report(session, job, WORKER, 1)
    assert session.everything() != before
