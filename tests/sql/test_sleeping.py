"""Transactions that are left open: what they hold up, and what goes on beside them."""

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from faults.waiting import until
from tests.sql.limits import complete, set_limit

HELD = {"queue": "held", "kind": "held", "key": "held/"}
"""A limit of each scope."""
UNDER = {"queue": {"queue": "held"}, "kind": {"kind": "held"}, "key": {"exclusive_key": "held/a"}}
"""What makes a job come under it."""


def enqueued(session, count=1, **intent):
    return [session.one("enqueue", **({"kind": "k"} | intent)) for _ in range(count)]


def claimed(session, function="claim", worker="w", count=10, **options):
    return [row.id for row in session.rows(function, worker=worker, count=count, claim_id=uuid4(), **options)]


def wait(session, seconds):
    """Let claims wait so long for limits."""
    session.execute(
        "create or replace function limits_wait() returns interval language sql immutable parallel safe"
        f" return interval '{seconds} seconds'"
    )


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
    wait(session, 60)
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
        until(lambda: any(pid in row.detail for row in session.rows("explain", job_id=held)), "it is named")
        assert session.rows("explain", job_id=enqueued(session)[0]) == []
    assert session.rows("explain", job_id=held) == []


@pytest.mark.parametrize("function", ["claim", "claim_job"])
def test_explain_names_the_session_that_keeps_limits_it_took_in_a_subtransaction(db, session, function):
    set_limit(session, "queue", "held", 5)
    set_limit(session, "kind", "k", 5)
    (first,) = enqueued(session, queue="held")
    session.rows("start_worker", worker="w", kinds=["k"])
    sleeper = db.connect()
    with sleeper.transaction():
        if function == "claim":
            assert claimed(sleeper, worker="v") == [first]
        else:
            assert sleeper.one("claim_job", job_id=first, worker="v") is True
        (held,) = enqueued(session, queue="held")
        pid = f"pid {sleeper.info.backend_pid}"
        until(lambda: any(pid in row.detail for row in session.rows("explain", job_id=held)), "it is named")
    assert session.rows("explain", job_id=held) == []


def test_the_session_that_keeps_an_expired_job_from_being_swept_is_named(db, session):
    job = session.one("enqueue", kind="k")
    assert session.one("claim_job", job_id=job, worker="w") is True
    session.execute("update jobs set lease_expires_at = now() - interval '1 hour'")
    ((reason, detail, *_),) = session.rows("explain", job_id=job)
    assert (reason, "worker w had it until" in detail, "locked" in detail) == ("lease_expired", True, False)
    assert [row.cure for row in session.rows("doctor") if row.name == "leases"] == [
        "start a worker: each of them sweeps"
    ]
    locker = db.connect()
    with locker.transaction():
        locker.execute("select from jobs for update")
        words = f"(pid {locker.info.backend_pid}"
        until(lambda: any(words in row.detail for row in session.rows("explain", job_id=job)), "explain names it")
        (leases,) = (row for row in session.rows("doctor") if row.name == "leases")
        assert (words in leases.detail, "pg_terminate_backend" in leases.cure) == (True, True), leases


@pytest.mark.parametrize("scope", HELD)
def test_a_claim_that_waits_for_one_limit_keeps_no_other(db, session, scope):
    """The claim waits for a limit that stays locked; meanwhile another takes what only the other limits bear upon."""
    wait(session, 60)
    set_limit(session, "global", "", 1000)
    set_limit(session, "kind", "k", 1000)
    set_limit(session, "queue", "another", 1000)
    set_limit(session, scope, HELD[scope], 5)
    (held,) = enqueued(session, **UNDER[scope])
    others = enqueued(session, 3, queue="another")
    holder, claimer = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with holder.transaction():
            holder.rows("set_limit", scope=scope, name=HELD[scope], max_running=6)
            claim = pool.submit(claimed, claimer)
            db.until_blocked(session, [claimer.info.backend_pid])
            free = session.values("select scope from limits for no key update skip locked")
            assert "global" in free
            assert len(free) == 3
            assert claimed(session, worker="v", queues=["another"]) == others
        assert claim.result() == [held]
    db.assert_consistent(session)


def test_an_exhausted_global_limit_is_not_taken(db, session):
    set_limit(session, "global", "", 1)
    enqueued(session, 2)
    assert len(claimed(session, count=1)) == 1
    with session.transaction():
        assert claimed(session) == []
        assert db.connect().values("select scope from limits for no key update skip locked") == ["global"]


def test_other_queues_flow_at_a_good_part_of_their_rate_while_a_limit_is_held(db, session):
    set_limit(session, "global", "", 100_000)
    set_limit(session, "queue", "held", 5)
    enqueued(session, **UNDER["queue"])
    db.insert(session, 20_000, queue="'free'", kind="'k'")
    free = flow(db, 1)
    assert free > 0
    sleeper = db.connect()
    with sleeper.transaction():
        sleeper.rows("set_limit", scope="queue", name="held", max_running=6)
        assert flow(db, 3) / 3 > free / 10


