"""One row never takes others with it: what raises, is locked or is too large is found and dealt with alone."""

import json
import time
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.timing import bound

# A user's trigger: raises the SQLSTATE in the payload when such a row changes to a state.
TRIGGER = """
create function poisoned() returns trigger language plpgsql as $$
begin
  if new.payload ? 'poison' and new.payload -> 'at' ? new.state::text then
    raise exception using errcode = new.payload ->> 'poison', message = 'a trigger of the user''s';
  end if;
  return new;
end $$;
create trigger poisoned before update on jobs for each row execute function poisoned()
"""


@pytest.fixture
def session(session):
    session.execute(TRIGGER)
    return session


def enqueued(session, count=1, **intent):
    return [session.one("enqueue", kind="k", **intent) for _ in range(count)]


def poison(session, *states, code="P0001", **intent):
    (job,) = enqueued(session, payload=Jsonb({"poison": code, "at": states}), **intent)
    return job


def claimed(session, function="claim_each", worker="w", count=10, **options):
    return [row.id for row in session.rows(function, worker=worker, count=count, claim_id=uuid4(), **options)]


def reported(session, jobs, *reports, worker="w", attempt=1):
    """The answers of report_each by job; a report may be any text."""
    texts = [report if isinstance(report, str) else json.dumps(report) for report in reports]
    tokens = {"ids": jobs, "attempts": [attempt] * len(jobs), "claim_ids": [None] * len(jobs)}
    return {row.id: row for row in session.rows("report_each", worker=worker, **tokens, reports=texts)}


def states(session, *jobs):
    return [session.job(job)["state"] for job in jobs]


SUCCESS = {"outcome": "success"}


# Claims


@pytest.mark.parametrize("code", ["P0001", "22012", "23505", "54000", "XX001", "LH001"])
def test_a_job_that_raises_when_it_is_claimed_is_set_aside_and_the_others_are_claimed(session, code):
    bad = poison(session, "running", code=code, priority=1)
    good = enqueued(session, 3)
    with pytest.raises(psycopg.Error):
        claimed(session, "claim")
    assert claimed(session) == good
    job = session.job(bad)
    assert (job["state"], job["reason"], job["attempt"]) == ("dead", "set_aside", 0)
    assert job["reason_detail"] == f"when it was claimed it raised {code}: a trigger of the user's"
    [why] = session.rows("explain", job_id=bad)
    assert (why.reason, why.detail.startswith("it ended as dead at ")) == ("set_aside", True)


@pytest.mark.parametrize(
    "code", ["53100", "53200", "40001", "40P01", "57014", "57P01", "08006", "58030", "XX000", "25006"]
)
def test_an_error_that_is_no_rows_fault_is_raised_and_sets_nothing_aside(session, code):
    bad, good = poison(session, "running", code=code, priority=1), enqueued(session, 2)
    with pytest.raises(psycopg.Error) as raised:
        claimed(session)
    assert raised.value.sqlstate == code
    assert states(session, bad, *good) == ["queued"] * 3


def test_an_error_of_the_schema_passes_the_job_over_and_never_sets_it_aside(session):
    bad, good = poison(session, "running", code="42703", priority=1), enqueued(session, 2)
    assert claimed(session) == good
    assert states(session, bad) == ["queued"]
    with pytest.raises(psycopg.errors.UndefinedColumn):  # nothing else is left: the caller must not spin
        claimed(session)


def test_an_error_that_every_job_raises_alike_sets_none_of_them_aside(session):
    bad = [poison(session, "running") for _ in range(3)]
    with pytest.raises(psycopg.errors.RaiseException) as raised:
        claimed(session)
    assert "3 jobs raised" in raised.value.diag.message_detail
    assert states(session, *bad) == ["queued"] * 3
    (good,) = enqueued(session)
    assert claimed(session) == [good]
    assert states(session, *bad) == ["dead"] * 3


def test_jobs_that_raise_alike_hide_none_behind_them_however_many_they_are(session):
    bad = [poison(session, "running") for _ in range(230)]
    good = enqueued(session, 2)
    assert set(claimed(session, count=1)) <= set(good)
    assert set(claimed(session, count=1)) <= set(good)
    assert states(session, *good) == ["running"] * 2
    assert states(session, *bad).count("dead") == 200
    with pytest.raises(psycopg.errors.RaiseException):
        claimed(session)


