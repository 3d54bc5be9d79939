"""One idempotency key, one job: whichever caller sends it, however often, however many at once."""

import random
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

# One enqueue a transaction, without a round trip to the client between them.
HAMMER = """
create table answers (who integer, key text, id uuid);
create procedure hammer(who integer, keys text[]) language plpgsql as $$
declare
  ids uuid[] := '{}';
begin
  for n in 1 .. cardinality(keys) loop
    ids := ids || leasehold.enqueue('k', idempotency_key => keys[n]);
    commit;
  end loop;
  insert into leasehold.answers select who, t.key, t.id from unnest(keys, ids) t(key, id);
end $$;
"""
# The version that comes to mind first: one statement, whose snapshot cannot see the row that it has just waited for.
NAIVE = """
create or replace function enqueue(kind text, idempotency_key text) returns uuid language sql as $$
  with inserted as (
    insert into jobs (max_attempts, kind, idempotency_key, state) values (5, kind, idempotency_key, 'queued')
    on conflict do nothing returning id)
  select id from inserted
  union all
  select j.id from jobs j where j.idempotency_key = enqueue.idempotency_key limit 1
$$
"""


def many(session, keys, **fields) -> list:
    return session.column("enqueue_many", jobs=[{"kind": "k", "idempotency_key": key, **fields} for key in keys])


def test_a_thousand_keys_from_64_connections_make_a_thousand_jobs(db, session):
    session.execute(HAMMER)
    keys = [f"key {n}" for n in range(1000)]

    def enqueue_all(producer, place):
        chance = random.Random(place)
        mine = chance.sample(keys, len(keys))
        if place % 4:
            producer.execute("call hammer(%s, %s)", [place, mine])
            return {}
        ids = [job for n in range(0, len(mine), 50) for job in many(producer, mine[n : n + 50])]
        return dict(zip(mine, ids, strict=True))

    batches = [answer for answer in db.crowd(64, enqueue_all) if answer]
    jobs = dict(session.execute("select idempotency_key, id from jobs").fetchall())
    assert session.value("select count(*) from jobs") == len(jobs) == 1000
    assert all(batch == jobs for batch in batches)
    assert len(batches) == 16
    assert session.value("select count(*) from answers") == 48_000
    assert (
        session.value("select count(*) from answers a join jobs j on j.idempotency_key = a.key and j.id = a.id")
        == 48_000
    )


WAYS = {
    "enqueue": lambda s: s.one("enqueue", kind="k", idempotency_key="x"),
    "enqueue_many": lambda s: s.one("enqueue_many", jobs=[{"kind": "k", "idempotency_key": "x"}]),
    "submit": lambda s: s.one("submit", kind="k", idempotency_key="x"),
}


