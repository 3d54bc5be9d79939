"""Laws of the claim: the lock comes before the read, one caller wins, and all others have a constant answer."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from faults.waiting import until
from tests.schedules.conftest import claim, fire, refused, runs_of, stored

CALLERS = 50


@pytest.fixture
def due(session):
    """A schedule that is due."""
    session.one("schedule_put", key="s", kind="k", every="1 hour")
    return "s"


def try_claim(session, place: int) -> str:
    try:
        claim(session, worker=f"w{place}")
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    return "won"


def test_of_fifty_callers_one_wins_and_forty_nine_get_the_answer_that_it_is_locked(db, session, due):
    answers = db.crowd(CALLERS, try_claim)
    assert sorted(set(answers)) == ["LH005 job_locked", "won"]
    assert answers.count("won") == 1
    assert stored(session).locked_by == f"w{answers.index('won')}"


def test_while_one_is_claiming_the_others_do_not_wait(db, session, due):
    with db.connect() as winner, winner.transaction():
        claim(winner, worker="winner")
        with ThreadPoolExecutor(CALLERS) as pool:
            answers = list(pool.map(lambda n: try_claim(db.connect(), n), range(CALLERS - 1)))
        assert answers == ["LH005 job_locked"] * (CALLERS - 1)
    assert stored(session).locked_by == "winner"


def test_the_lock_comes_before_everything_else(db, session, due):
    """While another session holds it, nothing is read: not the row, not even whether there is one."""
    with db.connect() as holder, holder.transaction():
        holder.execute("select pg_advisory_xact_lock(schedule_lock(key)) from unnest(array['s', 'unknown']) key")
        for key in ("s", "unknown"):
            with refused("LH005", "job_locked"):
                claim(session, key=key)
    claim(session)


def test_the_lock_ends_with_the_transaction_of_a_caller_that_dies(db, session, due):
    winner = db.connect()
    winner.execute("begin")
    claim(winner, worker="winner")
    with refused("LH005", "job_locked"):
        claim(session)
    session.execute("select pg_terminate_backend(%s)", [winner.info.backend_pid])
    winner.close()
    until(lambda: try_claim(session, 2) == "won", "the dead caller's lock is gone")


def test_after_a_crash_between_claim_and_fire_the_next_one_is_let_in_when_the_claim_expires(session, clock, due):
    session.one("declare_kinds", kinds=["k"], lease_seconds=[30])
    first = claim(session, worker="died")
    assert first.locked_until == clock.now + timedelta(seconds=30)
    clock.advance(29.999)
    with refused("LH005", "job_locked"):
        claim(session, worker="next")
    clock.advance(0.001)
    second = claim(session, worker="next")
    assert second.locked_until == clock.now + timedelta(seconds=30)
    assert second.judged_at == first.judged_at, "what is due is judged as the one that died would have judged"
    with refused("LH005", "job_locked"):
        fire(session, first, [], clock.now + timedelta(hours=1), worker="died")
    assert runs_of(session) == []


def test_each_reason_has_its_constant_answer(session, clock, due):
    claimed = claim(session)
    with refused("LH005", "job_locked"):
        claim(session)
    fire(session, claimed, [], clock.now + timedelta(hours=1))
    with refused("LH006", "job_not_due"):
        claim(session)
    session.one("schedule_disable", key="s")
    with refused("LH007", "job_disabled"):
        claim(session)
    with refused("LH002", "job_unknown"):
        claim(session, key="other")
    with refused("LH003", "invalid_argument"):
        claim(session, worker="")
    session.one("schedule_enable", key="s")
    clock.advance(3600)
    last = claim(session)
    fire(session, last, [last.next_run_at], None)
    assert stored(session).over
    clock.advance(10**6)
    with refused("LH006", "job_not_due"):
        claim(session)


def test_a_claim_whose_answer_was_lost_is_repeated_and_answered_the_same(session, clock, due):
    token = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    first = claim(session, claim_id=token)
    clock.advance(5)
    assert claim(session, claim_id=token) == first
    with refused("LH005", "job_locked"):
        claim(session, worker="other", claim_id=token)


def test_a_session_that_writes_the_schedule_makes_no_claim_wait(db, session, due):
    with db.connect() as operator, operator.transaction():
        operator.one("schedule_put", key="s", kind="k", every="2 hours")
        with refused("LH005", "job_locked"):
            claim(session)
        operator.one("schedule_put", key="new", kind="k", every="2 hours")
        with refused("LH002", "job_unknown"):
            claim(session, key="new")
    assert claim(session).every == timedelta(hours=2)


# -- the race that a look before the lock loses

GATE = "perform pg_advisory_xact_lock_shared(4711);"
NAIVE = f"""
create function naive_claim(key text, worker text) returns setof schedules language plpgsql as $$
#variable_conflict use_column
declare
  s schedules;