def test_a_job_that_cannot_even_be_set_aside_is_passed_over(session):
    bad, good = poison(session, "running", "dead", priority=1), enqueued(session, 2)
    assert claimed(session) == good
    assert states(session, bad) == ["queued"]


@pytest.mark.parametrize("payload", ["repeat('[', 100) || repeat(']', 100)", "'1e1001'"])
def test_a_payload_on_record_that_may_not_enter_today_is_claimed_row_by_row_like_any_other(session, payload):
    session.execute(
        "insert into jobs (max_attempts, kind, state, payload)"
        f" values (5, 'k', 'queued', ('{{\"a\": ' || {payload} || ', \"b\": \"' || repeat('x', 600) || '\"}}')::jsonb)"
    )
    assert len(session.rows("claim_each", worker="w")) == 1


def test_a_payload_that_no_program_can_read_is_set_aside(session):
    session.execute(
        "insert into jobs (max_attempts, kind, state, priority, payload) values (5, 'k', 'queued', 1,"
        """ ('{"a":[' || repeat('1e131071,', 9000) || '1]}')::jsonb)"""
    )
    good = enqueued(session, 2)
    assert claimed(session) == good
    assert session.values("select reason_detail from jobs where reason = 'set_aside'") == [
        "when it was claimed it raised 54000: the payload is larger than 64 MiB as text"
    ]


def test_a_claim_one_by_one_is_repeated_with_the_same_answer_and_obeys_all_that_a_claim_obeys(session):
    session.execute("select set_limit('queue', 'narrow', 1)")
    narrow = enqueued(session, 2, queue="narrow", priority=1)
    keyed = enqueued(session, 2, exclusive_key="x", priority=1)
    free = enqueued(session, 2)
    session.execute("select pause('paused')")
    enqueued(session, queue="paused")
    claim_id = uuid4()
    again = {"worker": "w", "count": 10, "claim_id": claim_id}
    first = [row.id for row in session.rows("claim_each", **again)]
    assert set(first) == {narrow[0], keyed[0], *free}
    assert [row.id for row in session.rows("claim_each", **again)] == first
    assert [row.id for row in session.rows("claim", **again)] == first
    assert claimed(session, count=1) == []


@pytest.mark.parametrize("held", ["paused", "full", "locked", "poisoned"])
def test_a_backlog_that_cannot_be_claimed_hides_no_other_queue_from_a_claim_one_by_one(db, session, held):
    for _ in range(120):
        poison(session, *(["running"] if held == "poisoned" else []), code="42703", queue="backlog", priority=1)
    locker = db.connect()
    if held == "paused":
        session.execute("select pause('backlog')")
    elif held != "poisoned":
        session.execute("select set_limit('queue', 'backlog', %s)", [0 if held == "full" else 5])
    (good,) = enqueued(session, queue="other")
    with locker.transaction():
        if held == "locked":
            locker.execute("select set_limit('queue', 'backlog', 6)")
        assert good in claimed(session)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_claim_returns_a_bounded_amount_of_bytes_but_always_one_job(db, session, lanes, exclusive):
    session.execute(
        "create or replace function max_claim_bytes() returns integer language sql stable parallel safe return 10000"
    )
    for n in range(8):
        payload = session.value(
            "select jsonb_build_object('t', string_agg(md5(random()::text), '')) from generate_series(1, 94)"
        )  # 3,008 bytes that do not compress
        key = f"x{n}" if exclusive else None
        session.one("enqueue", kind=f"k{n % lanes}", payload=Jsonb(payload), exclusive_key=key)
    taken = [len(claimed(session, "claim")) for _ in range(4)]
    assert taken[0] in (2, 3)
    assert sum(taken) == 8
    db.assert_consistent(session)
    huge = session.value(
        "select jsonb_build_object('t', string_agg(md5(random()::text), '')) from generate_series(1, 999)"
    )
    big = session.one("enqueue", kind="k0", payload=Jsonb(huge), exclusive_key="x9" if exclusive else None)
    assert claimed(session, "claim") == [big]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_claim_cut_by_bytes_continues_behind_jobs_that_wait_for_their_key(db, session, lanes):
    """All that fits waits for a busy key: what is behind it is taken by the same claim."""
    session.execute(
        "create or replace function max_claim_bytes() returns integer language sql stable parallel safe return 10000"
    )
    (holder,) = enqueued(session, exclusive_key="x")
    assert claimed(session, "claim") == [holder]
    large = session.value(
        "select jsonb_build_object('t', string_agg(md5(random()::text), '')) from generate_series(1, 200)"
    )  # 6,400 bytes that do not compress
    for n in range(4):
        session.one("enqueue", kind=f"k{n % lanes}", payload=Jsonb(large), exclusive_key="x", priority=1)
    free = [session.one("enqueue", kind=f"k{n % lanes}", payload=Jsonb(large)) for n in range(2)]
    assert claimed(session, "claim") == free[:1]
    assert claimed(session, "claim") == free[1:]
    assert session.value("select count(*) from jobs where parked") == 4
    db.assert_consistent(session)


