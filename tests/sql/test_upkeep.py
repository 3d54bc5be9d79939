"""Failures, budgets and upkeep: what sweep and promote move, they move once, and the record has no gaps."""

import random
from datetime import timedelta

import psycopg

ERROR = {"class": "ValueError", "message": "no such thing", "traceback": "Traceback: line 1"}


def take(session, job, worker="w"):
    assert session.one("claim_job", job_id=job, worker=worker) is True
    return session.job(job)["attempt"]


def test_a_job_that_kills_its_worker_every_time_is_dead_after_exactly_max_attempts(session, clock, db):
    job = session.one("enqueue", kind="k", max_attempts=3)
    for attempt in (1, 2, 3):
        assert session.job(job)["state"] == "queued"
        assert session.column("claim", worker=f"w{attempt}") == [job]
        clock.advance(15)
        assert session.one("sweep") == 1
    row = session.job(job)
    assert (row["state"], row["reason"], row["attempt"], row["retry_count"]) == ("dead", "lease_expired", 3, 3)
    assert row["finished_at"] == clock.now
    assert session.rows("claim", worker="w") == []
    records = session.attempts(job)
    assert [(a.attempt, a.worker, a.outcome, a.error_class) for a in records] == [
        (n, f"w{n}", "lease_expired", "LeaseExpired") for n in (1, 2, 3)
    ]
    assert all(a.ended_at - a.claimed_at == timedelta(seconds=15) for a in records)
    db.assert_consistent(session)


def test_a_release_costs_no_failure(session):
    job = session.one("enqueue", kind="k", max_attempts=1)
    for _ in range(5):
        attempt = take(session, job)
        assert session.column("release", worker="w", ids=[job], attempts=[attempt]) == [job]
    row = session.job(job)
    assert (row["state"], row["attempt"], row["retry_count"]) == ("queued", 5, 0)
    assert [(a.attempt, a.outcome) for a in session.attempts(job)] == [(n, "released") for n in range(1, 6)]


def test_a_snooze_costs_no_failure_and_waits_its_time(session, clock):
    job = session.one("enqueue", kind="k", max_attempts=1)
    for _ in range(3):
        attempt = take(session, job)
        report = {"worker": "w", "id": job, "attempt": attempt, "outcome": "snoozed", "retry_after": 60}
        assert session.one("fail", **report) == "retry"
        assert session.job(job)["run_at"] == clock.now + timedelta(seconds=60)
        clock.advance(59)
        assert session.one("promote") == 0
        clock.advance(1)
        assert session.one("promote") == 1
    row = session.job(job)
    assert (row["state"], row["attempt"], row["retry_count"]) == ("queued", 3, 0)
    assert {a.outcome for a in session.attempts(job)} == {"snoozed"}


def test_failures_count_until_the_budget_is_spent_and_each_is_on_record(session, clock, db):
    job = session.one("enqueue", kind="k", max_attempts=3)
    for n in (1, 2, 3):
        attempt = take(session, job, f"w{n}")
        assert attempt == n
        error = {**ERROR, "message": f"failure {n}"}
        state = session.one("fail", worker=f"w{n}", id=job, attempt=n, error=error, retry_after=10)
        assert state == ("retry" if n < 3 else "dead")
        clock.advance(10)
        session.one("promote")
    row = session.job(job)
    assert (row["state"], row["reason"], row["reason_detail"]) == ("dead", "exhausted", "failure 3")
    assert (row["attempt"], row["retry_count"]) == (3, 3)
    assert [
        (a.attempt, a.worker, a.outcome, a.error_class, a.error_message, a.error_traceback)
        for a in session.attempts(job)
    ] == [(n, f"w{n}", "failed", "ValueError", f"failure {n}", "Traceback: line 1") for n in (1, 2, 3)]
    db.assert_consistent(session)


def test_a_fatal_failure_spends_no_budget_in_vain(session):
    job = session.one("enqueue", kind="k", max_attempts=30)
    take(session, job)
    assert session.one("fail", worker="w", id=job, attempt=1, fatal=True, error=ERROR) == "dead"
    row = session.job(job)
    assert (row["reason"], row["retry_count"]) == ("fatal", 1)
    assert row["run_at"] <= row["finished_at"], "a dead job waits for no further try"


def test_without_a_delay_of_its_own_a_failure_backs_off_with_jitter(db, session, clock):
    ids = db.insert(session, 200, run_at="'2031-01-01'", max_attempts="10")
    delays = []
    for _ in range(4):
        rows = session.rows("claim", worker="w", count=200)
        failures = [{"id": str(row.id), "attempt": row.attempt} for row in rows]
        assert len(session.rows("fail_many", worker="w", failures=failures)) == 200
        delays.append(session.values("select extract(epoch from run_at - clock())::float from jobs"))
        clock.advance(600)
        assert session.one("promote") == 200
    assert len(ids) == 200
    for failures, found in enumerate(delays):
        longest = 4 * 2**failures
        assert 0.8 * longest <= min(found) < 0.84 * longest
        assert 0.96 * longest < max(found) <= longest


