"""Laws of firing: the jobs and the step forward are one transaction, once for each due time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from tests.schedules.conftest import claim, fire, refused, runs_of, stored

HOUR = timedelta(hours=1)


def put(session, key: str = "s", **more):
    session.one("schedule_put", **{"key": key, "kind": "k", "every": "1 hour", **more})


def test_firing_enqueues_the_jobs_and_moves_on(session, clock):
    put(session, payload={"a": 1}, queue="q", priority=3, max_attempts=7, tags=["t"], exclusive_key="x")
    clock.advance(60)
    claimed = claim(session)
    due = [clock.now - HOUR, clock.now]
    fired = fire(session, claimed, due, clock.now + HOUR)
    assert [row.due_at for row in fired] == due == runs_of(session)
    for row in fired:
        job = session.job(row.job_id)
        assert (job["kind"], job["queue"], job["payload"], job["priority"]) == ("k", "q", {"a": 1}, 3)
        assert (job["max_attempts"], job["tags"], job["exclusive_key"]) == (7, ["t"], "x")
        assert (job["run_at"], job["state"]) == (row.due_at, "queued")
    now = stored(session)
    assert (now.next_run_at, now.last_run_at, now.last_job) == (clock.now + HOUR, clock.now, fired[-1].job_id)
    assert (now.locked_by, now.locked_until, now.fired) == (None, None, 2)
    assert now.due_after == claimed.judged_at


def test_a_fire_that_does_not_commit_leaves_neither_jobs_nor_a_step(db, session, clock):
    put(session)
    claimed = claim(session)
    before = stored(session)
    dying = db.connect()
    dying.execute("begin")
    fire(dying, claimed, [clock.now], clock.now + HOUR)
    session.execute("select pg_terminate_backend(%s)", [dying.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        dying.execute("commit")
    assert (runs_of(session), stored(session)) == ([], before)
    fire(session, claimed, [clock.now], clock.now + HOUR)
    assert runs_of(session) == [clock.now]


@pytest.mark.parametrize(("size", "most"), [(900_000, 17), (2, 1000)])
def test_one_call_fires_no_more_than_it_can_in_a_moment_and_the_rest_stays_due(session, clock, size, most):
    """Else the caller gives the call up, repeats it for ever, and fires no other schedule."""
    put(session, payload={"s": "x" * size} if size > 2 else {}, every="1 second", missed="all", max_missed=2000)
    session.mutate("schedule_fire_v1", "interval '1 second'", "interval '1 hour'")  # a busy machine may take longer
    clock.advance(most + 1)  # minutes
    due = [clock.now - timedelta(seconds=n) for n in reversed(range(most + 5))]
    upcoming = clock.now + timedelta(seconds=1)
    session.execute("update schedules set next_run_at = %s", [due[0]])
    claimed = claim(session)
    fired = fire(session, claimed, due, upcoming, missed=3)
    assert [row.due_at for row in fired] == due[:most]
    assert fire(session, claimed, due, upcoming, missed=3) == fired
    now = stored(session)
    assert (now.next_run_at, now.fired, now.missed_runs, now.over) == (due[most], most, 3, False)
    fire(session, claim(session), due[most:], None)
    assert runs_of(session) == due
    assert (stored(session).fired, stored(session).over) == (most + 5, True)


@pytest.mark.parametrize(("seconds", "most"), [(0.6, 2), (1.2, 1)])
def test_one_call_ends_after_a_second_and_the_rest_stays_due(session, clock, seconds, most):
    """However long the server takes for one job: its caller would give up the call, and repeat it for ever."""
    put(session, every="1 second", missed="all")
    session.mutate("schedule_record", "begin", f"begin perform pg_sleep({seconds});")
    clock.advance(60)
    due = [clock.now - timedelta(seconds=n) for n in reversed(range(4))]
    upcoming = clock.now + timedelta(seconds=1)
    claimed = claim(session)
    fired = fire(session, claimed, due, upcoming, missed=3)
    assert 1 <= len(fired) <= most
    assert [row.due_at for row in fired] == due[: len(fired)]
    assert fire(session, claimed, due, upcoming, missed=3) == fired
    now = stored(session)
    assert (now.next_run_at, now.fired, now.missed_runs) == (due[len(fired)], len(fired), 3)
    while stored(session).next_run_at < upcoming:
        claimed = claim(session)
        fire(session, claimed, [at for at in due if at >= claimed.next_run_at], upcoming)
    assert runs_of(session) == due


def test_a_payload_is_judged_once_in_a_call(session, clock):
    """One that is nested deeply takes half a second, and every job of the call has the same."""
    put(session, payload={"s": "x" * 500}, every="1 second", missed="all", jitter="1 minute", due_argument="at")
    session.execute("create sequence judged")
    session.mutate("json_fault", "begin", "begin perform nextval('leasehold.judged');")
    clock.advance(60)
    due = [clock.now - timedelta(seconds=n) for n in reversed(range(20))]
    assert len(fire(session, claim(session), due, clock.now + HOUR)) == 20
    assert session.value("select last_value from judged") == 1


def test_a_job_whose_jitter_leaves_the_calendar_is_refused_wherever_it_is_in_a_call(session, clock):
    put(session, every="1 second", missed="all", jitter="24 hours")
    session.execute("update hands set now = '9999-12-29 23:59:59+00'")
    due = [clock.now - timedelta(days=9), clock.now]
    with refused("LH003", "invalid_argument"):
        fire(session, claim(session), due, None)
    assert runs_of(session) == []


def test_a_fire_whose_answer_was_lost_is_repeated_and_changes_nothing(session, clock):
    put(session)
    claimed = claim(session)
    arguments = (claimed, [clock.now], clock.now + HOUR)
    first = fire(session, *arguments)
    before = stored(session)
    assert fire(session, *arguments) == first
    assert (stored(session), len(runs_of(session))) == (before, 1)


def test_two_that_fire_the_same_due_time_make_one_job(session, clock):
    """Even if the schedule itself were put back by hand: the idempotency key is made of its key and the due time."""
    put(session)
    due = clock.now
    (first,) = fire(session, claim(session), [due], due + HOUR)
    session.execute("update schedules set next_run_at = null")
    (second,) = fire(session, claim(session), [due], due + HOUR)
    assert first.job_id == second.job_id
    assert runs_of(session) == [due]


def test_a_claim_that_was_taken_over_cannot_fire(session, clock):
    put(session)
    old = claim(session, worker="old")
    clock.advance(15)
    new = claim(session, worker="new")
    for claimed, worker in ((old, "old"), (old, "new"), (new, "old")):
        with refused("LH005", "job_locked"):
            fire(session, claimed, [clock.now], clock.now + HOUR, worker=worker)
    assert runs_of(session) == []
    fire(session, new, [clock.now], clock.now + HOUR, worker="new")
    assert len(runs_of(session)) == 1


def test_a_schedule_that_no_longer_stands_where_it_was_claimed_is_not_fired(session, clock):
    put(session)
    claimed = claim(session)
    session.execute("update schedules set next_run_at = %s", [clock.now - HOUR])
    with refused("LH005", "job_locked"):
        fire(session, claimed, [clock.now], clock.now + HOUR)
    assert runs_of(session) == []


def test_an_expired_claim_that_was_not_taken_over_can_still_fire(session, clock):
    put(session)
    claimed = claim(session)
    clock.advance(1000)
    fire(session, claimed, [clock.now], clock.now + HOUR)
    assert runs_of(session) == [clock.now]


def test_a_change_of_the_schedule_ends_the_claim_under_way(session, clock):
    changes = {
        "the rule": lambda: put(session, every="2 hours"),
        "the time zone": lambda: put(session, every="2 hours", time_zone="Europe/Berlin"),
        "disabled": lambda: session.one("schedule_disable", key="s"),
        "disabled by put": lambda: put(session, every="2 hours", time_zone="Europe/Berlin", enabled=False),
    }
    put(session)
    for what, change in changes.items():
        if not stored(session).enabled:
            session.one("schedule_enable", key="s")
        claimed = claim(session)
        change()
        with refused("LH005", "job_locked"):
            fire(session, claimed, [clock.now], clock.now + HOUR)
        assert runs_of(session) == [], what


def test_what_the_job_carries_may_change_under_a_claim_and_the_job_carries_the_new(session, clock):
    put(session)
    claimed = claim(session)
    put(session, payload={"new": True})
    ((_, job),) = fire(session, claimed, [clock.now], clock.now + HOUR)
    assert session.job(job)["payload"] == {"new": True}


def test_a_removed_schedule_cannot_be_fired_and_one_made_anew_is_another(session, clock):
    put(session)
    claimed = claim(session)
    assert session.one("schedule_remove", key="s") is True
    assert session.one("schedule_remove", key="s") is False
    with refused("LH002", "job_unknown"):
        fire(session, claimed, [clock.now], clock.now + HOUR)
    put(session)
    claim(session)
    with refused("LH005", "job_locked"):
        fire(session, claimed, [clock.now], clock.now + HOUR)


@pytest.mark.parametrize(
    "wrong",
    [
        {"due": None},
        {"due": [HOUR, timedelta(0)]},
        {"due": [timedelta(0), timedelta(0)]},
        {"due": [HOUR], "next_run_at": HOUR},
        {"due": [None]},
        {"missed": -1},
        {"missed": None},
    ],
    ids=str,
)
def test_due_times_that_make_no_sense_are_refused(session, clock, wrong):
    put(session)
    claimed = claim(session)
    arguments = {"due": [timedelta(0)], "next_run_at": 2 * HOUR, "missed": 0, **wrong}
    if arguments["due"] is not None:
        arguments["due"] = [None if offset is None else clock.now + offset for offset in arguments["due"]]
    arguments["next_run_at"] = clock.now + arguments["next_run_at"]
    with refused("LH003", "invalid_argument"):
        session.rows("schedule_fire", key="s", worker="w", token=claimed.token, was=None, **arguments)
    assert runs_of(session) == []


# -- overlap


def fire_next(session, clock):
    clock.advance(3600)
    claimed = claim(session)
    ((_, job),) = fire(session, claimed, [clock.now], clock.now + HOUR)
    return job


def test_overlap_allow_enqueues_whatever_is_unfinished(session, clock):
    put(session, overlap="allow")
    assert None not in [fire_next(session, clock) for _ in range(3)]


def test_overlap_skip_enqueues_none_while_a_job_of_the_schedule_is_unfinished(session, clock):
    put(session, overlap="skip")
    session.one("declare_kinds", kinds=["k"], lease_seconds=[86400])
    first = fire_next(session, clock)
    assert fire_next(session, clock) is None, "still queued"
    session.rows("claim", worker="w")
    assert fire_next(session, clock) is None, "running"
    session.rows("complete", worker="w", ids=[first], attempts=[1])
    second = fire_next(session, clock)
    assert second not in (None, first)
    asked = session.one("schedule_run_now", key="s")
    session.one("cancel", id=second)
    assert fire_next(session, clock) is None, "the one that a person asked for counts too"
    session.one("cancel", id=asked)
    assert fire_next(session, clock) is not None
    now = stored(session)
    assert (now.fired, now.overlapped) == (3, 3)


def test_overlap_skip_holds_within_one_fire_too(session, clock):
    put(session, overlap="skip")
    fired = fire(session, claim(session), [clock.now - HOUR, clock.now], clock.now + HOUR)
    assert [row.job_id is None for row in fired] == [False, True]
    assert stored(session).overlapped == 1


def test_overlap_exclusive_lets_them_wait_for_each_other(session, clock):
    put(session, overlap="exclusive")
    jobs = [fire_next(session, clock) for _ in range(2)]
    assert {session.job(job)["exclusive_key"] for job in jobs} == {"schedule:s"}
    assert len(session.rows("claim", worker="w", count=2)) == 1


# -- jitter and the due time


def test_jitter_is_the_same_for_each_call_with_one_due_time_and_differs_between_them(session, clock):
    put(session, jitter="10 minutes")
    delays = []
    for _ in range(20):
        due = clock.now + HOUR
        job = session.job(fire_next(session, clock))
        delays.append(job["run_at"] - due)
        (again,) = session.values("select schedule_jitter(s, %s) from schedules s", due)
        assert again == delays[-1]
        assert job["state"] == ("created" if delays[-1] else "queued")
    assert all(timedelta(0) <= delay < timedelta(minutes=10) for delay in delays)
    assert len(set(delays)) == 20
    assert runs_of(session)[-1] == clock.now, "the key is made of the due time, not of when the run begins"


def test_the_job_gets_its_due_time_where_the_schedule_says_so(session, clock):
    put(session, payload={"a": 1}, due_argument="day")
    job = session.job(fire_next(session, clock))
    assert job["payload"] == {"a": 1, "day": clock.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


# -- at a person's word


def test_running_now_enqueues_one_job_and_leaves_the_next_run_where_it_is(session, clock):
    put(session, payload={"a": 1}, due_argument="day")
    fire_next(session, clock)
    before = stored(session)
    clock.advance(60)
    job = session.one("schedule_run_now", key="s")
    assert session.job(job)["payload"]["day"] == clock.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert session.job(job)["state"] == "queued"
    after = stored(session)
    assert (after.next_run_at, after.fired, after.last_job) == (before.next_run_at, before.fired, job)
    assert session.one("schedule_run_now", key="s", id=job) == job, "repeated after a lost answer"
    session.one("schedule_disable", key="s")
    assert session.one("schedule_run_now", key="s") != job
    with refused("LH002", "job_unknown"):
        session.one("schedule_run_now", key="other")


def test_running_now_under_one_key_makes_one_job_and_a_repetition_changes_nothing(session, clock):
    put(session)
    put(session, key="other")
    ask = {"key": "s", "idempotency_key": "x" * 500}
    job = session.one("schedule_run_now", **ask)
    later = session.one("schedule_run_now", key="s", idempotency_key="y")
    before = stored(session)
    assert session.one("schedule_run_now", **ask) == job
    assert session.one("schedule_run_now", **ask, id=uuid4()) == job
    assert (stored(session), before.last_job) == (before, later)
    assert session.one("schedule_run_now", key="other", idempotency_key="y") not in (job, later), "another schedule"
    session.one("schedule_remove", key="s")
    assert session.one("schedule_run_now", **ask) == job, "what was asked for has been done"
    with refused("LH002", "job_unknown"):
        session.one("schedule_run_now", key="s", idempotency_key="z")
    for wrong in ("", "x" * 501):
        with refused("LH003", "invalid_argument"):
            session.one("schedule_run_now", key="other", idempotency_key=wrong)
    assert session.value("select count(*) from jobs") == 3


def test_two_that_run_it_now_under_one_key_at_the_same_moment_get_one_job(db, session, gate):
    put(session)
    crowd = [db.connect() for _ in range(6)]
    ask = f"select schedule_run_now_v1('s', idempotency_key => 'x') from (select {gate.SQL}) at_once"
    with ThreadPoolExecutor(len(crowd)) as threads:
        with gate:
            asked = [threads.submit(one.value, ask) for one in crowd]
            gate.wait_for(len(crowd))
        jobs = {one.result() for one in asked}
    assert jobs == set(session.values("select id from jobs"))
    assert len(jobs) == 1


def test_a_problem_is_kept_for_people_until_the_schedule_is_fired_or_changed(session, clock):
    put(session)
    claimed = claim(session)
    tell = {"key": "s", "worker": "w", "token": claimed.token, "problem": "no such zone"}
    assert session.one("schedule_problem", **tell) is True
    assert session.one("schedule_problem", **{**tell, "worker": "other"}) is False
    assert stored(session).problem == "no such zone"
    with refused("LH005", "job_locked"):
        claim(session)
    put(session, every="2 hours")
    assert stored(session).problem is None
    claimed = claim(session)
    session.one("schedule_problem", **{**tell, "token": claimed.token})
    fire(session, claimed, [], clock.now + HOUR)
    assert stored(session).problem is None


def test_a_fire_waits_a_bounded_time_for_a_session_that_sleeps_and_is_done_afterwards(db, session, clock):
    put(session)
    clock.advance(60)
    claimed = claim(session)
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.one("schedule_run_now", key="s")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            fire(session, claimed, [clock.now], clock.now + HOUR)
    assert len(fire(session, claimed, [clock.now], clock.now + HOUR)) == 1


def test_a_worker_that_declares_nothing_new_does_not_wait_for_a_schedule_that_is_being_changed(db, session, clock):
    declared = [{"key": "s", "kind": "k", "every": "1 minute"}]
    assert session.column("schedule_sync", declarations=declared) == ["s"]
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.one("schedule_run_now", key="s")
        assert session.column("schedule_sync", declarations=declared) == []
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.column("schedule_sync", declarations=[declared[0] | {"every": "2 minutes"}])