def test_what_is_compressed_counts_as_what_it_is(session):
    session.execute(
        "create or replace function max_claim_bytes() returns integer language sql stable parallel safe return 100000"
    )
    enqueued(session, 10, payload=Jsonb({"t": "a" * 40_000}))
    assert session.value("select max(pg_column_size(payload)) from jobs") < 1000
    assert len(claimed(session, "claim")) == 2


# Reports


def running(session, count=1, worker="w"):
    jobs = enqueued(session, count)
    assert sorted(claimed(session, "claim", worker)) == sorted(jobs)
    return jobs


def test_a_locked_row_is_busy_and_the_others_are_done(db, session):
    locked, *others = running(session, 4)
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        assert sleeper.one("cancel", id=locked) is True
        began = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.column("complete", worker="w", ids=[locked, *others], attempts=[1] * 4)
        answers = reported(session, [locked, *others], SUCCESS, SUCCESS, {"outcome": "failed"}, {"outcome": "released"})
        assert time.monotonic() - began < bound(5)
        assert [answers[job].answer for job in (locked, *others)] == ["busy", "done", "done", "done"]
        assert reported(session, [locked], SUCCESS)[locked].answer == "busy"
    assert states(session, *others) == ["success", "retry", "queued"]
    assert reported(session, [locked], SUCCESS)[locked].answer == "done"
    assert reported(session, [locked], SUCCESS)[locked].answer == "done"
    assert states(session, locked) == ["success"]


def test_the_log_lines_of_the_others_are_stored_beside_a_locked_row(db, session):
    locked, other = running(session, 2)
    line = Jsonb([["2030-01-01", "info", "said"]])
    tokens = {
        "worker": "w",
        "ids": [locked, other],
        "attempts": [1, 1],
        "claim_ids": [None, None],
        "lines": [line, line],
    }
    assert set(session.column("add_logs", **tokens)) == {locked, other}
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.execute("select from job_logs where job_id = %s for update", [locked])
        assert session.column("add_logs", **tokens) == [other]
    assert session.values("select jsonb_array_length(lines) from job_logs order by 1") == [1, 2]


@pytest.mark.parametrize("report", ["fail_many", "release"])
def test_no_report_waits_for_ever_for_a_locked_row(db, session, report):
    (locked,) = running(session)
    arguments = (
        {"ids": [locked], "attempts": [1]} if report == "release" else {"failures": [{"id": str(locked), "attempt": 1}]}
    )
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.one("cancel", id=locked)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.rows(report, worker="w", **arguments)


BAD_REPORTS = {
    "no JSON": '{"outcome": "success", "result": {]}',
    "a NUL in a result": '{"outcome": "success", "result": "a\\u0000b"}',
    "half a surrogate": '{"outcome": "success", "result": "\\udcff"}',
    "a NUL in a message": '{"outcome": "cancelled", "error": {"message": "a\\u0000b"}}',
    "an unknown outcome": '{"outcome": "evaporated"}',
    "an endless delay": '{"outcome": "snoozed", "retry_after": 1e300}',
    "a result that is a gigabyte as text": '{"outcome": "success", "result": [' + "1e131071," * 9000 + "1]}",
}