begin
  select * into s from schedules t where t.key = naive_claim.key;
  {GATE}
  if not pg_try_advisory_xact_lock(schedule_lock(naive_claim.key)) then
    perform refuse('LH005', 'job_locked', 'x');
  elsif not s.enabled then
    perform refuse('LH007', 'job_disabled', 'x');
  elsif s.locked_until > clock() then
    perform refuse('LH005', 'job_locked', 'x');
  elsif s.next_run_at > clock() then
    perform refuse('LH006', 'job_not_due', 'x');
  end if;
  return query update schedules t set locked_by = worker, locked_until = clock() + interval '15 seconds',
    claim_id = gen_random_uuid() where t.key = naive_claim.key returning t.*;
end $$"""


def raced(db, session, gate, function: str) -> str:
    """One caller is held back on its way to the lock; meanwhile another claims, fires and is done."""
    slow, quick = db.connect(), db.connect()
    with ThreadPoolExecutor(1) as pool, gate:
        call = f"select * from {function}('s', 'slow')"
        answer = pool.submit(lambda: slow.execute(call).fetchall())
        gate.wait_for(1)
        token, now = quick.execute(
            "update schedules set locked_by = 'quick', locked_until = clock() + interval '15 seconds',"
            " claim_id = gen_random_uuid(), claimed_at = clock() where key = 's' and locked_by is null"
            " returning claim_id, clock()"
        ).fetchone()
        later = now + timedelta(hours=1)
        quick.rows("schedule_fire", key="s", worker="quick", token=token, was=None, due=[now], next_run_at=later)
    try:
        return f"{len(answer.result())} claimed"
    except psycopg.Error as error:
        return str(error.diag.message_primary)


def test_a_state_that_was_read_before_the_lock_lets_a_second_caller_in(db, session, gate, due):
    """The naive version: the caller that was held back claims what has been fired already."""
    session.execute(NAIVE)
    assert raced(db, session, gate, "naive_claim") == "1 claimed"
    assert stored(session).locked_by == "slow", "a claim on a schedule that is not due for an hour"


def test_a_state_that_is_read_after_the_lock_does_not(db, session, gate, due):
    session.mutate("schedule_claim_v1", "perform check_worker(worker);", f"perform check_worker(worker); {GATE}")
    assert raced(db, session, gate, "schedule_claim_v1") == "job_not_due"
    assert stored(session).locked_by is None
    assert len(runs_of(session)) == 1


# -- lease_seconds is the only source of a claim's length


def test_every_claim_of_every_kind_lasts_what_lease_seconds_says(session, clock):
    kinds = {"short": 0.1, "usual": 15.0, "long": 600.0, "longest": 86400.0}
    session.one("declare_kinds", kinds=list(kinds), lease_seconds=list(kinds.values()))
    for kind in (*kinds, "undeclared"):
        for rule in ({"every": "1 minute"}, {"cron": "* * * * *"}):
            session.one("schedule_put", key=f"{kind} {next(iter(rule))}", kind=kind, **rule)
    for schedule in session.rows("schedule_list"):
        lease = session.one("lease_seconds", kind=schedule.kind)
        assert lease == kinds.get(schedule.kind, 15.0)
        claimed = claim(session, key=schedule.key)
        assert claimed.locked_until - clock.now == timedelta(seconds=lease), schedule.key
    assert len(session.rows("schedule_list")) == 10
    assert session.value("select count(*) from schedules where locked_until is not null") == 10