def waiters_behind(db, session, first, way, *, commit: bool) -> tuple:
    """Let six wait for an uncommitted job of the same key; returns its id and what they got."""
    waiters = [db.connect() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        with db.connect() as inserter, inserter.transaction(force_rollback=not commit):
            job_id = first(inserter)
            answers = [pool.submit(way, waiter) for waiter in waiters]
            db.until_blocked(session, [waiter.info.backend_pid for waiter in waiters])
        return job_id, [answer.result() for answer in answers]


@pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
@pytest.mark.parametrize("first", list(WAYS.values()), ids=list(WAYS))
def test_those_who_waited_for_a_commit_get_the_committed_job(module_db, shared, first, way):
    job_id, answers = waiters_behind(module_db, shared, first, way, commit=True)
    assert answers == [job_id] * 6
    assert shared.values("select id from jobs") == [job_id]


@pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
def test_when_the_first_inserter_rolls_back_the_others_agree_on_one_job(module_db, shared, way):
    lost, answers = waiters_behind(module_db, shared, way, way, commit=False)
    (job_id,) = set(answers)
    assert job_id != lost
    assert shared.values("select id from jobs") == [job_id]


def test_waiting_for_a_commit_catches_the_naive_version(db, session):
    session.execute(NAIVE)

    def way(s):
        return (s.execute("select enqueue('k'::text, 'x'::text)").fetchone() or [None])[0]

    _, answers = waiters_behind(db, session, way, way, commit=True)
    assert None in answers


def test_a_key_stays_used_after_its_job_has_ended(session):
    job_id = session.one("enqueue", kind="k", idempotency_key="x")
    session.rows("claim", worker="w")
    session.column("complete", worker="w", ids=[job_id], attempts=[1])
    before = session.everything()
    assert session.one("enqueue", kind="other", idempotency_key="x", payload={"a": 1}) == job_id
    assert many(session, ["x", "x"]) == [job_id, job_id]
    assert session.everything() == before


def test_a_repeated_id_returns_the_same_job(session):
    job_id = uuid4()
    assert session.one("enqueue", kind="k", id=job_id) == job_id
    before = session.everything()
    assert session.one("enqueue", kind="k", id=job_id) == job_id
    assert session.one("submit", kind="k", id=job_id) == job_id
    assert session.column("enqueue_many", jobs=[{"kind": "k", "id": str(job_id)}]) == [job_id]
    assert session.everything() == before


def test_an_id_repeated_at_once_records_one_job(db, session):
    for _ in range(5):
        job_id = uuid4()
        assert db.crowd(16, lambda s, _, job_id=job_id: s.one("enqueue", kind="k", id=job_id)) == [job_id] * 16
    assert session.value("select count(*) from jobs") == 5


def test_an_id_under_another_idempotency_key_is_a_conflict(session):
    job_id = session.one("enqueue", kind="k", idempotency_key="x")
    before = session.everything()
    with pytest.raises(psycopg.Error) as single:
        session.one("enqueue", kind="k", idempotency_key="y", id=job_id)
    with pytest.raises(psycopg.Error) as batch:
        session.rows("enqueue_many", jobs=[{"kind": "k", "idempotency_key": "y", "id": str(job_id)}])
    for refused in (single.value, batch.value):
        assert (refused.sqlstate, refused.diag.message_primary) == ("LH004", "idempotency_conflict")
    assert session.everything() == before


@pytest.mark.parametrize("function", ["enqueue", "submit"])
def test_what_differs_is_named_with_the_words_of_sql_and_a_key_is_repeated_as_it_is(session, function):
    key = "order 7 of jobType kind"
    session.one(function, kind="k", idempotency_key=key)
    with pytest.raises(psycopg.Error) as refused:
        session.one(function, kind="other", payload={"a": 1}, idempotency_key=key, strict=True)
    assert f"key '{key}' belongs to job" in refused.value.diag.message_detail
    assert refused.value.diag.message_detail.endswith("with another kind, payload")
    (answer,) = session.rows("submit_many", jobs=[{"kind": "other", "idempotency_key": key}])
    assert answer.detail == "kind"


@pytest.mark.parametrize("function", ["enqueue", "submit"])
def test_strict_refuses_a_key_of_another_kind_or_payload(session, function):
    sent = {"kind": "k", "payload": {"a": 1, "b": 2}, "idempotency_key": "x", "strict": True}
    job_id = session.one(function, **sent)
    assert session.one(function, **{**sent, "payload": {"b": 2, "a": 1}}) == job_id
    before = session.everything()
    for other in ({"payload": {"a": 2}}, {"kind": "other"}):
        with pytest.raises(psycopg.Error) as refused:
            session.one(function, **{**sent, **other})
        assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH004", "idempotency_conflict")
        assert str(job_id) in refused.value.diag.message_detail
        assert session.one(function, **{**sent, **other, "strict": False}) == job_id
    assert session.everything() == before


def crossing_batches(db, make, *, rounds=12) -> int:
    """Two batches with the same keys or ids in opposite orders, again and again; returns the deadlocks."""
    names = [[str(uuid4()) for _ in range(150)] for _ in range(rounds)]

    def enqueue(producer, place):
        deadlocks = 0
        for batch in names:
            jobs = [make(name) for name in (batch if place % 2 else reversed(batch))]
            try:
                assert len(producer.rows("enqueue_many", jobs=jobs)) == 150
            except psycopg.errors.DeadlockDetected:
                deadlocks += 1
        return deadlocks

    return sum(db.crowd(4, enqueue))


def test_batches_with_the_same_keys_in_opposite_orders_never_deadlock(db, session):
    assert crossing_batches(db, lambda name: {"kind": "k", "idempotency_key": name}) == 0
    assert session.value("select count(*) from jobs") == 1800


def test_batches_with_the_same_ids_in_opposite_orders_never_deadlock(db, session):
    assert crossing_batches(db, lambda name: {"kind": "k", "id": name}) == 0
    assert session.value("select count(*) from jobs") == 1800


def test_crossing_batches_catch_an_insert_without_an_order(db, session):
    session.mutate("read_intents", "order by i.idempotency_key, i.id, ", "order by ")
    # Slowly enough that two certainly meet half-way.
    session.execute("create function linger() returns trigger language plpgsql as "
                    "$$begin perform pg_sleep(0.001); return new; end$$")  # fmt: skip
    session.execute("create trigger linger before insert on jobs for each row execute function linger()")
    assert crossing_batches(db, lambda name: {"kind": "k", "idempotency_key": name}, rounds=2) > 0
