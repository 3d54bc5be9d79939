"""Laws of paused queues: nothing of theirs is claimed, by whatever way; what runs goes on; resuming wakes who waits."""

import threading
import uuid

import psycopg
import pytest

from faults.waiting import until


def lanes(*queues):
    return [{"queue": queue, "kind": "k"} for queue in queues]


def test_nothing_of_a_paused_queue_is_claimed_and_everything_else_is(session):
    held, free = session.one("enqueue", kind="k", queue="held", priority=9), session.one("enqueue", kind="k")
    session.one("pause", queue="held", reason="the mail server is down")
    assert session.column("claim", worker="w", count=10) == [free]
    assert session.column("claim", worker="w", queues=["held"], count=10) == []
    assert session.column("claim", worker="w", kinds=["k"], count=10) == []
    assert session.one("claim_job", job_id=held, worker="w") is False
    assert session.job(held)["attempt"] == 0
    assert session.one("resume", queue="held") is True
    assert session.column("claim", worker="w", count=10) == [held]


def test_a_claim_that_names_its_lanes_obeys_a_pause_too(session):
    session.one("enqueue", kind="k", queue="held")
    free = session.one("enqueue", kind="k", queue="free")
    session.one("pause", queue="held")
    assert session.column("claim", worker="w", count=10, lanes=lanes("held")) == []
    assert session.column("claim", worker="w", count=10, lanes=lanes("held", "free")) == [free]


def test_a_pause_holds_where_there_are_limits_as_well(session):
    session.one("enqueue", kind="k", queue="held")
    free = session.one("enqueue", kind="k", queue="free")
    session.one("set_limit", scope="global", name="", max_running=5)
    session.one("set_limit", scope="queue", name="held", max_running=5)
    session.one("pause", queue="held")
    assert session.column("claim", worker="w", count=10) == [free]


def test_what_runs_goes_on_and_may_end_in_every_way(session, clock):
    jobs = [session.one("enqueue", kind="k") for _ in range(4)]
    assert len(session.column("claim", worker="w", count=4)) == 4
    session.one("pause", queue="default")
    done, failed, released, lost = jobs
    assert session.column("heartbeat", worker="w", ids=jobs, attempts=[1] * 4) == jobs
    assert session.column("complete", worker="w", ids=[done], attempts=[1]) == [done]
    assert session.one("fail", worker="w", id=failed, attempt=1, retry_after=1) == "retry"
    assert session.column("release", worker="w", ids=[released], attempts=[1]) == [released]
    clock.advance(3600)
    assert session.one("sweep") == 1
    assert session.one("promote") == 1
    assert {session.job(job)["state"] for job in (failed, released, lost)} == {"queued"}
    assert session.column("claim", worker="w", count=10) == []
    session.one("resume", queue="default")
    assert session.column("claim", worker="w", count=10) == [failed, released, lost]


def test_a_claim_that_was_answered_before_the_pause_can_be_repeated(session):
    job = session.one("enqueue", kind="k")
    claim = uuid.uuid4()
    assert session.column("claim", worker="w", claim_id=claim) == [job]
    session.one("pause", queue="default")
    assert session.column("claim", worker="w", claim_id=claim) == [job]


def test_a_paused_queue_does_not_hold_up_the_siblings_of_its_jobs(session):
    held = session.one("enqueue", kind="k", queue="held", exclusive_key="x", priority=9)
    free = session.one("enqueue", kind="k", queue="free", exclusive_key="x")
    session.one("pause", queue="held")
    assert session.column("claim", worker="w", count=10) == [free]
    session.column("complete", worker="w", ids=[free], attempts=[1])
    session.one("resume", queue="held")
    assert session.column("claim", worker="w", count=10) == [held]


def test_pausing_again_changes_the_reason_and_resuming_again_changes_nothing(session, clock):
    since = clock.now
    session.one("pause", queue="q", reason="first", by="ann")
    clock.advance(60)
    session.one("pause", queue="q", reason="second", by="bob")
    assert session.execute("select * from queues").fetchall() == [("q", since, "bob", "second")]
    assert session.one("resume", queue="q") is True
    assert session.one("resume", queue="q") is False
    assert session.execute("select * from queues").fetchall() == []


