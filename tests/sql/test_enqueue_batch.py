"""Many jobs that differ only in their payload: recorded all or none, and once however often the call is repeated."""

from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Database, Session
from tests.sql.test_enqueue import assert_refused

INTENT = {"kind": "k", "queue": "q", "priority": 3, "max_attempts": 2, "exclusive_key": "x", "tags": ["a", "b"]}


def payloads(count: int) -> list[dict[str, int]]:
    return [{"i": i} for i in range(count)]


def batch(session: Session, intent: dict[str, object], many: list[object], **rest: object) -> list[object]:
    return session.column("enqueue_batch", intent=Jsonb(intent), payloads=Jsonb(many), **rest)


def test_each_job_is_what_enqueue_would_have_made_of_it(session: Session) -> None:
    ids = batch(session, INTENT, payloads(3))
    alone = session.one("enqueue", **INTENT, payload=Jsonb({"i": 2}))
    varying = {"id", "created_at", "updated_at", "run_at", "place", "xmin"}
    of_batch, of_enqueue = session.job(ids[2]), session.job(alone)
    assert {k: v for k, v in of_batch.items() if k not in varying} == {
        k: v for k, v in of_enqueue.items() if k not in varying
    }
    assert [session.job(id_)["payload"] for id_ in ids] == payloads(3)
    assert ids == sorted(ids)


def test_ids_may_be_the_callers_and_the_call_may_be_repeated(session: Session) -> None:
    ids = sorted(uuid4() for _ in range(5))
    for _ in range(3):
        assert batch(session, {"kind": "k"}, payloads(5), ids=ids) == ids
    assert session.value("select count(*) from jobs") == 5


def test_two_that_repeat_the_same_call_at_once_record_it_once(db: Database, session: Session) -> None:
    ids = sorted(uuid4() for _ in range(50))
    assert db.crowd(6, lambda mine, _: batch(mine, {"kind": "k"}, payloads(50), ids=ids)) == [ids] * 6
    assert session.value("select count(*) from jobs") == 50


def test_jobs_for_later_are_created_and_those_of_now_queued(session: Session) -> None:
    states = [
        session.job(batch(session, {"kind": "k", **when}, [{}])[0])["state"]
        for when in (
            {},
            {"run_after": "1 hour"},
            {"run_at": "2999-01-01T00:00:00Z"},
            {"run_at": "2001-01-01T00:00:00Z"},
        )
    ]
    assert states == ["queued", "created", "created", "queued"]


def test_idle_workers_are_notified_once_and_only_if_asked(db: Database, session: Session) -> None:
    listener = db.connect()
    listener.execute("listen leasehold")
    batch(session, {"kind": "k", "queue": "q"}, payloads(3))
    batch(session, {"kind": "k", "queue": "later", "run_after": "1 hour"}, payloads(3))
    batch(session, {"kind": "k", "queue": "silent"}, payloads(3), notify=False)
    batch(session, {"kind": "k", "queue": "last"}, payloads(1))
    assert [n.payload for n in listener.notifies(timeout=60, stop_after=3)] == ["q", "@due", "last"]


@pytest.mark.parametrize(
    ("intent", "many", "ids", "detail"),
    [
        ({"kind": "k"}, [{}, 7], None, "payloads[1]: payload is not a JSON object"),
        ({"kind": "k"}, [{}, None], None, "payloads[1]: payload is not a JSON object"),
        ({"kind": "k"}, [{}, {"a": "x" * 4_200_000}], None, "payloads[1]: payload is larger than 4 MiB"),
        ({"kind": "k"}, {}, None, "payloads is not a JSON array"),
        ({"kind": ""}, [{}], None, "kind is empty"),
        ({}, [{}], None, "kind is empty"),
        ({"kind": "k", "colour": 1}, [{}], None, "unknown field 'colour'"),
        ({"kind": "k", "idempotency_key": "x"}, [{}], None, "idempotency_key"),
        ({"kind": "k", "payload": {}}, [{}], None, "payload"),
        ([], [{}], None, "intent is not an object"),
        ({"kind": "k"}, [{}, {}], [uuid4()], "1 ids for 2 payloads"),
        ({"kind": "k"}, [{}, {}], [uuid4(), None], "ids for 2 payloads"),
    ],
)
def test_what_makes_no_sense_is_refused_whole(session: Session, intent, many, ids, detail) -> None:
    assert_refused(session, detail, "enqueue_batch", intent=Jsonb(intent), payloads=Jsonb(many), ids=ids)


def test_an_id_of_a_job_with_a_key_is_refused(session: Session) -> None:
    taken = session.one("enqueue", kind="k", idempotency_key="mine")
    with pytest.raises(psycopg.Error) as refused:
        batch(session, {"kind": "k"}, payloads(2), ids=[uuid4(), taken])
    assert refused.value.sqlstate == "LH004"
    assert session.value("select count(*) from jobs") == 1


def test_an_empty_batch_is_no_error(session: Session) -> None:
    assert batch(session, {"kind": "k"}, []) == []