def flow(db, seconds):
    """How many jobs of queue `free` six claimers get, one at a time; all of them look at the held queue too."""

    def claims(claimer, place):
        end, taken = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            taken += len(claimed(claimer, worker=f"w{place}", count=5))
        return taken

    return sum(db.crowd(6, claims))


@pytest.mark.parametrize("scope", ["global", *HELD])
def test_claims_that_wait_in_vain_wake_no_worker_until_the_limit_is_free(db, session, scope):
    name = HELD.get(scope, "")
    set_limit(session, scope, name, 5)
    (held,) = enqueued(session, **UNDER.get(scope, {}))
    sleeper, listener = db.connect(), db.connect()
    listener.execute("listen leasehold")

    def heard():
        session.execute("notify leasehold, 'end'")
        notes = []
        for note in listener.notifies(timeout=60):
            if note.payload == "end":
                return notes
            notes.append(note.payload)
        return None

    with sleeper.transaction():
        sleeper.execute("select from limits for no key update")
        for _ in range(4):
            assert claimed(session) == []
        assert heard() == ["@due"]
        for _ in range(2):
            (row,) = session.rows("upkeep")
            assert row.next_due == pytest.approx(0.5)
        assert heard() == []
    session.rows("upkeep")
    assert heard() == ["held" if scope == "queue" else ""]
    (row,) = session.rows("upkeep")
    assert row.next_due is None
    assert claimed(session) == [held]


@pytest.mark.parametrize("scope", HELD)
@pytest.mark.parametrize("call", ["select promote()", "select upkeep(100, 'v')"])
def test_upkeep_left_open_keeps_no_limit_that_a_claim_has_waited_for(db, session, scope, call):
    set_limit(session, scope, HELD[scope], 5)
    (held,) = enqueued(session, **UNDER[scope])
    holder, sleeper, other = db.connect(), db.connect(), db.connect()
    with holder.transaction():
        holder.execute("select from limits for no key update")
        assert claimed(session) == []
    assert session.value("select count(*) from limits_to_recheck") == 1
    with sleeper.transaction():
        sleeper.execute(call)
        other.execute("set lock_timeout = '1s'")
        other.execute(call)  # it does not wait for the other either
        assert claimed(session) == [held]
    assert session.value("select count(*) from limits_to_recheck") == 0
    db.assert_consistent(session)


@pytest.mark.parametrize("function", ["claim", "claim_each", "claim_job"])
@pytest.mark.parametrize(
    "held",
    [
        "select from jobs where id = %s for key share",
        "select from jobs where id = %s for update",
        "select cancel(%s)",
        "select prune('0 s') where %s is not null",
    ],
)
@pytest.mark.parametrize("ending", ["complete", "cancel", "fail"])
def test_a_session_that_keeps_an_ended_job_locked_keeps_no_key(db, session, held, function, ending):
    first, then = enqueued(session, 2, exclusive_key="x")
    [job] = session.rows("claim", worker="w", count=1)
    assert (job.id, claimed(session)) == (first, [])
    if ending == "complete":
        complete(session, first)
    elif ending == "cancel":
        session.one("cancel", id=first)
        session.one("promote")
    else:
        session.rows("fail", worker="w", id=first, attempt=1, fatal=True)
    sleeper = db.connect()
    with sleeper.transaction():
        sleeper.execute(held, [first])
        if function == "claim_job":
            assert session.one("claim_job", job_id=then, worker="w") is True
        else:
            assert claimed(session, function) == [then]
    db.assert_consistent(session)


def test_explain_names_the_session_that_keeps_a_waiting_job_locked(db, session):
    session.rows("start_worker", worker="w", kinds=["k"])
    (job,) = enqueued(session)
    sleeper = db.connect()
    with sleeper.transaction():
        sleeper.execute("select from jobs where id = %s for update", [job])
        pid = f"pid {sleeper.info.backend_pid}"
        until(lambda: [row.reason for row in session.rows("explain", job_id=job)] == ["locked"])
        assert pid in session.rows("explain", job_id=job)[0].detail
    assert session.rows("explain", job_id=job) == []


def test_an_open_cancel_of_a_waiting_job_keeps_no_other_of_its_key(db, session):
    running, first, then = enqueued(session, 3, exclusive_key="x")
    assert claimed(session) == [running]
    sleeper = db.connect()
    with sleeper.transaction():
        assert sleeper.one("cancel", id=first) is True
        complete(session, running)
        assert claimed(session) == [then]
    complete(session, then)
    db.assert_consistent(session)


def test_an_open_cancel_of_a_job_behind_a_limit_keeps_no_other_of_the_limit(db, session):
    set_limit(session, "key", "lm-", 1)
    running, first, then = (enqueued(session, exclusive_key=f"lm-{n}")[0] for n in range(3))
    assert claimed(session) == [running]
    sleeper = db.connect()
    with sleeper.transaction():
        assert sleeper.one("cancel", id=first) is True
        complete(session, running)
        session.rows("upkeep", worker="w")
        assert claimed(session) == [then]
    complete(session, then)
    db.assert_consistent(session)


