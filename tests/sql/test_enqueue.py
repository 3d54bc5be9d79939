"""Recording intents, and what every function says to arguments that make no sense: LH003, and nothing is written."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

NOW = datetime(2031, 1, 1, tzinfo=UTC)
INTENTS = {
    "no kind": ({"kind": None}, "kind is empty"),
    "an empty kind": ({"kind": ""}, "kind is empty"),
    "a long kind": ({"kind": "ä" * 101}, "kind is longer than 200 bytes"),
    "an empty queue": ({"queue": ""}, "queue is empty"),
    "a long queue": ({"queue": "q" * 201}, "queue is longer than 200 bytes"),
    "a high priority": ({"priority": 32768}, "priority 32768 is not between -32767 and 32767"),
    "a low priority": ({"priority": -32768}, "priority -32768 is not between -32767 and 32767"),
    "no attempts": ({"max_attempts": 0}, "max_attempts 0 is not between 1 and 32767"),
    "negative attempts": ({"max_attempts": -1}, "max_attempts -1 is not between 1 and 32767"),
    "too many attempts": ({"max_attempts": 32768}, "max_attempts 32768 is not between 1 and 32767"),
    "a payload that is an array": ({"payload": []}, "payload is not a JSON object"),
    "a payload that is a string": ({"payload": "{}"}, "payload is not a JSON object"),
    "a large payload": ({"payload": {"a": "x" * 4_194_304}}, "payload is larger than 4 MiB"),
    "an empty idempotency key": ({"idempotency_key": ""}, "idempotency_key is empty"),
    "a long idempotency key": ({"idempotency_key": "k" * 501}, "idempotency_key is longer than 500 bytes"),
    "an empty exclusive key": ({"exclusive_key": ""}, "exclusive_key is empty"),
    "a long exclusive key": ({"exclusive_key": "k" * 501}, "exclusive_key is longer than 500 bytes"),
    "too many tags": ({"tags": ["t"] * 51}, "more than 50 tags"),
    "two times": ({"run_at": NOW.isoformat(), "run_after": "1 second"}, "both run_at and run_after"),
}
NULLS = {  # Only single calls can say null; in an array it stands for the default. Null queues: test_declared.py.
    "a null payload": ({"payload": None}, "payload is not a JSON object"),
}


@pytest.fixture
def session(shared):
    """A database in which there is something to damage."""
    shared.one("declare_kinds", kinds=["k"], lease_seconds=[30])
    for _ in range(3):
        shared.one("enqueue", kind="k")
    shared.rows("claim", worker="w", claim_id=uuid4())
    return shared


def assert_refused(session, detail, function, **arguments):
    before = session.everything()
    with pytest.raises(psycopg.Error) as refused:
        session.rows(function, **arguments)
    assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH003", "invalid_argument")
    assert detail in refused.value.diag.message_detail
    assert refused.value.diag.message_hint
    assert session.everything() == before


@pytest.mark.parametrize("function", ["enqueue", "submit"])
@pytest.mark.parametrize(("fields", "detail"), list((INTENTS | NULLS).values()), ids=list(INTENTS | NULLS))
def test_an_intent_that_makes_no_sense_is_refused(session, function, fields, detail):
    arguments = {"kind": "k", **fields}
    if arguments.get("payload") is not None:
        arguments["payload"] = Jsonb(arguments["payload"])
    assert_refused(session, detail, function, **arguments)


@pytest.mark.parametrize(("fields", "detail"), list(INTENTS.values()), ids=list(INTENTS))
def test_one_intent_that_makes_no_sense_refuses_the_whole_batch_and_is_named(session, fields, detail):
    jobs = [{"kind": "k"}, {"kind": "k", **fields}, {"kind": "k"}]
    assert_refused(session, f"jobs[1]: {detail}", "enqueue_many", jobs=jobs)


@pytest.mark.parametrize(
    ("jobs", "detail"),
    [
        (None, "jobs is not a JSON array"),
        (Jsonb({}), "jobs is not a JSON array"),
        (Jsonb("x"), "jobs is not a JSON array"),
        (Jsonb([{"kind": "k"}, 7]), "jobs[1]: unknown field '(not an object)'"),
        (Jsonb([{"kind": "k", "runat": "now"}]), "jobs[0]: unknown field 'runat'"),
        (Jsonb([{}]), "jobs[0]: kind is empty"),
    ],
)
def test_a_batch_that_is_none_is_refused(session, jobs, detail):
    assert_refused(session, detail, "enqueue_many", jobs=jobs)


JOB = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
CALLS = {
    "claim without a worker": ("claim", {"worker": None}, "worker NULL"),
    "claim by an empty worker": ("claim", {"worker": ""}, "worker ''"),
    "claim by a long worker": ("claim", {"worker": "w" * 201}, "www"),
    "claim of none": ("claim", {"worker": "w", "count": 0}, "count 0"),
    "claim of fewer than none": ("claim", {"worker": "w", "count": -1}, "count -1"),
    "claim of too many": ("claim", {"worker": "w", "count": 10001}, "count 10001"),
    "claim of null": ("claim", {"worker": "w", "count": None}, "count "),
    "claim_job without a worker": ("claim_job", {"job_id": JOB, "worker": None}, "worker NULL"),
    "claim_job by an empty worker": ("claim_job", {"job_id": JOB, "worker": ""}, "worker ''"),
    "a worker without a name": ("start_worker", {"worker": ""}, "worker ''"),
    "a short lease": ("declare_kinds", {"kinds": ["k"], "lease_seconds": [0.05]}, "kind 'k': a lease of 0.05 s"),
    "a long lease": ("declare_kinds", {"kinds": ["k"], "lease_seconds": [86401.0]}, "kind 'k': a lease of 86401 s"),
    "a lease of NaN": ("declare_kinds", {"kinds": ["k"], "lease_seconds": [float("nan")]}, "a lease of NaN s"),
    "a kind without a lease": ("declare_kinds", {"kinds": ["k", "l"], "lease_seconds": [9.0]}, "kind 'l'"),
    "a lease without a kind": ("declare_kinds", {"kinds": ["k"], "lease_seconds": [9.0, 8.0]}, "kind NULL"),
    "a lease of an empty kind": ("declare_kinds", {"kinds": [""], "lease_seconds": [9.0]}, "kind ''"),
    "a worker with a bad lease": (
        "start_worker",
        {"worker": "w", "kinds": ["k"], "lease_seconds": [0.0]},
        "kind 'k': a lease of 0 s",
    ),
    "failures that are none": ("fail_many", {"worker": "w", "failures": {}}, "failures is not a JSON array"),
    "failures of null": ("fail_many", {"worker": "w", "failures": None}, "failures is not a JSON array"),
    "an unknown outcome": (
        "fail",
        {"worker": "w", "id": JOB, "attempt": 1, "outcome": "lost"},
        f"job {JOB}: outcome 'lost' with retry_after null",
    ),
    "a negative delay": (
        "fail",
        {"worker": "w", "id": JOB, "attempt": 1, "retry_after": -1},
        f"job {JOB}: outcome 'failed' with retry_after -1",
    ),
    "a delay of eleven years": ("fail", {"worker": "w", "id": JOB, "attempt": 1, "retry_after": 4e8}, "400000000"),
    "a delay of NaN": ("fail", {"worker": "w", "id": JOB, "attempt": 1, "retry_after": float("nan")}, "NaN"),
    "an endless delay": ("fail", {"worker": "w", "id": JOB, "attempt": 1, "retry_after": float("inf")}, "Infinity"),
    "a snooze without a time": (
        "fail",
        {"worker": "w", "id": JOB, "attempt": 1, "outcome": "snoozed"},
        "outcome 'snoozed' with retry_after null",
    ),
}


@pytest.mark.parametrize(("function", "arguments", "detail"), list(CALLS.values()), ids=list(CALLS))
def test_an_argument_that_makes_no_sense_is_refused(session, function, arguments, detail):
    assert_refused(session, detail, function, **arguments)


@pytest.mark.parametrize("function", ["accept", "cancel", "retry"])
def test_an_unknown_job_is_named(session, function):
    before = session.everything()
    with pytest.raises(psycopg.Error) as refused:
        session.one(function, id=JOB)
    assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH002", "job_unknown")
    assert refused.value.diag.message_detail == f"no job has the id {JOB}"
    assert session.everything() == before


def test_a_job_is_recorded_as_it_was_asked_for(session):
    asked = {
        "kind": "send",
        "queue": "mail",
        "priority": -7,
        "max_attempts": 9,
        "payload": {"a": [1, None, "ß"]},
        "idempotency_key": "i",
        "exclusive_key": "e",
        "tags": ["x", "y"],
    }
    single = session.job(session.one("enqueue", **asked))
    batch = session.job(session.column("enqueue_many", jobs=[{**asked, "idempotency_key": "j"}])[0])
    for job in (single, batch):
        assert {name: job[name] for name in asked if name != "idempotency_key"} == {
            name: value for name, value in asked.items() if name != "idempotency_key"
        }
        assert (job["state"], job["attempt"], job["retry_count"], job["parked"]) == ("queued", 0, 0, False)


def test_a_job_with_a_future_time_is_created_and_one_with_a_past_time_is_queued(session):
    for fields, state in (({"run_after": "1 hour"}, "created"), ({"run_after": "-1 hour"}, "queued")):
        assert session.job(session.one("enqueue", kind="k", **fields))["state"] == state
        assert session.job(session.column("enqueue_many", jobs=[{"kind": "k", **fields}])[0])["state"] == state
    assert session.job(session.one("submit", kind="k"))["state"] == "created"
    exact = session.job(session.one("enqueue", kind="k", run_at=NOW + timedelta(microseconds=1)))
    assert exact["run_at"] == NOW + timedelta(microseconds=1)


def test_a_batch_returns_the_ids_in_its_own_order(session):
    keys = [f"{(n * 37) % 100:03}" for n in range(100)]
    old = session.one("enqueue", kind="k", idempotency_key=keys[50])
    ids = session.column("enqueue_many", jobs=[{"kind": "k", "idempotency_key": key} for key in keys])
    assert ids[50] == old
    assert [session.job(job)["idempotency_key"] for job in ids] == keys
    assert session.column("enqueue_many", jobs=Jsonb([])) == []


UNREADABLE = {
    'priority "high"': {"priority": "high"},
    "priority 1.5": {"priority": 1.5},
    "priority 99999999999": {"priority": 99999999999},
    "max_attempts true": {"max_attempts": True},
    'run_at "soonish"': {"run_at": "soonish"},
    'run_after "a while"': {"run_after": "a while"},
    'tags "t"': {"tags": "t"},
    "tags is a JSON object": {"tags": {"a": 1}},
    'id "7"': {"id": "7"},
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_field_of_a_wrong_type_is_named_with_its_place_and_value(session, what):
    good = {"kind": "unreadable", "payload": {"priority": "high"}}
    for call, place in (
        ("select enqueue_many(%s)", "jobs[2]"),
        ("select enqueue_batch(%s, '[{}]')", "intent"),
    ):
        bad = {"kind": "unreadable", **UNREADABLE[what]}
        if place == "intent" and "id" in bad:
            continue
        with pytest.raises(psycopg.Error) as caught:
            session.execute(call, [Jsonb([good, good, bad, bad] if place != "intent" else bad)])
        diag = caught.value.diag
        assert (diag.sqlstate, diag.message_primary) == ("LH003", "invalid_argument")
        assert str(diag.message_detail).startswith(f"{place}.{what}"), diag.message_detail
        assert "priority and max_attempts are whole numbers" in str(diag.message_hint)
    assert session.value("select count(*) from jobs where kind = 'unreadable'") == 0


def test_the_checks_of_many_intents_are_part_of_their_statement(session):
    """A call of a function for each job, where it could be inlined, made enqueue_many take half as long again."""
    session.one(
        "declare_tasks", tasks=[{"kind": "k", "lease_seconds": 60, "queue": "q", "priority": 0, "max_attempts": 3}]
    )
    with session.transaction():
        session.execute("set local track_functions = 'all'")
        session.rows("enqueue_many", jobs=[{"kind": "k", "payload": {"n": n}} for n in range(50)])
        calls = dict(session.execute("select funcname, calls from pg_stat_xact_user_functions").fetchall())
    assert "enqueue_many_v1" in calls
    # uuidv7 is ours before PostgreSQL 18.
    assert {name for name, number in calls.items() if number >= 50} <= {"guard_insert", "uuidv7"}
    assert session.value("select count(*) from jobs where queue = 'q'") == 50
