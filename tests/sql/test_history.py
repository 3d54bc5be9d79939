"""Laws of the optional history: every transition once, in the transaction that made it; and nothing while it is off."""

import time
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from faults.waiting import until
from leasehold.db.call import Call
from leasehold.db.store import Store
from tests.sql.conftest import Database, Session, TestClock
from tests.timing import FULL

STATES = "select from_state::text, to_state::text from events where job_id = %s order by seq"


@pytest.fixture
def recorded(session: Session) -> Session:
    assert session.one("history", enabled=True) is True
    return session


def transitions(session: Session, job_id: UUID) -> list[tuple[str | None, str]]:
    return session.execute(STATES, [job_id]).fetchall()


def test_it_is_off_by_default_and_then_nothing_of_it_is_in_the_way(session: Session) -> None:
    assert session.one("history_enabled") is False
    triggers = "select tgname from pg_trigger where tgrelid = 'jobs'::regclass and not tgisinternal"
    assert session.values(triggers) == ["jobs_transition"]
    session.one("enqueue", kind="k")
    session.rows("claim", worker="w")
    assert session.value("select count(*) from events") == 0


def test_switching_is_idempotent_and_says_whether_it_changed_anything(session: Session) -> None:
    assert [session.one("history", enabled=enabled) for enabled in (False, True, True, False, False)] == [
        False, True, False, True, False,
    ]  # fmt: skip
    session.one("history", enabled=True)
    session.execute("alter table jobs disable trigger jobs_note_changed")
    assert session.one("history_enabled") is False
    assert session.one("history", enabled=True) is True
    assert session.one("history_enabled") is True


def test_a_trigger_that_is_there_but_disabled_is_removed_when_the_history_is_switched_off(session: Session) -> None:
    session.one("history", enabled=True)
    session.execute("alter table jobs disable trigger jobs_note_changed, disable trigger jobs_note_recorded")
    assert session.one("history", enabled=False) is True
    assert session.value("select count(*) from pg_trigger where tgrelid = 'jobs'::regclass and tgname ~ 'note'") == 0


def test_many_who_switch_at_once_do_it_once(db: Database) -> None:
    changed = db.crowd(8, lambda session, _: session.one("history", enabled=True))
    assert sorted(changed) == [False] * 7 + [True]


def test_a_session_that_switches_it_and_idles_is_ended(db: Database, session: Session) -> None:
    """Until its transaction ends nobody can write jobs."""
    sleeper = db.connect()
    sleeper.execute("begin")
    assert sleeper.one("history", enabled=True) is True
    alive = "select from pg_stat_activity where pid = %s"
    until(lambda: session.execute(alive, [sleeper.info.backend_pid]).rowcount == 0)
    assert session.one("enqueue", kind="k") is not None
    assert session.one("history_enabled") is False
    sleeper.close()


def test_it_does_not_wait_long_for_a_transaction_that_writes(db: Database, session: Session) -> None:
    job = session.one("enqueue", kind="k")
    other = db.connect()
    with other.transaction():
        other.one("cancel", id=job)
        session.execute("alter function history_v1 set lock_timeout = '100ms'")
        with pytest.raises(LockNotAvailable):
            session.one("history", enabled=True)
    assert session.one("history", enabled=True) is True


def test_a_reader_of_the_history_learns_no_token_of_a_running_attempt(recorded: Session) -> None:
    job = recorded.one("enqueue", kind="k")
    claim_id = uuid4()
    recorded.rows("claim", worker="w", claim_id=claim_id)
    recorded.column("heartbeat", worker="w", ids=[job], attempts=[1])
    until(lambda: len(recorded.rows("events", job=job)) == 3)  # other databases of the server hold events back
    shown = [event.claim_id for event in recorded.rows("events", job=job)]
    assert shown[0] is None
    assert shown[1] == shown[2] not in (None, claim_id)


def test_a_life_is_recorded_step_by_step(recorded: Session, clock: TestClock) -> None:
    job = recorded.one("enqueue", kind="k", queue="q", max_attempts=2, idempotency_key="i", exclusive_key="x")
    claim_id = uuid4()
    recorded.rows("claim", worker="w", claim_id=claim_id)
    clock.advance(5)
    recorded.column("heartbeat", worker="w", ids=[job], attempts=[1])
    recorded.one("fail", worker="w", id=job, attempt=1, retry_after=0.0)
    recorded.one("promote")
    recorded.rows("claim", worker="w")
    clock.advance(100)
    recorded.one("sweep")
    recorded.one("retry", id=job)
    recorded.rows("claim", worker="v")
    recorded.column("complete", worker="v", ids=[job], attempts=[3])
    assert transitions(recorded, job) == [
        (None, "queued"), ("queued", "running"), ("running", "running"), ("running", "retry"), ("retry", "queued"),
        ("queued", "running"), ("running", "dead"), ("dead", "queued"), ("queued", "running"), ("running", "success"),
    ]  # fmt: skip
    rows = recorded.execute("select * from events order by seq").fetchall()
    names = [column.name for column in recorded.execute("select * from events limit 0").description or ()]
    events = [dict(zip(names, row, strict=True)) for row in rows]
    assert [event["attempt"] for event in events] == [0, 1, 1, 1, 1, 2, 2, 2, 3, 3]
    assert [event["owner"] for event in events] == [None, "w", "w", "w", None, "w", "w", None, "v", "v"]
    assert [event["retry_count"] for event in events] == [0, 0, 0, 1, 1, 1, 2, 0, 0, 0]
    assert events[6]["reason"] == "lease_expired"
    assert events[1]["claim_id"] == claim_id
    assert (events[2]["lease_expires_at"] - events[1]["lease_expires_at"]).total_seconds() == 5
    assert {(e["kind"], e["queue"], e["max_attempts"], e["idempotency_key"], e["exclusive_key"]) for e in events} == {
        ("k", "q", 2, "i", "x")
    }
    assert len({event["xid"] for event in events}) == 10


