"""Laws of canary retries: few first, then more, then all; what fails again stops them; no worker leads."""

import psycopg
import pytest

from faults.waiting import until
from tests.sql.operations import ERROR, die


def dead(db, session, number, kind="k", error_class="ValueError", queue="default"):
    """Dead jobs straight into the tables: far faster than the API."""
    ids = db.insert(
        session, number, kind=f"'{kind}'", queue=f"'{queue}'", state="'dead'", reason="'exhausted'", attempt="1",
        retry_count="1", max_attempts="1", finished_at="clock() - n * interval '1 second'",
    )  # fmt: skip
    session.execute(
        "insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class)"
        " select id, 1, 'w', 'failed', clock(), clock(), %s from unnest(%s::uuid[]) id",
        [error_class, ids],
    )
    return ids


def start(session, **arguments):
    return session.one("canary_start", **{"kind": "k", "error_class": "ValueError", "by": "ann"} | arguments)


def look(session, canary):
    (found,) = session.rows("canary_list", id=canary)
    return found


def pending(canary):
    """How many of its retried jobs have no outcome yet."""
    return canary.retried - canary.succeeded - canary.failed - canary.other


def run(session, *, fail=0, worker="w"):
    """Run what is ready: the first `fail` jobs fail again. Gives how many there were."""
    claimed = session.rows("claim", worker=worker, count=1000)
    bad, good = claimed[:fail], claimed[fail:]
    for job in bad:
        session.one("fail", worker=worker, id=job.id, attempt=job.attempt, error=ERROR)
    good.sort(key=lambda job: job.id)
    session.column("complete", worker=worker, ids=[job.id for job in good], attempts=[job.attempt for job in good])
    return len(claimed)


def steps(session, number=1):
    for _ in range(number):
        session.one("canary_step")


def test_ten_jobs_then_a_tenth_then_all(db, session):
    ids = dead(db, session, 300)
    dead(db, session, 5, error_class="OSError")
    dead(db, session, 5, kind="other")
    canary = start(session)
    seen = []
    for _ in range(20):
        ready = run(session)
        if ready:
            found = look(session, canary)
            seen.append((found.stage, ready))
        steps(session)
    assert seen == [(1, 10), (2, 30), (3, 260)]
    found = look(session, canary)
    assert (found.state, found.total, found.retried, found.succeeded, found.failed) == ("done", 300, 300, 300, 0)
    assert (pending(found), found.started_by) == (0, "ann")
    assert found.finished_at is not None
    assert session.value("select count(*) from jobs where state = 'success' and id = any(%s)", ids) == 300
    assert session.value("select count(*) from jobs where state = 'dead'") == 10, "the others are none of its business"


def test_no_stage_begins_before_the_one_before_has_ended(db, session):
    dead(db, session, 100)
    canary = start(session)
    claimed = session.rows("claim", worker="w", count=1000)
    assert len(claimed) == 10
    session.column("complete", worker="w", ids=sorted(job.id for job in claimed[:9]), attempts=[2] * 9)
    steps(session, 5)
    found = look(session, canary)
    assert (found.stage, found.retried, found.succeeded, pending(found)) == (1, 10, 9, 1)
    session.column("complete", worker="w", ids=[job.id for job in claimed[9:]], attempts=[2])
    steps(session, 2)
    assert look(session, canary).retried == 20


def test_three_failures_among_the_first_ten_stop_it(db, session):
    dead(db, session, 100)
    canary = start(session)
    assert run(session, fail=3) == 10
    steps(session)
    found = look(session, canary)
    assert (found.state, found.stage, found.failed) == ("stopped", 1, 3)
    assert found.reason == "3 of 10 retried jobs failed again in stage 1"
    steps(session, 3)
    assert session.value("select count(*) from jobs where state = 'dead'") == 93


def test_two_failures_among_the_first_ten_do_not(db, session):
    dead(db, session, 100)
    canary = start(session)
    run(session, fail=2)
    steps(session, 2)
    assert look(session, canary).stage == 2