@pytest.mark.parametrize("name", [None, "", "x" * 201])
def test_a_queue_without_a_proper_name_is_refused(session, name):
    for function in ("pause", "resume"):
        with pytest.raises(psycopg.Error) as refused:
            session.one(function, queue=name)
        assert refused.value.sqlstate == "LH003"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_snapshot_that_may_be_older_than_the_pause_claims_nothing(session, db, level):
    session.one("enqueue", kind="k")
    old = db.connect()
    old.execute(f"begin isolation level {level}")
    old.execute("select 1")
    session.one("pause", queue="default")
    with pytest.raises(psycopg.Error) as refused:
        old.column("claim", worker="w")
    assert refused.value.sqlstate == "LH003"


CLAIMERS = 20


def claims_after_the_pause(db, session, job_count=3000):
    """Twenty claimers; in their midst a pause. What the claims that began after it had returned were given."""
    db.insert(session, job_count)
    returned = threading.Event()
    given: list[uuid.UUID] = []
    began_after = 0
    before = 0
    tally = threading.Lock()

    def act(mine, place):
        nonlocal began_after, before
        if place == CLAIMERS:
            until(lambda: before >= 50, "fifty claims are over", pause=0.001)
            mine.one("pause", queue="default")
            returned.set()
            return
        late = 0
        while late < 5:
            after = returned.is_set()
            jobs = mine.column("claim", worker=f"w{place}", kinds=["k"], count=2)
            with tally:
                late += after
                began_after += after
                before += not after
                if after:
                    given.extend(jobs)

    db.crowd(CLAIMERS + 1, act)
    assert began_after == CLAIMERS * 5
    assert session.value("select count(*) from jobs where state = 'queued'") > 0, "all was claimed before the pause"
    return given


def test_no_claim_that_begins_after_a_pause_has_returned_is_given_anything(db, session):
    assert claims_after_the_pause(db, session) == []
    db.assert_consistent(session)


def test_the_race_catches_a_claim_that_does_not_look(db, session):
    session.mutate("admit_lanes", "if bounds.pauses then", "if false then")
    assert claims_after_the_pause(db, session) != []


def test_a_pause_waits_for_no_claim_and_holds_up_none(db, session):
    session.one("enqueue", kind="k")
    session.one("enqueue", kind="k", queue="other")
    slow = db.connect()
    slow.execute("begin")
    assert len(slow.column("claim", worker="slow", queues=["default"])) == 1
    session.execute("set lock_timeout = '2s'")
    session.one("pause", queue="default")
    assert len(db.connect().column("claim", worker="w", count=10)) == 1
    slow.execute("commit")


def test_two_who_pause_and_two_who_resume_at_the_same_time_leave_one_answer(db, session):
    def act(mine, place):
        for _ in range(50):
            mine.one("pause" if place % 2 else "resume", queue="q")

    db.crowd(4, act)
    assert session.value("select count(*) from queues") in (0, 1)
    session.one("resume", queue="q")
    assert session.value("select count(*) from queues") == 0


def test_resuming_wakes_those_who_wait_for_the_queue(db, session):
    waiting = db.connect()
    waiting.execute("listen leasehold")
    session.one("pause", queue="mail")
    session.one("resume", queue="mail")
    assert [n.payload for n in waiting.notifies(timeout=30, stop_after=1)] == ["mail"]
    session.one("pause", queue="mail")
    session.one("resume", queue="mail", notify=False)
    session.one("resume", queue="mail")
    session.execute("notify leasehold, 'last'")
    assert [n.payload for n in waiting.notifies(timeout=30, stop_after=1)] == ["last"]


def test_explain_names_the_pause_its_reason_and_who_did_it(session):
    session.execute("select start_worker('w', kinds => '{k}')")
    job = session.one("enqueue", kind="k", queue="mail")
    assert session.rows("explain", job_id=job) == []
    session.one("pause", queue="mail", reason="the server is down", by="ann")
    (found,) = session.rows("explain", job_id=job)
    assert found.reason == "paused"
    assert "'mail'" in found.detail
    assert found.detail.endswith(" by ann: the server is down")
    session.one("pause", queue="mail")
    (found,) = session.rows("explain", job_id=job)
    assert " by " not in found.detail
    assert ": " not in found.detail