def test_what_is_no_transition_leaves_no_event(recorded: Session) -> None:
    first, second = (recorded.one("enqueue", kind="k", exclusive_key="x") for _ in range(2))
    recorded.rows("claim", worker="w")
    recorded.rows("claim", worker="v")
    assert recorded.job(second)["parked"]
    recorded.column("complete", worker="w", ids=[first], attempts=[1])
    assert not recorded.job(second)["parked"]
    assert transitions(recorded, second) == [(None, "queued")]
    recorded.execute("update jobs set progress_note = 'x', updated_at = clock_timestamp() where id = %s", [second])
    assert transitions(recorded, second) == [(None, "queued")]


def test_what_is_rolled_back_was_never_recorded(recorded: Session) -> None:
    with recorded.transaction(force_rollback=True):
        recorded.one("enqueue", kind="k")
        assert recorded.value("select count(*) from events") == 1
    assert recorded.value("select count(*) from events") == 0


def test_whole_batches_are_recorded_row_by_row(recorded: Session) -> None:
    many = "(select jsonb_agg(jsonb_build_object('kind', 'k')) from generate_series(1, 500))"
    recorded.execute(f"select count(*) from enqueue_many({many})")
    tokens = recorded.rows("claim", worker="w", count=500)
    recorded.column("complete", worker="w", ids=[t.id for t in tokens], attempts=[t.attempt for t in tokens])
    counts = "select to_state::text, count(*), count(distinct job_id) from events group by to_state order by to_state"
    assert recorded.execute(counts).fetchall() == [("queued", 500, 500), ("running", 500, 500), ("success", 500, 500)]


def test_a_crowd_that_drains_leaves_one_gapless_history(db: Database, recorded: Session) -> None:
    db.insert(recorded, 600)

    def drain(session: Session, place: int) -> None:
        while tokens := session.rows("claim", worker=f"w{place}", count=7):
            session.column("complete", worker=f"w{place}", ids=[t.id for t in tokens], attempts=[1] * len(tokens))

    db.crowd(4, drain)
    broken = """
        select job_id from (
          select job_id, from_state, lag(to_state) over (partition by job_id order by seq) as before from events) e
        where from_state is distinct from before"""
    assert recorded.values(broken) == []
    assert recorded.value("select count(*) from events") == 1800


def test_no_session_rewrites_it(recorded: Session) -> None:
    recorded.one("enqueue", kind="k")
    for statement in ("update events set owner = 'me'", "delete from events", "truncate events"):
        with pytest.raises(psycopg.Error) as refused:
            recorded.execute(statement)
        assert refused.value.sqlstate == "LH001"
        assert "append-only" in str(refused.value.diag.message_hint)
    assert recorded.value("select count(*) from events") == 1


def test_what_was_recorded_stays_when_it_is_switched_off(recorded: Session) -> None:
    recorded.one("enqueue", kind="k")
    recorded.one("history", enabled=False)
    recorded.one("enqueue", kind="k")
    assert recorded.value("select count(*) from events") == 1


def pages(session: Session, size: int, job: UUID | None = None) -> list[Any]:
    found: list[Any] = []
    while page := session.rows(
        "events", after_xid=found[-1].xid if found else 0, after_seq=found[-1].seq if found else 0, max=size, job=job
    ):
        found += page
    return found


def test_pages_give_everything_once_whatever_their_size(recorded: Session) -> None:
    jobs = [recorded.one("enqueue", kind="k") for _ in range(7)]
    recorded.rows("claim", worker="w", count=5)
    # Any transaction of the whole server that is older holds events back; tests beside this one have some.
    until(lambda: len(pages(recorded, 1000)) == 12, "12 events")
    whole = pages(recorded, 1000)
    assert pages(recorded, 1) == pages(recorded, 5) == whole
    assert [(e.from_state, e.to_state) for e in pages(recorded, 1, jobs[0])] == transitions(recorded, jobs[0])
    assert "payload" not in whole[0]._fields
    assert "idempotency_key" not in whole[0]._fields