def test_more_than_a_fifth_of_a_later_stage_stop_it(db, session):
    dead(db, session, 300)
    canary = start(session)
    run(session)
    steps(session, 2)
    assert run(session, fail=7) == 30
    steps(session)
    found = look(session, canary)
    assert (found.state, found.stage, found.reason) == (
        "stopped",
        2,
        "7 of 30 retried jobs failed again in stage 2",
    )


def test_the_last_stage_has_only_so_many_on_their_way_that_a_stop_still_helps(db, session):
    dead(db, session, 300)
    canary = start(session)
    run(session)
    for _ in range(4):
        session.one("canary_step", max=50)
        run(session)
    assert look(session, canary).stage == 3
    for _ in range(3):
        session.one("canary_step", max=50)
    found = look(session, canary)
    assert pending(found) == 50
    run(session, fail=50)
    session.one("canary_step", max=50)
    found = look(session, canary)
    assert found.state == "stopped"
    assert session.value("select count(*) from jobs where state = 'dead'") >= 100


def test_a_job_that_fails_once_counts_at_once_though_it_will_be_tried_again(session):
    jobs = []
    for _ in range(12):
        job = session.one("enqueue", kind="k", max_attempts=2)
        for attempt in (1, 2):
            session.execute(
                "update jobs set run_at = clock(), state = 'queued' where id = %s and state = 'retry'", [job]
            )
            assert session.one("claim_job", job_id=job, worker="w")
            session.one("fail", worker="w", id=job, attempt=attempt, error=ERROR)
        jobs.append(job)
    canary = start(session)
    run(session, fail=10)
    assert session.value("select count(*) from jobs where state = 'retry'") == 10
    steps(session)
    assert look(session, canary).state == "stopped"


def test_a_small_group_is_done_after_its_first_stage(db, session):
    dead(db, session, 4)
    canary = start(session)
    assert run(session) == 4
    steps(session, 3)
    found = look(session, canary)
    assert (found.state, found.stage, found.retried) == ("done", 1, 4)


def test_a_group_with_nothing_to_retry_is_refused(db, session):
    dead(db, session, 1, kind="other")
    with pytest.raises(psycopg.Error) as refused:
        start(session)
    assert refused.value.sqlstate == "LH002"
    assert "no dead job of kind 'k' has the error class 'ValueError'" in str(refused.value.diag.message_detail)
    assert session.rows("canary_list") == []


def test_jobs_without_an_error_class_are_a_group_too(session):
    job = die(session, error=None)
    canary = start(session, error_class=None)
    assert session.job(job)["state"] == "queued"
    assert look(session, canary).error_class is None


def test_the_last_part_of_an_error_class_is_the_same_group(db, session):
    dead(db, session, 30, error_class="shop.tasks.PaymentGatewayDown")
    short = start(session, error_class="PaymentGatewayDown")
    assert look(session, short).error_class == "shop.tasks.PaymentGatewayDown"
    assert start(session, error_class="shop.tasks.PaymentGatewayDown") == short
    assert start(session, error_class="PaymentGatewayDown") == short
    small = dead(db, session, 3, kind="small", error_class="shop.tasks.PaymentGatewayDown")
    whole = start(session, kind="small", error_class="shop.tasks.PaymentGatewayDown")
    assert session.value("select count(*) from jobs where id = any(%s) and state = 'dead'", [small]) == 0
    assert start(session, kind="small", error_class="PaymentGatewayDown") == whole


def test_the_last_part_of_two_error_classes_is_refused(db, session):
    for module in ("shop", "bank"):
        dead(db, session, 3, error_class=f"{module}.Down")
    with pytest.raises(psycopg.Error) as refused:
        start(session, error_class="Down")
    assert refused.value.sqlstate == "LH003"
    assert "bank.Down, shop.Down" in refused.value.diag.message_detail
    dead(db, session, 3, error_class="Down")
    assert look(session, start(session, error_class="Down")).error_class == "Down"


def test_two_people_who_start_at_once_start_one(db, session):
    dead(db, session, 50)
    started = db.crowd(8, lambda mine, _: start(mine))
    assert len(set(started)) == 1
    assert look(session, started[0]).retried == 10
    assert session.value("select count(*) from jobs where state = 'queued'") == 10


def test_only_the_queues_that_were_named_are_touched(db, session):
    dead(db, session, 5, queue="mail")
    dead(db, session, 5, queue="reports")
    start(session, queues=["mail"])
    assert session.values("select distinct queue from jobs where state = 'queued'") == ["mail"]