@pytest.mark.parametrize("report", BAD_REPORTS.values(), ids=BAD_REPORTS)
def test_a_report_that_cannot_be_written_fails_its_own_job_with_the_reason(session, report):
    bad, good, lost = running(session, 3)
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [lost])
    answers = reported(session, [bad, good, lost, unknown := uuid4()], report, SUCCESS, SUCCESS, report)
    assert [answers[job].answer for job in (bad, good, lost, unknown)] == ["refused", "done", "lost", "lost"]
    assert (answers[bad].state, answers[good].state, answers[lost].state) == ("retry", "success", None)
    (attempt,) = session.attempts(bad)
    assert (attempt.outcome, attempt.error_class) == ("failed", "leasehold.ReportRefused")
    assert answers[bad].detail in attempt.error_message


def test_a_row_that_raises_on_success_is_failed_and_one_that_raises_on_everything_is_left_to_its_lease(session):
    softly, hard, good = poison(session, "success"), poison(session, "success", "retry", "dead"), enqueued(session)[0]
    claimed(session, "claim")
    jobs = [softly, hard, good]
    with pytest.raises(psycopg.errors.RaiseException):
        session.column("complete", worker="w", ids=jobs, attempts=[1] * 3)
    answers = reported(session, jobs, SUCCESS, SUCCESS, SUCCESS)
    assert [(answers[job].answer, answers[job].state) for job in jobs] == [
        ("refused", "retry"), ("refused", None), ("done", "success"),
    ]  # fmt: skip
    assert states(session, *jobs) == ["retry", "running", "success"]


def test_an_error_that_is_no_rows_fault_is_raised_by_a_report(session):
    bad = poison(session, "success", code="53100")
    claimed(session, "claim")
    with pytest.raises(psycopg.errors.DiskFull):
        reported(session, [bad], SUCCESS)
    assert states(session, bad) == ["running"]


# Renewal


def test_a_row_that_raises_when_it_is_renewed_costs_no_other_its_lease(session, clock):
    session.execute(
        "create function loud() returns trigger language plpgsql as"
        " $$ begin raise exception 'not that note'; end $$;"
        " create trigger loud before update on jobs for each row when (new.progress_note = 'bad')"
        " execute function loud()"
    )
    noted, hard, good = enqueued(session)[0], poison(session), enqueued(session)[0]
    jobs = [noted, hard, good]
    assert sorted(claimed(session, "claim")) == sorted(jobs)
    session.execute("alter table jobs disable trigger poisoned")
    session.execute('update jobs set payload = payload || \'{"at": ["running"]}\' where id = %s', [hard])
    session.execute("alter table jobs enable trigger poisoned")
    clock.advance(10)
    tokens = {"worker": "w", "ids": jobs, "attempts": [1] * 3, "progress": "{0.5,0.5,0.5}"}
    tokens["progress_notes"] = "{bad,fine,fine}"
    with pytest.raises(psycopg.errors.RaiseException):
        session.rows("renew", **tokens)
    answers = {row.id: row.answer for row in session.rows("renew_each", **tokens)}
    assert answers == {noted: "renewed", hard: "busy", good: "renewed"}
    assert (session.job(noted)["progress_note"], session.job(good)["progress_note"]) == (None, "fine")


# Upkeep


def test_an_expired_row_that_raises_is_set_aside_and_the_others_are_swept(db, session):
    bad, hard = poison(session, "queued"), poison(session, "queued", "dead")
    keyed = poison(session, "queued", exclusive_key="x")
    good = enqueued(session, 2)
    claimed(session, "claim")
    (waiting,) = enqueued(session, exclusive_key="x")
    assert claimed(session, "claim") == []
    session.execute("update jobs set lease_expires_at = clock() where state = 'running'")
    assert session.one("sweep") == 4
    assert states(session, bad, hard, keyed, *good) == ["dead", "running", "dead", "queued", "queued"]
    assert session.job(bad)["reason"] == "set_aside"
    assert [a.outcome for a in session.attempts(bad)] == ["lease_expired"]
    session.one("promote")
    assert waiting in claimed(session, "claim")
    assert session.one("sweep") == 0
    session.execute("drop trigger poisoned on jobs")
    db.assert_consistent(session)


