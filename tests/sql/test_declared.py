"""Laws of what a kind's task declares: a job that is recorded without a queue, priority or attempts gets these."""

import json
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from leasehold.retry import USUAL_ATTEMPTS, ExponentialBackoff

DECLARED = ("mail", 7, 3)
TASK = {"kind": "SEND", "lease_seconds": 30, "queue": "mail", "priority": 7, "max_attempts": 3}


@pytest.fixture
def session(shared):
    declare(shared, TASK)
    return shared


def declare(session, *tasks):
    session.execute("select declare_tasks(%s::jsonb)", [json.dumps(tasks)])


def stored(session, job):
    row = session.execute("select queue, priority, max_attempts from jobs where id = %s", [job]).fetchone()
    return tuple(row)


def one(session, function, **fields):
    return session.one(function, **fields)


def in_array(session, function, **fields):
    [row] = session.execute(f"select * from {function}(%s::jsonb)", [json.dumps([fields])]).fetchall()
    return row[0]


def in_batch(session, **fields):
    [row] = session.execute("select * from enqueue_batch(%s::jsonb, '[{}]')", [json.dumps(fields)]).fetchall()
    return row[0]


def submitted(session, **fields):
    [row] = session.execute("select error, id from submit_many(%s::jsonb)", [json.dumps([fields])]).fetchall()
    assert row[0] is None
    return row[1]


WAYS = {
    "enqueue": lambda session, **fields: one(session, "enqueue", **fields),
    "submit": lambda session, **fields: one(session, "submit", **fields),
    "enqueue_many": lambda session, **fields: in_array(session, "enqueue_many", **fields),
    "enqueue_batch": in_batch,
    "submit_many": submitted,
}


@pytest.mark.parametrize("record", list(WAYS.values()), ids=list(WAYS))
def test_what_the_caller_leaves_out_is_as_the_task_declares(session, record):
    assert stored(session, record(session, kind="SEND")) == DECLARED
    assert stored(session, record(session, kind="SEND", queue="now", max_attempts=1)) == ("now", 7, 1)
    assert stored(session, record(session, kind="SEND", priority=-1)) == ("mail", -1, 3)


@pytest.mark.parametrize("record", list(WAYS.values()), ids=list(WAYS))
def test_a_kind_of_which_only_the_lease_is_known_has_the_usual_queue_and_attempts(session, record):
    session.one("declare_kinds", kinds=["LEASED"], lease_seconds=[30])
    usual = session.execute("select usual_attempts()").fetchone()[0]
    for kind in ("LEASED", "NEVER_HEARD_OF"):
        assert stored(session, record(session, kind=kind)) == ("default", 0, usual)


def test_null_is_the_same_as_left_out(session):
    job = session.execute("select enqueue('SEND', queue => null, priority => null, max_attempts => null)").fetchone()[0]
    assert stored(session, job) == DECLARED


def test_the_last_declaration_counts_and_leases_follow_it(session):
    declare(session, TASK | {"queue": "post", "lease_seconds": 9})
    assert stored(session, session.one("enqueue", kind="SEND")) == ("post", 7, 3)
    assert session.one("lease_seconds", kind="SEND") == 9
    session.one("declare_kinds", kinds=["SEND"], lease_seconds=[11])  # a worker of the release before
    assert stored(session, session.one("enqueue", kind="SEND")) == ("post", 7, 3)


def test_a_sleeping_session_that_declared_the_same_holds_no_worker_up(session, module_db):
    sleeper, starting = module_db.connect(), module_db.connect()
    starting.execute("set lock_timeout = '5s'")
    with sleeper.transaction():
        declare(sleeper, TASK)
        declare(starting, TASK)


def test_a_lease_declared_beside_another_declaration_does_not_undo_it(session, module_db):
    first, second = module_db.connect(), module_db.connect()
    with ThreadPoolExecutor(1) as pool:
        with first.transaction():
            declare(first, TASK | {"queue": "other", "priority": 1, "max_attempts": 9})
            lease = pool.submit(second.execute, "select declare_kinds(array['SEND'], array[60])")
            module_db.until_blocked(session, [second.info.backend_pid])
        lease.result()
    query = "select lease_seconds, queue, priority, max_attempts from kinds where kind = 'SEND'"
    assert tuple(session.execute(query).fetchone()) == (60, "other", 1, 9)


def test_the_workers_of_the_declared_queue_are_notified_once(session, module_db):
    with psycopg.connect(module_db.dsn, autocommit=True) as listener:
        listener.execute("listen leasehold")
        session.execute("select enqueue('SEND') from generate_series(1, 5)")
        session.execute('select enqueue_many(\'[{"kind": "SEND"}, {"kind": "SEND"}]\')')
        heard = [(note.channel, note.payload) for note in listener.notifies(timeout=60, stop_after=2)]
    assert heard == [("leasehold", "mail")] * 2


@pytest.mark.parametrize(
    ("tasks", "detail"),
    [
        ({}, "tasks is not a JSON array"),
        ([TASK | {"kind": ""}], "kind '': kind is empty"),
        ([TASK | {"queue": ""}], "kind 'SEND': queue is empty"),
        ([TASK | {"queue": None}], "kind 'SEND': queue is empty"),
        ([TASK | {"priority": 40000}], "kind 'SEND': priority 40000 is not between"),
        ([TASK | {"max_attempts": 0}], "kind 'SEND': max_attempts 0 is not between"),
        ([TASK | {"lease_seconds": 0.05}], "kind 'SEND': a lease of 0.05 s"),
        ([TASK | {"lease_seconds": None}], "kind 'SEND': a lease of "),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_and_changes_nothing(session, tasks, detail):
    with pytest.raises(psycopg.Error) as refused:
        session.execute("select declare_tasks(%s::jsonb)", [json.dumps(tasks)])
    assert refused.value.sqlstate == "LH003"
    assert detail in refused.value.diag.message_detail
    assert stored(session, session.one("enqueue", kind="SEND")) == DECLARED


def test_a_submission_may_be_bound_to_queues_and_the_declared_one_is_looked_at(session):
    rows = session.execute(
        "select ord, error from submit_many(%s::jsonb) order by ord",
        [
            json.dumps(
                [
                    {"kind": "SEND", "queues": ["mail", "other"]},
                    {"kind": "SEND", "queues": ["other"]},
                    {"kind": "ELSE", "queues": ["mail"]},
                    {"kind": "ELSE", "queues": ["default"], "idempotency_key": str(uuid4())},
                ]
            )
        ],
    ).fetchall()
    assert [tuple(row) for row in rows] == [(1, None), (2, "LH008"), (3, "LH008"), (4, None)]
    assert session.execute("select count(*) from jobs").fetchone()[0] == 2
    with pytest.raises(psycopg.Error) as refused:
        session.execute('select * from submit_many(\'[{"kind": "SEND", "queues": []}]\', all_or_none => true)')
    assert refused.value.sqlstate == "LH008"


def test_sql_and_python_have_the_same_usual_attempts_and_waits(session):
    [usual] = session.execute("select usual_attempts()").fetchone()
    assert usual == USUAL_ATTEMPTS
    policy = ExponentialBackoff(jitter="none")
    rows = session.execute(
        "select n, min(backoff_seconds(id, n, 7)), max(backoff_seconds(id, n, 7))"
        " from generate_series(1, 40) n, (select gen_random_uuid() id from generate_series(1, 300)) j group by n"
    ).fetchall()
    for failures, least, most in rows:
        wait = policy.ceiling(failures)
        assert 0.8 * wait <= least < 0.82 * wait
        assert 0.98 * wait < most <= wait
