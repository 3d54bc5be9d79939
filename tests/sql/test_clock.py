"""clock() is the only clock, and lease_seconds() the only source of a lease's length."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4


def test_a_job_is_eligible_when_the_clock_says_so(session, clock):
    job = session.one("enqueue", kind="k", run_after="1 hour")
    assert session.job(job)["run_at"] == clock.now + timedelta(hours=1)
    assert session.one("next_due") == 3600
    clock.advance(3599)
    assert session.one("promote") == 0
    assert session.one("claim_job", job_id=job, worker="w") is False
    clock.advance(1)
    assert session.one("next_due") == 0
    assert session.one("promote") == 1
    assert session.column("claim", worker="w") == [job]
    assert session.job(job)["claimed_at"] == clock.now


def test_a_queued_job_whose_time_has_not_come_is_not_claimed(db, session, clock):
    (job,) = db.insert(session, 1, run_at="clock() + interval '1 minute'")
    clock.advance(59)
    assert session.rows("claim", worker="w") == []
    assert session.one("claim_job", job_id=job, worker="w") is False
    clock.advance(1)
    assert session.column("claim", worker="w") == [job]


def test_a_submitted_job_waits_for_its_acceptance_and_then_for_its_time(session, clock):
    job = session.one("submit", kind="k", run_after="1 minute")
    assert session.one("accept", id=job) == "created"
    clock.advance(60)
    assert session.one("promote") == 1
    other = session.one("submit", kind="k")
    clock.advance(3600)
    assert session.one("promote") == 0
    assert session.job(other)["state"] == "created"
    assert session.one("accept", id=other) == "queued"
    assert session.one("accept", id=other) == "queued"


def test_a_lease_expires_when_the_clock_says_so(session, clock):
    job = session.one("enqueue", kind="k")
    session.rows("claim", worker="w")
    clock.advance(14.999)
    assert session.one("sweep") == 0
    assert session.column("heartbeat", worker="w", ids=[job], attempts=[1]) == [job]
    assert session.job(job)["lease_expires_at"] == clock.now + timedelta(seconds=15)
    clock.advance(15)
    assert session.column("heartbeat", worker="w", ids=[job], attempts=[1]) == []
    assert session.one("sweep") == 1


def test_what_a_kind_declares_is_what_every_lease_lasts(session, clock):
    def lease(job):
        return (session.job(job)["lease_expires_at"] - clock.now).total_seconds()

    session.one("declare_kinds", kinds=["long", "short"], lease_seconds=[600.0, 2.5])
    for kind, seconds in (("long", 600), ("short", 2.5), ("undeclared", 15)):
        assert session.one("lease_seconds", kind=kind) == seconds
        first, second = (session.one("enqueue", kind=kind) for _ in range(2))
        (row,) = session.rows("claim", worker="w", kinds=[kind])
        assert (row.id, row.lease_seconds, lease(first)) == (first, seconds, seconds)
        assert session.one("claim_job", job_id=second, worker="w") is True
        assert lease(second) == seconds
        session.one("declare_kinds", kinds=[kind], lease_seconds=[seconds * 2])
        assert session.column("heartbeat", worker="w", ids=[first], attempts=[1]) == [first]
        assert (lease(first), lease(second)) == (seconds * 2, seconds)


def test_a_batch_of_several_kinds_gives_each_its_own_lease(session, clock):
    session.one("declare_kinds", kinds=["a", "b"], lease_seconds=[30, 60])
    jobs = {kind: session.one("enqueue", kind=kind) for kind in ("a", "b", "c")}
    leases = {row.kind: row.lease_seconds for row in session.rows("claim", worker="w", count=10)}
    assert leases == {"a": 30, "b": 60, "c": 15}
    clock.advance(10)
    session.rows("heartbeat", worker="w", ids=list(jobs.values()), attempts=[1, 1, 1])
    assert {
        kind: (session.job(job)["lease_expires_at"] - clock.now).total_seconds() for kind, job in jobs.items()
    } == leases


def test_the_last_word_about_a_kind_wins_and_repeating_it_writes_nothing(session):
    session.one("start_worker", worker="w", kinds=["k"], lease_seconds=[30])
    session.one("start_worker", worker="v", kinds=["k"], lease_seconds=[60])
    assert session.one("lease_seconds", kind="k") == 60
    before = session.everything()
    session.one("declare_kinds", kinds=["k"], lease_seconds=[60])
    assert session.everything() == before


def test_a_lease_taken_after_a_wait_is_full_length(db, session):
    session.one("start_worker", worker="w", kinds=["k"], lease_seconds=[2])
    job = session.one("enqueue", kind="k", exclusive_key="x")
    claimer, holder = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        holder.execute("begin; select begin_claim('w', gen_random_uuid())")
        try:
            answer = pool.submit(claimer.column, "claim", worker="w", claim_id=uuid4())
            db.until_blocked(session, [claimer.info.backend_pid])
            released = session.value("select clock_timestamp()")
        finally:
            holder.execute("rollback")
        assert answer.result() == [job]
    row = session.job(job)
    assert row["lease_expires_at"] - row["claimed_at"] == timedelta(seconds=2)
    assert row["claimed_at"] >= released
