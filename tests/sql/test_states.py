"""The state machine and the invariants of a row hold against every session, a superuser's plain UPDATE included."""

from itertools import permutations
from typing import Any
from uuid import UUID

import psycopg
import pytest

STATES = ("created", "queued", "running", "success", "retry", "dead")
LEGAL = {
    ("created", "queued"),
    ("queued", "running"),
    ("running", "success"),
    ("running", "retry"),
    ("running", "queued"),
    ("retry", "queued"),
    ("created", "dead"),
    ("queued", "dead"),
    ("running", "dead"),
    ("retry", "dead"),
    ("dead", "queued"),
}
# What a row of each state looks like: illegal pairs must fail for the transition and nothing else.
FITTING = {
    "created": {},
    "queued": {},
    "running": {"lease_owner": "w", "lease_expires_at": "2031-01-01"},
    "success": {"finished_at": "2031-01-01", "result": "{}"},
    "retry": {},
    "dead": {"finished_at": "2031-01-01", "reason": "exhausted"},
}
BLANK = dict.fromkeys(("lease_owner", "lease_expires_at", "finished_at", "reason", "result"))


@pytest.fixture
def session(shared):
    return shared


def insert(session, **columns: Any) -> UUID:
    columns = {"kind": "k", "max_attempts": 5, **columns}
    names, marks = ", ".join(columns), ", ".join(["%s"] * len(columns))
    return session.value(f"insert into jobs ({names}) values ({marks}) returning id", *columns.values())


def update(session, job_id: UUID, **columns: Any) -> None:
    assignments = ", ".join(f"{name} = %s" for name in columns)
    session.execute(f"update jobs set {assignments} where id = %s", [*columns.values(), job_id])


@pytest.mark.parametrize(("old", "new"), list(permutations(STATES, 2)))
def test_only_the_legal_transitions_pass(session, old, new):
    job_id = insert(session, state=old, attempt=1, **FITTING[old])
    before = session.job(job_id)
    if (old, new) in LEGAL:
        update(session, job_id, state=new, **{**BLANK, **FITTING[new]})
        assert session.job(job_id)["state"] == new
        return
    with pytest.raises(psycopg.Error) as refused:
        update(session, job_id, state=new, **{**BLANK, **FITTING[new]})
    assert refused.value.sqlstate == "LH001"
    assert refused.value.diag.message_primary == "illegal_transition"
    assert refused.value.diag.message_detail == f"job {job_id}: {old} -> {new}"
    assert session.job(job_id) == before


@pytest.mark.parametrize("state", STATES)
def test_the_attempt_number_never_goes_down(session, state):
    job_id = insert(session, state=state, attempt=2, **FITTING[state])
    before = session.job(job_id)
    with pytest.raises(psycopg.Error) as refused:
        update(session, job_id, attempt=1)
    assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("LH001", "illegal_transition")
    assert refused.value.diag.message_detail == f"job {job_id}: attempt 2 -> 1"
    assert session.job(job_id) == before
    update(session, job_id, attempt=3)


def test_one_illegal_row_undoes_the_whole_update(session):
    legal, illegal = insert(session, state="queued"), insert(session, state="success", **FITTING["success"])
    with pytest.raises(psycopg.Error) as refused:
        session.execute("update jobs set state = 'queued', finished_at = null, result = null where id = %s", [illegal])
    assert refused.value.sqlstate == "LH001"
    with pytest.raises(psycopg.Error, match="illegal_transition"):
        session.execute("update jobs set state = 'created', finished_at = null, result = null")
    assert [session.job(job)["state"] for job in (legal, illegal)] == ["queued", "success"]


LEASED = FITTING["running"]
BAD_ROWS = {
    "running without an owner": ("jobs_lease_iff_running", {"state": "running", **LEASED, "lease_owner": None}),
    "running without an expiry": ("jobs_lease_iff_running", {"state": "running", **LEASED, "lease_expires_at": None}),
    "queued with an owner": ("jobs_lease_iff_running", {"state": "queued", "lease_owner": "w"}),
    "retry with an expiry": ("jobs_lease_iff_running", {"state": "retry", "lease_expires_at": "2031-01-01"}),
    "success with a lease": ("jobs_lease_iff_running", {"state": "success", **FITTING["success"], **LEASED}),
    "success without an end": ("jobs_finished_iff_over", {"state": "success"}),
    "dead without an end": ("jobs_finished_iff_over", {"state": "dead", "reason": "fatal"}),
    "queued with an end": ("jobs_finished_iff_over", {"state": "queued", "finished_at": "2031-01-01"}),
    "dead without a reason": ("jobs_finished_iff_over", {"state": "dead", "finished_at": "2031-01-01"}),
    "success with a reason": ("jobs_finished_iff_over", {"state": "success", **FITTING["success"], "reason": "fatal"}),
    "retry with a reason": ("jobs_finished_iff_over", {"state": "retry", "reason": "exhausted"}),
    "a result of a dead job": ("jobs_finished_iff_over", {"state": "dead", **FITTING["dead"], "result": "{}"}),
    "a result of a running job": ("jobs_finished_iff_over", {"state": "running", **LEASED, "result": "{}"}),
    "queued with the budget spent": (
        "jobs_within_budget",
        {"state": "queued", "attempt": 3, "retry_count": 3, "max_attempts": 3},
    ),
    "running with the budget spent": (
        "jobs_within_budget",
        {"state": "running", **LEASED, "attempt": 3, "retry_count": 3, "max_attempts": 3},
    ),
    "more failures than attempts": ("jobs_within_budget", {"attempt": 1, "retry_count": 2}),
    "a negative number of failures": ("jobs_within_budget", {"attempt": 1, "retry_count": -1}),
    "a negative attempt": ("jobs_within_budget", {"attempt": -1}),
    "current without an exclusive key": ("jobs_exclusive", {"is_current": True}),
    "parked without an exclusive key": ("jobs_exclusive", {"state": "queued", "parked": True}),
    "parked and running": (
        "jobs_exclusive",
        {"state": "running", **LEASED, "exclusive_key": "x", "is_current": True, "parked": True},
    ),
    "parked and in retry": ("jobs_exclusive", {"state": "retry", "exclusive_key": "x", "parked": True}),
    "running with an exclusive key, not current": (
        "jobs_exclusive",
        {"state": "running", **LEASED, "exclusive_key": "x"},
    ),
}


@pytest.mark.parametrize(("constraint", "row"), list(BAD_ROWS.values()), ids=list(BAD_ROWS))
def test_a_row_that_contradicts_its_state_is_refused(session, constraint, row):
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        insert(session, **row)
    assert refused.value.diag.constraint_name == constraint
    assert session.value("select count(*) from jobs") == 0


def test_two_current_jobs_of_one_exclusive_key_are_refused(session):
    insert(session, state="queued", exclusive_key="x", is_current=True)
    insert(session, state="queued", exclusive_key="y", is_current=True)
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        insert(session, state="queued", exclusive_key="x", is_current=True)
    assert refused.value.diag.constraint_name == "jobs_current"


def test_a_plain_update_cannot_make_two_jobs_of_one_exclusive_key_run(session):
    first, second = (insert(session, state="queued", exclusive_key="x") for _ in range(2))
    update(session, first, state="running", is_current=True, attempt=1, **LEASED)
    with pytest.raises(psycopg.errors.UniqueViolation):
        update(session, second, state="running", is_current=True, attempt=1, **LEASED)
    with pytest.raises(psycopg.errors.CheckViolation):
        update(session, second, state="running", attempt=1, **LEASED)