def test_a_reader_misses_nothing_that_is_committed_late(db: Database, recorded: Session) -> None:
    slow = db.connect()
    with slow.transaction():
        late = slow.one("enqueue", kind="late")
        soon = recorded.one("enqueue", kind="soon")
        assert recorded.values("select job_id from events") == [soon]
        # The younger one is held back: behind it the reader would not look for the older one any more.
        assert pages(recorded, 100) == []
    until(lambda: len(pages(recorded, 1)) == 2, "2 events")
    assert [event.job_id for event in pages(recorded, 1)] == [late, soon]


def test_a_reader_that_goes_by_seq_alone_misses_what_is_committed_late(db: Database, recorded: Session) -> None:
    slow = db.connect()
    with slow.transaction():
        late = slow.one("enqueue", kind="late")
        soon = recorded.one("enqueue", kind="soon")
        seen = recorded.execute("select seq, job_id from events order by seq").fetchall()
    seen += recorded.execute("select seq, job_id from events where seq > %s order by seq", [seen[-1][0]]).fetchall()
    assert [job for _, job in seen] == [soon] != [late, soon]


def restore_elsewhere(session: Session) -> None:
    """What a dump that is restored into another cluster leaves: events whose xids have not been reached here."""
    session.execute("alter table events disable trigger user")
    session.execute("update events set xid = (xid::text::bigint + 1000000000)::text::xid8")
    session.execute("alter table events enable trigger user")


def move_and_go_on(db: Database, session: Session) -> None:
    before = session.one("enqueue", kind="before")
    restore_elsewhere(session)
    until(lambda: before in [event.job_id for event in pages(session, 100)], "what was restored is shown")
    seen = pages(session, 100)
    with db.connect() as slow, slow.transaction():
        late = slow.one("enqueue", kind="late")
        soon = session.one("enqueue", kind="soon")
        assert pages(session, 100) == seen, "what is younger than an open transaction is held back"
    place = {"after_xid": seen[-1].xid, "after_seq": seen[-1].seq}
    until(lambda: len(session.rows("events", **place)) == 2, "2 events more")
    assert [event.job_id for event in session.rows("events", **place)] == [late, soon]


def test_a_history_that_was_restored_into_another_cluster_goes_on(db: Database, recorded: Session) -> None:
    for moves in range(1, 4):
        move_and_go_on(db, recorded)
        whole = pages(recorded, 1)
        assert whole == pages(recorded, 100)
        assert len({event.seq for event in whole}) == len(whole) == 3 * moves
        assert [event.job_id for event in whole] == recorded.values("select job_id from events order by xid, seq")


def test_a_transaction_that_writes_twice_stays_in_its_era(recorded: Session) -> None:
    recorded.one("enqueue", kind="before")
    restore_elsewhere(recorded)
    with recorded.transaction():
        for _ in range(3):
            recorded.one("enqueue", kind="k")
    assert recorded.value("select count(distinct xid) from events") == 2


def test_an_unreasonable_page_is_refused(session: Session) -> None:
    for arguments in ({"max": 0}, {"max": 10_001}, {"after_xid": -1}, {"max": None}):
        with pytest.raises(psycopg.Error) as refused:
            session.rows("events", **arguments)
        assert refused.value.sqlstate == "LH003"
    with pytest.raises(psycopg.Error) as refused:
        session.one("history", enabled=None)
    assert refused.value.sqlstate == "LH003"


def test_the_store_verifies_and_prunes(session: Session) -> None:
    store = Store("leasehold")

    def ask(call: Call[Any]) -> Any:
        return call.read(session.execute(call.sql, call.args or None).fetchall())

    job = session.one("enqueue", kind="k")
    assert {law.name: law.violations for law in ask(store.verify(slack=timedelta(0)))}["lost_jobs"] == 0
    session.one("claim_job", job_id=job, worker="w")
    session.column("complete", worker="w", ids=[job], attempts=[1])
    for dry_run in (True, False):
        (pruned,) = ask(store.prune(timedelta(0), ["success", "dead"], dry_run=dry_run))
        assert (pruned.kind, pruned.state, pruned.jobs, pruned.capped) == ("k", "success", 1, False)
    session.one("start_worker", worker="w")
    session.execute("update workers set seen_at = clock() - interval '8 days'")
    assert ask(store.prune_workers(dry_run=True)) == ask(store.prune_workers(timedelta(days=7), 10)) == ["w"]


def test_what_it_costs_is_measured(session: Session, record_property: Any) -> None:
    """A figure, not a promise: how much longer a drain takes with it. Decision 17 has those of a quiet machine."""
    jobs = 20_000 if FULL else 1_000
    took = {}
    for enabled in (False, True):
        session.one("history", enabled=enabled)
        Database.insert(session, jobs)
        began = time.perf_counter()
        while tokens := session.rows("claim", worker="w", count=500):
            session.column("complete", worker="w", ids=[t.id for t in tokens], attempts=[1] * len(tokens))
        took[enabled] = (time.perf_counter() - began) / jobs * 1e6
    record_property("microseconds_a_job", took)
    print(f"claim and finish: {took[False]:.1f} µs a job, {took[True]:.1f} µs with the history")
    assert session.value("select count(*) from events") == 3 * jobs
