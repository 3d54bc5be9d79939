"""Exclusive keys: at most one job a key runs, nobody waits behind it, and none is left behind."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

# Writes down each start and end of running; per key they must alternate.
LOG = """
create table running_log (place bigserial, exclusive_key text, id uuid, starts boolean);
create function log_running() returns trigger language plpgsql as $$
begin
  insert into leasehold.running_log (exclusive_key, id, starts)
  values (new.exclusive_key, new.id, new.state = 'running');
  return null;
end $$;
create trigger log_running after update of state on jobs for each row
when ((old.state = 'running') <> (new.state = 'running') and new.exclusive_key is not null)
execute function log_running();
"""


def overlaps(session) -> int:
    """How often a job of a key started while another one of it ran."""
    running: dict[str, set] = {}
    found = 0
    for key, job_id, starts in session.execute(
        "select exclusive_key, id, starts from running_log order by place"
    ).fetchall():
        ours = running.setdefault(key, set())
        if starts:
            found += bool(ours)
            ours.add(job_id)
        else:
            ours.discard(job_id)
    return found


def claimed(session, worker="w", count=100):
    return session.column("claim", worker=worker, count=count)


def complete(session, job_id, worker="w", attempt=1):
    assert session.column("complete", worker=worker, ids=[job_id], attempts=[attempt]) == [job_id]


def parked(session):
    return session.values("select id from jobs where parked order by id")


def current(session, key="x"):
    return session.values("select id from jobs where exclusive_key = %s and is_current", key)


def finish(session, job_id, worker):
    """As a worker does it: a report whose row is locked is repeated."""
    while True:
        try:
            return complete(session, job_id, worker)
        except psycopg.errors.LockNotAvailable:
            continue


@pytest.mark.parametrize("jobs", [2, 20])
def test_fifty_claimers_never_run_two_jobs_of_one_key_and_finish_them_all(db, session, jobs):
    """At no moment is a job parked that neither a running sibling, nor a runnable one, nor upkeep will put back."""
    session.execute(LOG)
    session.one("declare_kinds", kinds=["k"], lease_seconds=[600])
    ids = db.insert(session, jobs, exclusive_key="'x'")
    others = db.insert(session, 10, exclusive_key="'y' || n") + db.insert(session, 10)
    wanted = set(ids + others)

    def work(claimer, place):
        worker, chance, done = f"w{place}", random.Random(place), []
        end = time.monotonic() + 120
        while left := claimer.value("select count(*) from jobs where state <> 'success'"):
            assert time.monotonic() < end, f"{left} jobs do not finish"
            if place == 1:
                assert claimer.value("select forgotten_jobs(100)") == []
            if place % 3:
                mine = claimed(claimer, worker, chance.randint(1, 5))
            else:
                mine = [job for job in chance.sample(ids, 2) if claimer.one("claim_job", job_id=job, worker=worker)]
            for job_id in mine:
                finish(claimer, job_id, worker)
            done.extend(mine)
            if not mine and chance.random() < 0.1:
                claimer.one("promote")
        return done

    done = [job for jobs in db.crowd(50, work) for job in jobs]
    assert len(done) == len(wanted)
    assert set(done) == wanted
    assert overlaps(session) == 0
    assert len(current(session)) == 1
    db.assert_consistent(session)


def test_the_log_catches_a_claim_that_does_not_settle_keys(db, session):
    session.execute(LOG)
    session.execute("drop index jobs_current")
    session.mutate("settle_exclusive", "with head as materialized", "return candidates;\n  with head as materialized")
    db.insert(session, 2, exclusive_key="'x'")
    assert len(claimed(session)) == 2
    assert overlaps(session) == 1


def test_of_several_jobs_of_a_key_only_the_best_is_claimed_and_the_rest_is_parked(db, session):
    low, high, middle = (session.one("enqueue", kind="k", exclusive_key="x", priority=p) for p in (1, 9, 5))
    free = session.one("enqueue", kind="k", priority=-1)
    assert claimed(session) == [high, free]
    assert parked(session) == sorted([low, middle])
    complete(session, high)
    assert parked(session) == [low]
    assert claimed(session) == [middle]
    complete(session, middle)
    assert claimed(session) == [low]
    assert current(session) == [low]


def test_a_backlog_behind_a_busy_key_hides_nobody(db, session):
    db.insert(session, 500, exclusive_key="'x'", priority="100")
    other = session.one("enqueue", kind="k", exclusive_key="y")
    free = session.one("enqueue", kind="k")
    (first,) = claimed(session, count=1)
    assert claimed(session, count=2) == [other, free]
    assert claimed(session, count=2) == []
    complete(session, first)
    assert len(claimed(session)) == 1


def test_one_claim_gives_as_many_jobs_of_different_keys_as_were_wanted_in_claim_order(db, session):
    """Less than wanted would mean to a worker that there is no more, and it would wait."""
    db.insert(session, 700, exclusive_key="case when n % 3 > 0 then 'x' || n end", priority="n % 2")
    best = session.values("select id from jobs order by -priority, id limit 500")
    assert claimed(session, count=500) == best
    assert len(claimed(session, count=500)) == 200


def test_a_claim_stops_at_a_thousand_keys_and_says_that_there_are_more(db, session):
    db.insert(session, 1200, exclusive_key="'x' || n")
    listener = db.connect()
    listener.execute("listen leasehold")
    assert len(claimed(session, count=5000)) == 1000
    assert [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)] == ["default"]
    assert len(claimed(session, count=5000)) == 200


def test_a_long_backlog_behind_a_busy_key_is_parked_by_several_claims_that_say_so(db, session):
    (first,) = db.insert(session, 1, exclusive_key="'x'")
    assert claimed(session) == [first]
    db.insert(session, 12_000, exclusive_key="'x'")
    free = session.one("enqueue", kind="k")
    listener = db.connect()
    listener.execute("listen leasehold")
    assert claimed(session) == []
    assert [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)] == ["default"]
    assert 0 < session.value("select count(*) from jobs where parked") <= 10_000
    assert claimed(session) == [free]
    assert session.value("select count(*) from jobs where parked") == 12_000
    db.assert_consistent(session)


@pytest.mark.parametrize("keys", [99, 100, 101, 350])
def test_any_number_of_keys_is_claimed_in_the_end(db, session, keys):
    db.insert(session, 2 * keys, exclusive_key=f"'x' || n % {keys}")
    taken = []
    while ids := claimed(session, count=1000):
        taken.extend(ids)
    assert len(taken) == keys
    db.assert_consistent(session)
    for job_id in taken:
        complete(session, job_id)
    while ids := claimed(session, count=1000):
        taken.extend(ids)
    assert len(set(taken)) == 2 * keys


def test_claim_job_skips_a_busy_key_and_parks_the_job(session):
    first, second = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert session.one("claim_job", job_id=first, worker="w") is True
    assert session.one("claim_job", job_id=second, worker="w") is False
    assert parked(session) == [second]
    assert claimed(session) == []
    complete(session, first)
    assert session.one("claim_job", job_id=second, worker="w") is True
    assert current(session) == [second]


def test_claim_job_takes_a_parked_job_of_an_idle_key_before_the_head(session):
    first, second, third = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [first]
    complete(session, first)  # the second is the head now, the third is parked
    assert parked(session) == [third]
    assert session.one("claim_job", job_id=third, worker="w") is True
    assert parked(session) == [second]
    complete(session, third)
    assert claimed(session) == [second]


ENDINGS = {
    "complete": lambda s, job: s.column("complete", worker="w", ids=[job], attempts=[1]),
    "fail": lambda s, job: s.one("fail", worker="w", id=job, attempt=1, retry_after=60),
    "fail for good": lambda s, job: s.one("fail", worker="w", id=job, attempt=1, fatal=True),
    "snooze": lambda s, job: s.one("fail", worker="w", id=job, attempt=1, outcome="snoozed", retry_after=60),
    "cancel": lambda s, job: s.one("cancel", id=job),
    "release": lambda s, job: s.column("release", worker="w", ids=[job], attempts=[1]),
}


@pytest.mark.parametrize("end", list(ENDINGS.values()), ids=list(ENDINGS))
def test_whichever_way_the_holder_ends_its_key_is_free_and_it_is_retired(db, session, end):
    holder = session.one("enqueue", kind="k", exclusive_key="x")
    assert claimed(session) == [holder]
    waiting = session.one("enqueue", kind="k", exclusive_key="x", priority=1)
    assert claimed(session) == []
    assert parked(session) == [waiting]
    end(session, holder)
    assert parked(session) == []
    assert claimed(session, count=1) == [waiting]
    assert current(session) == [waiting]
    db.assert_consistent(session)


@pytest.mark.parametrize("swept", [True, False])
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_an_expired_holder_does_not_block_its_key_swept_or_not(db, session, clock, swept, max_attempts):
    holder = session.one("enqueue", kind="k", exclusive_key="x", max_attempts=max_attempts)
    assert claimed(session) == [holder]
    waiting = session.one("enqueue", kind="k", exclusive_key="x", priority=1)
    assert claimed(session) == []
    clock.advance(15)
    if swept:
        assert session.one("sweep") == 1
        assert claimed(session) == [waiting]
    else:
        assert session.one("claim_job", job_id=waiting, worker="w") is True
    assert session.job(holder)["state"] == ("dead" if max_attempts == 1 else "queued")
    assert [a.outcome for a in session.attempts(holder)] == ["lease_expired"]
    assert current(session) == [waiting]
    db.assert_consistent(session)


def test_the_cancelled_head_of_a_queue_lets_the_next_one_out(db, session):
    first, second, third = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [first]
    complete(session, first)
    assert parked(session) == [third]
    assert session.one("cancel", id=second) is True
    assert parked(session) == []
    assert claimed(session) == [third]


def test_a_retried_job_waits_for_its_key_like_any_other(session):
    dead = session.one("enqueue", kind="k", exclusive_key="x")
    session.one("cancel", id=dead)
    holder = session.one("enqueue", kind="k", exclusive_key="x")
    assert claimed(session) == [holder]
    assert session.one("retry", id=dead) is True
    assert claimed(session) == []
    complete(session, holder)
    assert claimed(session) == [dead]


def stop_before_settling(session, gate) -> None:
    """Every settling waits at the gate, with its candidates locked."""
    session.mutate(
        "settle_exclusive",
        "with head as materialized",
        f"perform {gate.SQL};\n  with head as materialized",
    )


@pytest.mark.parametrize("end", list(ENDINGS.values()), ids=list(ENDINGS))
def test_a_parked_job_that_is_being_looked_at_while_its_holder_ends_is_not_forgotten(db, session, gate, end):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    assert parked(session) == [waiting]
    stop_before_settling(session, gate)
    looker, ender = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool, ender.transaction():
        with gate:
            look = pool.submit(looker.one, "claim_job", job_id=waiting, worker="v")
            gate.wait_for(1)
            end(ender, holder)  # cannot lock the waiting job: the looker has it
        assert look.result() is False  # the holder has not committed its end
    session.one("promote")  # where the end could not wait for the looker, it has noted the key
    assert parked(session) == []
    db.assert_consistent(session)


def test_a_sibling_that_turns_up_during_a_claim_is_not_taken_as_well(db, session, gate):
    """A claim that wants more looks again, and must remember the keys that it has just taken."""
    first = session.one("enqueue", kind="k", exclusive_key="x")
    session.mutate("settle_exclusive", "\n  return array(", f"\n  perform {gate.SQL};\n  return array(")
    claimer = db.connect()
    with ThreadPoolExecutor(1) as pool:
        with gate:
            claim = pool.submit(claimed, claimer)
            gate.wait_for(1)
            second = session.one("enqueue", kind="k", exclusive_key="x")
        assert claim.result() == [first]
    db.assert_consistent(session)
    complete(session, first)
    assert claimed(session) == [second]


# A session that dies while it holds a parked job must not leave it behind. It does: see the reasons.
def test_a_rolled_back_cancel_of_a_parked_job_does_not_leave_it_behind(db, session):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    canceller = db.connect()
    with canceller.transaction(force_rollback=True):
        assert canceller.one("cancel", id=waiting) is True
        complete(session, holder)
    session.one("promote")
    db.assert_consistent(session)
    assert claimed(session) == [waiting]


def test_a_claim_job_that_dies_does_not_leave_its_job_behind(db, session, gate):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    stop_before_settling(session, gate)
    looker = db.connect()
    with ThreadPoolExecutor(1) as pool, gate:
        look = pool.submit(looker.one, "claim_job", job_id=waiting, worker="v")
        gate.wait_for(1)
        complete(session, holder)
        session.execute("select pg_cancel_backend(%s)", [looker.info.backend_pid])
        assert isinstance(look.exception(), psycopg.errors.QueryCanceled)
    session.one("promote")
    db.assert_consistent(session)


UNFINISHED = "select count(*) from jobs where state not in ('success', 'dead')"
ENDS = {
    "complete": (8, lambda s, w, job, n: s.rows("complete", worker=w, ids=[job], attempts=[n])),
    "fail": (2, lambda s, w, job, n: s.rows("fail", worker=w, id=job, attempt=n, retry_after=0.01)),
    "fatal": (1, lambda s, w, job, n: s.rows("fail", worker=w, id=job, attempt=n, fatal=True)),
    "snooze": (
        1,
        lambda s, w, job, n: s.rows("fail", worker=w, id=job, attempt=n, outcome="snoozed", retry_after=0.01),
    ),
    "release": (2, lambda s, w, job, n: s.rows("release", worker=w, ids=[job], attempts=[n])),
    "cancel": (1, lambda s, _w, job, _n: s.rows("cancel", id=job)),
    "abandon": (1, lambda _s, _w, _job, _n: None),  # the lease expires
}


def take_some(session, chance, worker, ids) -> list:
    if chance.random() < 0.4:
        job = chance.choice(ids)
        won = session.one("claim_job", job_id=job, worker=worker)
        return [(row.id, row.attempt) for row in session.rows("owned", worker=worker) if row.id == job] if won else []
    return [(row.id, row.attempt) for row in session.rows("claim", worker=worker, count=chance.randint(1, 9))]


def finish_all(session, place, ids, end) -> None:
    """Claim and end jobs in every way there is, until none is left."""
    worker, chance = f"w{place}", random.Random(place)
    weights = [weight for weight, _ in ENDS.values()]
    while left := session.value(UNFINISHED):
        assert time.monotonic() < end, f"{left} jobs do not finish"
        whim = chance.random()
        if whim < 0.1:
            session.one("cancel", id=chance.choice(ids))
        elif whim < 0.3:
            session.one("sweep", max=chance.randint(1, 20))
            session.one("promote")
        for job, attempt in take_some(session, chance, worker, ids):
            _, finish = chance.choices(list(ENDS.values()), weights)[0]
            finish(session, worker, job, attempt)


def test_no_job_stays_parked_for_ever_whatever_its_siblings_do(db, session):
    session.execute(LOG)
    session.one("declare_kinds", kinds=["k"], lease_seconds=[0.1])
    ids = db.insert(session, 300, exclusive_key="'x' || n % 7", priority="n % 3", max_attempts="30000")
    ids += db.insert(session, 50)
    end = time.monotonic() + 40
    db.crowd(24, lambda s, place: finish_all(s, place, ids, end))
    assert session.value(UNFINISHED) == 0
    assert overlaps(session) == 0
    db.assert_consistent(session)


def test_a_job_that_ends_under_an_old_snapshot_leaves_none_of_its_key_behind(db, session):
    """What was parked after the snapshot is not seen by it: upkeep puts it back."""
    first = session.one("enqueue", kind="k", exclusive_key="x")
    assert session.one("claim_job", job_id=first, worker="w") is True
    old = db.connect()
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with old.transaction():
        old.execute("select 1 from jobs limit 1")
        second = session.one("enqueue", kind="k", exclusive_key="x")
        assert session.column("claim", worker="v", count=10) == []
        assert session.job(second)["parked"]
        assert old.column("complete", worker="w", ids=[first], attempts=[1]) == [first]
    session.one("promote")
    assert session.column("claim", worker="v", count=10) == [second]


def advisory_locks(session, backend) -> int:
    return session.value(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = %s", backend.info.backend_pid
    )


def test_a_report_of_many_keys_locks_500_of_them_and_upkeep_frees_the_rest(db, session):
    """Each lock takes a place in a table that the whole server shares."""
    db.insert(session, 2000, exclusive_key="'x' || n % 1000")
    first = claimed(session, count=1000)
    assert len(first) == 1000
    assert len(parked(session)) == 1000
    reporter, listener = db.connect(), db.connect()
    listener.execute("listen leasehold")
    with reporter.transaction():
        assert len(reporter.column("complete", worker="w", ids=first, attempts=[1] * 1000)) == 1000
        assert advisory_locks(session, reporter) == 500
    assert "@due" in [notify.payload for notify in listener.notifies(timeout=60, stop_after=2)]
    assert session.value("select count(*) from unpark_later") == 500
    assert len(parked(session)) == 500
    assert session.value("select next_due from upkeep()") is None
    assert session.value("select count(*) from unpark_later") == 0
    assert parked(session) == []
    assert len(claimed(session, count=1000)) == 1000
    db.assert_consistent(session)


def test_the_end_of_a_job_whose_key_is_in_use_wakes_upkeep(db, session):
    holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    assert claimed(session) == [holder]
    looker, listener = db.connect(), db.connect()
    listener.execute("listen leasehold")
    with looker.transaction():
        assert looker.one("claim_job", job_id=waiting, worker="v") is False
        complete(session, holder)
    assert [notify.payload for notify in listener.notifies(timeout=60, stop_after=1)] == ["@due"]
    assert session.value("select next_due from upkeep()") is None
    assert claimed(session) == [waiting]


def test_the_best_parked_job_is_locked_and_the_next_one_of_its_key_is_put_back(db, session):
    holder, best, next_best = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [holder]
    other = db.connect()
    with other.transaction():
        other.execute("select from jobs where id = %s for update", [best])
        complete(session, holder)
        assert parked(session) == [best]
        assert claimed(session) == [next_best]


def test_claim_job_of_a_job_that_is_over_does_not_take_its_key(db, session):
    over, holder, waiting = (session.one("enqueue", kind="k", exclusive_key="x") for _ in range(3))
    assert claimed(session) == [over]
    complete(session, over)
    assert claimed(session) == [holder]
    looker = db.connect()
    with looker.transaction():
        assert looker.one("claim_job", job_id=over, worker="v") is False
        assert looker.one("claim_job", job_id=holder, worker="v") is False
        assert session.value("select pg_try_advisory_xact_lock(exclusive_lock('x'))")
        complete(session, holder)
        assert parked(session) == []
    assert claimed(session) == [waiting]