def test_a_due_row_that_raises_is_set_aside_and_the_others_are_promoted(session):
    bad = poison(session, "queued", run_after="1 hour")
    good = enqueued(session, 2, run_after="1 hour")
    session.execute("update jobs set run_at = clock()")
    assert session.one("promote") == 3
    assert states(session, bad, *good) == ["dead", "queued", "queued"]
    assert session.job(bad)["reason_detail"].startswith("when its time had come it raised P0001")


# Claims that nothing holds up


def test_claim_job_does_not_wait_for_a_key_that_an_open_transaction_holds(db, session):
    first, second = enqueued(session, 2, exclusive_key="x")
    session.execute("set statement_timeout = '20s'")
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        assert sleeper.one("claim_job", job_id=first, worker="v") is True
        assert session.one("claim_job", job_id=second, worker="w") is False
    assert session.one("claim_job", job_id=second, worker="w") is True


def test_a_repeated_claim_of_one_job_is_true_again(session):
    (job,) = enqueued(session)
    claim_id = uuid4()
    for _ in range(2):
        assert session.one("claim_job", job_id=job, worker="w", claim_id=claim_id) is True
    assert session.one("claim_job", job_id=job, worker="w", claim_id=uuid4()) is False
    assert session.one("claim_job", job_id=job, worker="v", claim_id=claim_id) is False
    assert session.job(job)["attempt"] == 1


# Sessions that sleep in a transaction


def test_upkeep_does_not_spin_while_what_is_due_is_locked(db, session):
    (job,) = running(session)
    with db.connect() as sleeper, sleeper.transaction():
        assert sleeper.column("complete", worker="w", ids=[job], attempts=[1]) == [job]
        session.execute("set lock_timeout = '10s'")
        session.execute("create or replace function clock() returns timestamptz return clock_timestamp() + '1 hour'")
        assert session.one("next_due") == 0
        (row,) = session.rows("upkeep")
        assert (row.swept, row.promoted) == (0, 0)
        assert row.next_due >= 0.25
    assert states(session, job) == ["success"]


def test_upkeep_sweeps_though_the_errands_are_held_up(db, session):
    session.execute("create function canaries_held() returns void language sql as 'select pg_advisory_xact_lock(4711)'")
    session.mutate("errands", "perform sample_flow(at);", "perform canaries_held();")
    (job,) = running(session)
    session.execute("update jobs set lease_expires_at = clock() where id = %s", [job])
    with db.connect() as sleeper, sleeper.transaction():
        sleeper.execute("select pg_advisory_xact_lock(4711)")
        assert session.rows("upkeep")[0].swept == 1


SLEEPERS = {
    "a declaration": ("declare_kinds", {"kinds": ["k"], "lease_seconds": [9]}),
    "a start": ("start_worker", {"worker": "v", "kinds": ["k"], "lease_seconds": [9]}),
}


@pytest.mark.parametrize(("function", "arguments"), SLEEPERS.values(), ids=SLEEPERS)
def test_a_worker_starts_though_a_session_sleeps_in(db, session, function, arguments):
    session.one("declare_kinds", kinds=["k"], lease_seconds=[7])
    with db.connect() as sleeper, sleeper.transaction():
        sleeper.one(function, **arguments)
        session.one("start_worker", worker="w", kinds=["k"], lease_seconds=[7])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.one("declare_kinds", kinds=["k"], lease_seconds=[8])


@pytest.mark.parametrize("function", ["cancel", "retry", "accept"])
def test_what_people_ask_for_one_job_waits_a_bounded_time(db, session, function):
    (job,) = [session.one("submit", kind="k")] if function == "accept" else running(session)
    if function == "retry":
        session.one("cancel", id=job)
    with db.connect() as sleeper, sleeper.transaction(force_rollback=True):
        sleeper.execute("select from jobs where id = %s for update", [job])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.one(function, id=job)