def test_many_who_step_at_once_take_each_step_once(db, session):
    dead(db, session, 200)
    canary = start(session)
    run(session)
    db.crowd(8, lambda mine, _: steps(mine, 5))
    found = look(session, canary)
    assert (found.stage, found.retried, pending(found)) == (2, 30, 20)
    assert session.value("select count(*) from jobs where state = 'queued'") == 20
    assert session.value("select count(*) from canary_jobs") == 30


def test_steppers_without_the_lock_overshoot_and_this_is_seen(db, session):
    """The test above, and a step that locks nothing: it has to notice."""
    session.mutate("canary_step", "for update skip locked", "")
    session.mutate("canary_advance", "perform canary_retry(", "perform pg_sleep(0.05); perform canary_retry(")
    for _ in range(5):
        session.execute("truncate jobs, attempts, canaries, canary_jobs")
        dead(db, session, 200)
        canary = start(session)
        run(session)
        db.crowd(8, lambda mine, _: steps(mine, 3))
        if look(session, canary).retried != 30:
            return
    pytest.fail("eight steppers without a lock never got in each other's way")


def test_a_worker_that_dies_in_a_step_leaves_nothing_of_it(db, session):
    dead(db, session, 100)
    canary = start(session)
    run(session)
    mortal = db.connect()
    mortal.autocommit = False
    steps(mortal, 2)
    assert look(mortal, canary).retried == 20
    pid = mortal.info.backend_pid
    mortal.close()
    until(lambda: not session.values("select 1 from pg_stat_activity where pid = %s", pid), "the server has noticed")
    assert look(session, canary).retried == 10
    assert session.value("select count(*) from jobs where state = 'queued'") == 0
    steps(session, 2)
    assert look(session, canary).retried == 20


def test_a_stop_ends_it_and_waits_for_a_step_that_is_under_way(db, session):
    dead(db, session, 100)
    canary = start(session)
    run(session)
    stepper, stopper = db.connect(), db.connect()
    steps(stepper)
    stepper.autocommit = False
    steps(stepper)
    stopped = []

    def act(mine, place):
        if place == 0:
            stopped.append(mine.one("canary_stop", id=canary, by="bob"))
        else:
            until(lambda: session.value("select count(*) from pg_locks where not granted") > 0, "the stop waits")
            stepper.commit()

    db.crowd(2, act)
    stopper.close()
    assert stopped == [True]
    found = look(session, canary)
    assert (found.state, found.reason, found.retried) == ("stopped", "stopped by bob", 20)
    steps(session, 3)
    assert look(session, canary).retried == 20
    assert session.one("canary_stop", id=canary) is False


def test_a_job_retried_or_cancelled_by_hand_meanwhile_is_left_alone(db, session):
    ids = dead(db, session, 14)
    canary = start(session)
    left = session.values("select id from jobs where state = 'dead' and id = any(%s) order by finished_at desc", ids)
    assert session.one("retry", id=left[0]) is True
    queued = session.values("select job_id from canary_jobs limit 1")[0]
    session.one("cancel", id=queued)
    run(session)
    for _ in range(6):
        steps(session)
        run(session)
    found = look(session, canary)
    assert (found.state, found.retried, found.succeeded, found.failed, pending(found)) == ("done", 13, 12, 0, 0)


def test_jobs_that_die_again_are_not_taken_a_second_time(db, session):
    dead(db, session, 60)
    canary = start(session)
    run(session, fail=2)
    for _ in range(8):
        steps(session)
        run(session, fail=1)
    found = look(session, canary)
    assert found.retried == 60
    assert session.value("select max(attempt) from jobs") == 2


def test_upkeep_takes_the_steps_and_comes_back_soon_while_one_runs(db, session):
    dead(db, session, 30)
    canary = start(session)
    run(session)
    for _ in range(4):
        (found,) = session.rows("upkeep")
        assert found.next_due <= 1
        run(session)
    until(lambda: session.rows("upkeep") and look(session, canary).state == "done", "upkeep brings it to its end")
    assert session.rows("upkeep")[0].next_due is None