@pytest.mark.parametrize("ending", ["complete_in", "cancel"])
def test_an_open_end_of_a_running_job_keeps_no_other_of_the_limit(db, session, ending):
    set_limit(session, "key", "lm-", 2)
    first, second, waiting = (enqueued(session, exclusive_key=f"lm-{n}")[0] for n in range(3))
    assert claimed(session) == [first, second]
    sleeper = db.connect()
    with sleeper.transaction():
        if ending == "complete_in":
            claim_id = session.value("select claim_id from jobs where id = %s", first)
            assert sleeper.one("complete_in", worker="w", id=first, attempt=1, claim_id=claim_id) is True
        else:
            assert sleeper.one("cancel", id=first) is True
        complete(session, second)
        assert claimed(session) == [waiting]
    complete(session, waiting)
    db.assert_consistent(session)


@pytest.mark.parametrize("ending", ["complete_in", "cancel"])
def test_the_commit_of_an_end_puts_back_what_waits_for_its_key(db, session, ending):
    first, waiting = enqueued(session, 2, exclusive_key="x")
    assert claimed(session) == [first]
    ender = db.connect()
    with ender.transaction():
        if ending == "complete_in":
            claim_id = session.value("select claim_id from jobs where id = %s", first)
            assert ender.one("complete_in", worker="w", id=first, attempt=1, claim_id=claim_id) is True
        else:
            assert ender.one("cancel", id=first) is True
        session.rows("upkeep", worker="w")
        assert claimed(session) == []
    session.rows("upkeep", worker="w")
    assert claimed(session) == [waiting]
    db.assert_consistent(session)


@pytest.mark.parametrize("held", ["select cancel(%s)", "select from jobs where id = %s for update"])
def test_a_session_that_keeps_the_next_job_of_a_key_locked_keeps_the_key_for_a_minute_at_most(db, session, held):
    session.rows("start_worker", worker="w", kinds=["k"])
    running, first, *others = enqueued(session, 4, exclusive_key="x")
    assert claimed(session) == [running]
    complete(session, running)  # which puts the first of them back
    sleeper = db.connect()
    with sleeper.transaction():
        sleeper.execute(held, [first])
        assert claimed(session) == []
        pid = f"pid {sleeper.info.backend_pid}"
        until(lambda: pid in session.rows("explain", job_id=others[0])[0].detail, "explain names the session")
        (why,) = session.rows("explain", job_id=others[1])
        assert (why.reason, why.blocker) == ("exclusive_key", first)
        session.execute("delete from flow")  # a minute passes
        session.rows("upkeep", worker="w")
        assert claimed(session) == others[:1]
    complete(session, others[0])
    session.rows("upkeep", worker="w")
    for job in [others[1]] if "cancel" in held else [first, others[1]]:
        assert claimed(session) == [job]
        complete(session, job)
    db.assert_consistent(session)


def test_a_key_is_free_after_a_minute_also_if_two_sessions_keep_its_next_job_locked(db, session):
    running, first, second = enqueued(session, 3, exclusive_key="x")
    assert claimed(session) == [running]
    complete(session, running)
    referring, cancelling = db.connect(), db.connect()
    with referring.transaction(), cancelling.transaction():
        referring.execute("select from jobs where id = %s for key share", [first])
        session.rows("upkeep", worker="w")
        assert session.value("select parked from jobs where id = %s", second), "a foreign key keeps nothing"
        cancelling.execute("select cancel(%s)", [first])
        session.execute("delete from flow")  # a minute passes
        session.rows("upkeep", worker="w")
        assert claimed(session) == [second]
    db.assert_consistent(session)


@pytest.mark.parametrize("function", ["claim", "claim_each", "claim_job"])
@pytest.mark.parametrize("exclusive_key", [None, "x"])
def test_a_foreign_key_to_a_waiting_job_keeps_it_from_nothing(db, session, function, exclusive_key):
    (job,) = enqueued(session, exclusive_key=exclusive_key)
    sleepers = [db.connect(), db.connect()]
    with sleepers[0].transaction(), sleepers[1].transaction():
        for sleeper in sleepers:
            sleeper.execute("select from jobs where id = %s for key share", [job])
        if function == "claim_job":
            assert session.one("claim_job", job_id=job, worker="w") is True
        else:
            assert claimed(session, function) == [job]
        session.execute("update jobs set lease_expires_at = clock()")
        assert session.one("sweep") == 1
        assert claimed(session) == [job]
    db.assert_consistent(session)


@pytest.mark.parametrize("place", [0, 1])
def test_a_cancelled_job_that_could_have_run_next_leaves_its_place_to_another(db, session, place):
    running, *waiting = enqueued(session, 3, exclusive_key="x")
    assert claimed(session) == [running]
    complete(session, running)  # which puts the first of them back
    session.one("cancel", id=waiting.pop(place))
    session.one("promote")
    assert claimed(session) == waiting
    db.assert_consistent(session)
