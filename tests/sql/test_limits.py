"""Limits: what each scope bounds, in which order places are given, and when they come back."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from faults.waiting import until
from tests.sql.limits import claimed, complete, set_limit

NAMES = {"global": "", "queue": "q", "kind": "k", "key": "t1/"}
SCOPES = list(NAMES)


def fill(db, session, jobs=10, **columns):
    """Jobs that all four limits bear upon."""
    return db.insert(session, jobs, queue="'q'", kind="'k'", **{"exclusive_key": "'t1/' || n", **columns})


def running(session) -> int:
    return session.value("select count(*) from jobs where state = 'running'")


@pytest.mark.parametrize("scope", SCOPES)
def test_no_more_jobs_run_than_the_limit_says_and_each_end_lets_one_in(db, session, scope):
    ids = fill(db, session)
    set_limit(session, scope, NAMES[scope], 3)
    first = claimed(session)
    assert first == ids[:3]
    assert claimed(session) == []
    complete(session, first[0])
    assert claimed(session) == ids[3:4]
    complete(session, *first[1:])
    assert claimed(session, count=1) == ids[4:5]
    assert claimed(session) == ids[5:6]
    db.assert_consistent(session)


@pytest.mark.parametrize("scope", SCOPES)
def test_with_a_limit_of_zero_nothing_runs_until_it_is_raised_or_dropped(db, session, scope):
    ids = fill(db, session)
    set_limit(session, scope, NAMES[scope], 0)
    assert claimed(session) == []
    assert session.one("claim_job", job_id=ids[5], worker="w") is False
    set_limit(session, scope, NAMES[scope], 2)
    assert claimed(session) == ids[:2]
    assert session.one("drop_limit", scope=scope, name=NAMES[scope]) is True
    assert claimed(session) == ids[2:]
    assert session.one("drop_limit", scope=scope, name=NAMES[scope]) is False


@pytest.mark.parametrize("scope", SCOPES)
def test_a_lowered_limit_interrupts_no_job_and_lets_none_in(db, session, scope):
    fill(db, session)
    set_limit(session, scope, NAMES[scope], 4)
    ids = claimed(session)
    set_limit(session, scope, NAMES[scope], 2)
    complete(session, *ids[:2])
    assert claimed(session) == []
    complete(session, ids[2])
    assert len(claimed(session)) == 1
    assert running(session) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_claim_job_obeys_limits(db, session, scope):
    ids = fill(db, session)
    set_limit(session, scope, NAMES[scope], 1)
    assert session.one("claim_job", job_id=ids[7], worker="w") is True
    assert session.one("claim_job", job_id=ids[2], worker="w") is False
    complete(session, ids[7])
    assert session.one("claim_job", job_id=ids[2], worker="w") is True
    assert session.job(ids[2])["parked"] is False


@pytest.mark.parametrize("scope", SCOPES)
def test_a_limit_applies_to_no_other_job(db, session, scope):
    set_limit(session, scope, NAMES[scope], 0)
    fill(db, session)
    others = db.insert(session, 3, queue="'other'", kind="'l'", exclusive_key="'t10/' || n")
    others += db.insert(session, 3, queue="'other'", kind="'l'")
    assert claimed(session) == ([] if scope == "global" else others)


@pytest.mark.parametrize("swept", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_place_comes_back_the_moment_a_lease_expires_swept_or_not(db, session, clock, scope, swept):
    ids = fill(db, session)
    set_limit(session, scope, NAMES[scope], 2)
    first = claimed(session)
    clock.advance(14.9)
    assert claimed(session) == []
    clock.advance(0.1)
    if swept:
        session.one("sweep")
    assert len(claimed(session)) == 2
    assert running(session) == 2
    assert [len(session.attempts(job)) for job in first] == [1, 1]
    assert session.value("select count(*) from jobs where id = any(%s)", ids) == 10


RUNNING = "running_jobs(l)"


def renewing_while_another_claims(db, session, clock) -> list:
    """A heartbeat finds the lease alive, and commits when it would have expired. Gives what is claimed in between."""
    fill(db, session)
    (job,) = claimed(session)
    clock.advance(14.9)
    renewer = db.connect()
    with renewer.transaction():
        assert renewer.column("heartbeat", worker="w", ids=[job], attempts=[1]) == [job]
        clock.advance(0.1)
        others = session.values("select id from jobs where state = 'queued' order by id")
        return claimed(session) + [one for one in others if session.one("claim_job", job_id=one, worker="v")]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_lease_that_is_being_renewed_keeps_its_place(db, session, clock, scope):
    set_limit(session, scope, NAMES[scope], 1)
    assert renewing_while_another_claims(db, session, clock) == []
    assert running(session) == 1


def test_the_renewal_catches_the_naive_version_that_counts_by_expiry(db, session, clock):
    set_limit(session, "queue", "q", 1)
    session.mutate("running_under", RUNNING, RUNNING + " j where j.lease_expires_at > clock()")
    assert len(renewing_while_another_claims(db, session, clock)) == 1
    assert running(session) == 2


def admitted(jobs, limits, count) -> list:
    """The law of order: the best first, each of them if all its limits have room."""
    room, taken = dict(limits), []
    for job_id, queue, kind in jobs:
        own = [limit for limit in (("global", ""), ("queue", queue), ("kind", kind)) if limit in room]
        if len(taken) < count and all(room[limit] for limit in own):
            taken.append(job_id)
            for limit in own:
                room[limit] -= 1
    return taken


@pytest.mark.parametrize("seed", range(12))
def test_places_under_shared_limits_go_in_claim_order(db, session, seed):
    chance = random.Random(seed)
    lanes = chance.choice([1, 2, 4])
    kind = f"(array['a', 'b', 'c', 'd'])[1 + n % {lanes}]"
    db.insert(session, 300, queue="'q' || n / 7 % 3", kind=kind, priority=f"(n * 7919) % {chance.choice([1, 5, 60])}")
    names = [("global", ""), ("queue", "q0"), ("queue", "q1"), ("kind", "a"), ("kind", "b")]
    limits = {limit: chance.choice([0, 1, 5, 30, 90]) for limit in chance.sample(names, 3)}
    for (scope, name), room in limits.items():
        set_limit(session, scope, name, room)
    jobs = session.execute("select id, queue, kind from jobs order by -priority, id").fetchall()
    count = chance.choice([1, 20, 100, 300])
    assert claimed(session, count=count) == admitted(jobs, limits, count)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_claim_with_an_old_snapshot_is_refused_where_there_are_limits(db, session, level):
    ids = fill(db, session)
    other = db.connect()
    other.execute(f"begin isolation level {level}")
    other.value("select count(*) from jobs")
    set_limit(session, "queue", "q", 1)  # later than the snapshot, which cannot show it
    for call in ({"function": "claim", "worker": "w"}, {"function": "claim_job", "job_id": ids[0], "worker": "w"}):
        with pytest.raises(psycopg.Error) as caught:
            other.rows(**call)
        assert caught.value.sqlstate == "LH003"
        other.execute(f"rollback; begin isolation level {level}")
    assert running(session) == 0


def test_a_limit_waits_for_the_claims_that_do_not_know_of_it(db, session):
    fill(db, session)
    claimer, setter = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with claimer.transaction():
            assert len(claimed(claimer, count=4)) == 4
            setting = pool.submit(set_limit, setter, "queue", "q", 5)
            until(lambda: waits(session, setter), "the limit waits for the claim")
            assert not setting.done()
        setting.result()
    assert len(claimed(session)) == 1


def waits(session, setter) -> bool:
    query = "select wait_event in ('PgSleep', 'advisory') from pg_stat_activity where pid = %s"
    return session.value(query, setter.info.backend_pid) is True


def test_while_a_limit_waits_for_an_open_claim_other_claims_go_on(db, session):
    fill(db, session)
    db.insert(session, 5, queue="'other'", kind="'k'")
    claimer, setter = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with claimer.transaction():
            assert len(claimed(claimer, count=4, queues=["q"])) == 4
            setting = pool.submit(set_limit, setter, "queue", "q", 5)
            until(lambda: waits(session, setter), "the limit waits for the claim")
            for _ in range(5):
                assert len(claimed(session, count=1, worker="v", queues=["other"])) == 1
            assert not setting.done()
        setting.result()


def test_a_new_limit_is_set_though_claims_never_pause(db, session):
    """One of three claims is always under way, each in a transaction that lasts a while."""
    stop = threading.Event()

    def claim_and_wait() -> None:
        with db.connect() as claimer:
            while not stop.is_set():
                with claimer.transaction():
                    claimed(claimer, count=1, queues=["none"])
                    claimer.execute("select pg_sleep(0.03)")

    with ThreadPoolExecutor(6) as pool:
        claims = [pool.submit(claim_and_wait) for _ in range(6)]
        try:
            set_limit(session, "queue", "q", 5)
        finally:
            stop.set()
        for ended in claims:
            ended.result()


@pytest.mark.parametrize("name", ["q", "unrelated"])
def test_a_transaction_that_sets_a_new_limit_and_stays_open_holds_up_no_claim(db, session, name):
    fill(db, session)
    setter = db.connect()
    with setter.transaction():
        set_limit(setter, "queue", name, 2)
        session.execute("set statement_timeout = '20s'")
        assert len(claimed(session, count=3, queues=["q"])) == 3
    assert len(claimed(session, count=1, worker="v", queues=["q"])) == (0 if name == "q" else 1)


def test_changing_a_limit_waits_only_for_the_claims_under_it(db, session):
    fill(db, session)
    db.insert(session, 5, queue="'other'", kind="'k'")
    set_limit(session, "queue", "q", 1)
    claimer = db.connect()
    with claimer.transaction():
        assert len(claimed(claimer, count=1, queues=["other"])) == 1
        set_limit(session, "queue", "q", 2)
    assert len(claimed(session, queues=["q"])) == 2


def test_a_limit_that_was_lowered_while_a_claim_waited_for_it_holds(db, session):
    """The claim has read the limit before it waits; what counts is what stands there when it has the lock."""
    fill(db, session)
    set_limit(session, "queue", "q", 5)
    setter, claimer = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with setter.transaction():
            set_limit(setter, "queue", "q", 2)
            claiming = pool.submit(claimed, claimer)
            db.until_blocked(session, [claimer.info.backend_pid])
        assert len(claiming.result()) == 2


@pytest.mark.parametrize("scope", ["queue", "kind"])
def test_limits_of_others_cost_neither_a_claim_nor_a_report(db, session, scope):
    """With two thousand of them, not one page of the jobs is read for each."""
    ids = fill(db, session, exclusive_key="'k' || n")
    session.execute(
        "insert into limits (scope, name, max_running, updated_at)"
        " select %s, 'other' || n, 1, clock() from generate_series(1, 2000) n",
        [scope],
    )
    session.execute("analyze limits")
    claiming = {"worker": "w", "count": 5}
    buffers(session, **claiming)  # plans are made
    assert buffers(session, **claiming) < 800
    ids = claimed(session, count=5)
    reporting = {"function": "complete", "worker": "w", "ids": ids, "attempts": [1] * len(ids)}
    buffers(session, **reporting)
    assert buffers(session, **reporting) < 800


def test_dropping_a_limit_with_many_parked_jobs_is_short_and_upkeep_puts_them_back(db, session):
    set_limit(session, "key", "t/", 1)
    db.insert(session, 3000, exclusive_key="'t/' || n", parked="true", parked_under="'t/'")
    assert session.one("drop_limit", scope="key", name="t/")
    assert session.value("select count(*) from jobs where not parked") == 1000
    rounds = session.rows("upkeep", max=1000)
    while rounds[-1].next_due is not None:
        assert rounds[-1].next_due == 0.1
        rounds += session.rows("upkeep", max=1000)
        assert len(rounds) < 10
    assert session.value("select count(*) from jobs where parked") == 0
    db.assert_consistent(session)


def test_dropping_a_limit_waits_for_no_claim_elsewhere(db, session):
    fill(db, session)
    set_limit(session, "queue", "elsewhere", 1)
    claimer = db.connect()
    with claimer.transaction():
        assert claimed(claimer, count=2)
        assert session.one("drop_limit", scope="queue", name="elsewhere")


def locks_of(session, pid) -> list:
    query = "select mode from pg_locks where pid = %s and relation = 'leasehold.limits'::regclass"
    return sorted(session.values(query, pid))


def row_locks(session) -> int:
    """Limits that another session has locked."""
    with session.transaction():
        free = session.values("select 1 from limits for update skip locked")
        return session.value("select count(*) from limits") - len(free)


@pytest.mark.parametrize(("scope", "name", "held"), [("queue", "elsewhere", 0), ("queue", "q", 1), ("kind", "full", 0)])
def test_a_claim_holds_only_the_limits_that_it_uses(db, session, scope, name, held):
    fill(db, session, exclusive_key="null")
    db.insert(session, 5, kind="'full'", queue="'full'")
    set_limit(session, scope, name, 0 if name == "full" else 5)
    claimer = db.connect()
    with claimer.transaction():
        assert claimed(claimer) != []
        assert row_locks(session) == held
        assert "ExclusiveLock" not in locks_of(session, claimer.info.backend_pid)


def free_jobs(session) -> int:
    with session.transaction(force_rollback=True):
        return len(session.values("select id from jobs for update skip locked"))


WAITERS = {
    "claim": lambda session, _: claimed(session),
    "claim_job": lambda session, ids: session.one("claim_job", job_id=ids[9], worker="v"),
}


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("waiter", list(WAITERS))
@pytest.mark.parametrize("scope", SCOPES)
def test_a_claim_that_waits_for_a_limit_has_locked_no_job(db, session, clock, scope, waiter, expired):
    """SKIP LOCKED may wait for a row that was just updated: jobs held while waiting for a limit would be a deadlock."""
    ids = fill(db, session)
    set_limit(session, scope, NAMES[scope], 3)
    if expired:
        assert len(claimed(session)) == 3
        clock.advance(15)
    holder, other = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool:
        with holder.transaction():
            holder.execute("select from limits for no key update")
            waiting = pool.submit(WAITERS[waiter], other, ids)
            until(lambda: waiting.done() or blocked(session, other), "the limit is waited for")
            if not waiting.done():  # a claim that had to sweep first does not wait at all
                assert free_jobs(session) == len(ids)
        waiting.result()


def blocked(session, other) -> bool:
    return session.value("select cardinality(pg_blocking_pids(%s)) > 0", other.info.backend_pid)


BAD = [
    ("tenant", "x", 1),
    (None, "x", 1),
    ("global", "x", 1),
    ("queue", "", 1),
    ("kind", None, 1),
    ("key", "", 1),
    ("key", "t\U0010ffff", 1),
    ("queue", "q" * 201, 1),
    ("queue", "q", -1),
    ("queue", "q", None),
]


@pytest.mark.parametrize(("scope", "name", "max_running"), BAD)
def test_a_limit_that_makes_no_sense_is_refused(session, scope, name, max_running):
    with pytest.raises(psycopg.Error) as caught:
        set_limit(session, scope, name, max_running)
    assert (caught.value.sqlstate, caught.value.diag.message_primary) == ("LH003", "invalid_argument")
    assert session.value("select count(*) from limits") == 0


def test_the_overview_counts_live_leases(db, session):
    session.rows("declare_kinds", kinds=["k"], lease_seconds=[0.1])
    fill(db, session, 5)
    for scope, name in NAMES.items():
        set_limit(session, scope, name, 3)
    set_limit(session, "queue", "other", 7)
    claimed(session)
    until(lambda: session.value("select sum(running) from limit_overview") == 0, "the leases have expired")
    session.rows("declare_kinds", kinds=["k"], lease_seconds=[60])
    assert len(claimed(session)) == 3
    found = session.execute("select scope, name, max_running, running from limit_overview order by 1, 2").fetchall()
    wanted = [(scope, name, 3, 3) for scope, name in NAMES.items()] + [("queue", "other", 7, 0)]
    assert found == sorted(wanted)


def hints(listener) -> list:
    return [notification.payload for notification in listener.notifies(timeout=0.2)]


def test_a_worker_that_found_a_limit_exhausted_is_notified_when_it_is_not(db, session):
    ids = fill(db, session, exclusive_key="null")
    listener = db.connect()
    listener.execute("listen leasehold")
    set_limit(session, "queue", "q", 2)
    set_limit(session, "kind", "k", 5)
    assert hints(listener) == ["", ""]
    assert claimed(session) == ids[:2]
    complete(session, ids[0])
    assert hints(listener) == ["q"]  # the kind was not exhausted
    complete(session, ids[1])
    assert hints(listener) == []  # nor was the queue this time
    session.one("drop_limit", scope="queue", name="q")
    assert hints(listener) == [""]


def buffers(session, function="claim", **arguments) -> int:
    """Pages that a call reads, all its functions included."""
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    with session.transaction(force_rollback=True):
        explain = f"explain (analyze, buffers, timing off, format json) select * from {function}({named})"
        plan = session.execute(explain, arguments).fetchone()[0][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize("scope", ["queue", "kind"])
def test_a_backlog_behind_an_exhausted_limit_costs_other_lanes_nothing(db, session, scope):
    db.insert(session, 20_000, queue="'q'", kind="'k'", priority="9")
    db.insert(session, 10, queue="'other'", kind="'l'")
    set_limit(session, scope, NAMES[scope], 0)
    call = {"worker": "w", "queues": ["q", "other"], "kinds": ["k", "l"], "count": 5}
    # The first call plans its statements, and so does any call after autovacuum has analyzed a table.
    assert min(buffers(session, **call) for _ in range(5)) < 250  # the backlog has thousands
    assert len(claimed(session)) == 10