def test_a_manual_retry_starts_with_a_fresh_budget_and_keeps_the_record(session, clock, db):
    job = session.one("enqueue", kind="k", max_attempts=2)
    for n in (1, 2):
        take(session, job)
        session.one("fail", worker="w", id=job, attempt=n, retry_after=0)
        session.one("promote")
    assert session.job(job)["state"] == "dead"
    assert session.one("retry", id=job) is True
    row = session.job(job)
    assert (row["state"], row["attempt"], row["retry_count"]) == ("queued", 2, 0)
    assert (row["reason"], row["finished_at"]) == (None, None)
    before = session.everything()
    assert session.one("retry", id=job) is False
    assert session.everything() == before
    for n in (3, 4):
        take(session, job)
        session.one("fail", worker="w", id=job, attempt=n, retry_after=0)
        session.one("promote")
    assert session.job(job)["reason"] == "exhausted"
    assert [a.attempt for a in session.attempts(job)] == [1, 2, 3, 4]
    db.assert_consistent(session)


def test_a_cancelled_attempt_is_on_record_and_a_waiting_job_leaves_none(session):
    waiting, busy, done = (session.one("enqueue", kind="k") for _ in range(3))
    take(session, busy)
    take(session, done)
    session.column("complete", worker="w", ids=[done], attempts=[1])
    assert [session.one("cancel", id=job, why="enough") for job in (waiting, busy, done)] == [True, True, False]
    assert session.attempts(waiting) == []
    assert [(a.outcome, a.error_message) for a in session.attempts(busy)] == [("cancelled", "enough")]
    before = session.everything()
    assert [session.one("cancel", id=job) for job in (waiting, busy, done)] == [True, True, False]
    assert session.everything() == before


def test_a_worker_that_cancels_its_own_attempt_ends_the_job(session):
    job = session.one("enqueue", kind="k")
    take(session, job)
    assert session.one("fail", worker="w", id=job, attempt=1, outcome="cancelled") == "dead"
    assert session.job(job)["reason"] == "cancelled"


def upkeep(db, function) -> list[int]:
    """Twenty sessions do the same upkeep until nothing is left; returns what each call said that it moved."""

    def act(session, place):
        chance, moved = random.Random(place), []
        while session.value(f"select exists (select from {function}_left)"):
            moved.append(session.one(function, max=chance.randint(1, 200)))
        return moved

    return [count for counts in db.crowd(20, act) for count in counts]


LEFT = """
create or replace view sweep_left as select id from jobs where state = 'running' and lease_expires_at <= clock();
create or replace view promote_left as select id from jobs where state in ('created', 'retry') and run_at <= clock();
"""


def abandoned(db, session, clock, jobs) -> None:
    """Running jobs whose leases have expired; a third of them for the last time, some with exclusive keys."""
    session.execute(LEFT)
    db.insert(session, jobs - 100, max_attempts="1 + n % 3", run_at="'2031-01-01'")
    db.insert(session, 100, exclusive_key="'x' || n", run_at="'2031-01-01'")
    taken = 0
    while rows := session.rows("claim", worker="w", count=2000):
        taken += len(rows)
    assert taken == jobs
    clock.advance(15)


def test_twenty_sweepers_take_each_expired_lease_back_once(db, session, clock):
    abandoned(db, session, clock, 5000)
    assert sum(upkeep(db, "sweep")) == 5000
    assert session.one("sweep") == 0
    assert session.value("select count(*) from attempts where outcome = 'lease_expired' and attempt = 1") == 5000
    assert session.value("select count(*) from attempts") == 5000
    assert session.value("select count(*) from jobs where retry_count = 1") == 5000
    assert session.value("select count(*) from jobs where state = 'dead' and max_attempts = 1") > 1000
    assert session.value("select count(*) from jobs where state not in ('dead', 'queued')") == 0
    db.assert_consistent(session)


def test_the_sweepers_catch_a_sweep_that_takes_no_locks(db, session, clock):
    """A second row for the same attempt, a deadlock, or a count that is too high. Whether they meet is chance."""
    session.mutate("sweep_v1", "limit sweep_v1.max for no key update skip locked", "limit sweep_v1.max")
    session.mutate("expire", "order by j.id for no key update skip locked", "")

    def caught() -> bool:
        session.execute("truncate jobs, attempts")
        abandoned(db, session, clock, 600)
        try:
            return sum(upkeep(db, "sweep")) != 600
        except psycopg.Error:
            return True

    assert any(caught() for _ in range(20))


def test_twenty_promoters_move_each_due_job_once(db, session, clock):
    session.execute(LEFT)
    db.insert(session, 2500, state="'created'", run_at="'2031-01-01'")
    db.insert(session, 2400, state="'retry'", attempt="1", retry_count="1", run_at="'2031-01-01'")
    db.insert(session, 100, state="'retry'", attempt="5", retry_count="5", run_at="'2031-01-01'")
    later = db.insert(session, 10, state="'created'", run_at="'2032-01-01'")
    submitted = db.insert(session, 10, state="'created'", run_at="'2031-01-01'", accepted="false")
    session.execute("create table moves (id uuid)")
    session.execute(
        "create function log_move() returns trigger language plpgsql as"
        " $$ begin insert into leasehold.moves values (new.id); return null; end $$"
    )
    session.execute("create trigger log_move after update on jobs for each row execute function log_move()")
    session.execute(
        "create or replace view promote_left as select id from jobs"
        " where state in ('created', 'retry') and accepted and run_at <= clock()"
    )
    assert sum(upkeep(db, "promote")) == 5000
    assert session.one("promote") == 0
    assert session.value("select count(*) from moves") == session.value("select count(distinct id) from moves") == 5000
    states = dict(session.execute("select state::text, count(*) from jobs group by 1").fetchall())
    assert states == {"queued": 4900, "dead": 100, "created": 20}
    assert {session.job(job)["state"] for job in later + submitted} == {"created"}
    assert session.values("select distinct reason from jobs where state = 'dead'") == ["exhausted"]
