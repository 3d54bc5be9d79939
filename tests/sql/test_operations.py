"""Laws of what operators see: lists and details. Bounded, and nothing is missed or shown twice."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from tests.sql.conftest import DEADLINE
from tests.sql.operations import ERROR, die, variety


def pages(session, filter_=None, count=50, scan=10_000, most=1000):
    """Every page, as lists of ids."""
    cursor, found = None, []
    for _ in range(most):
        rows = session.rows("list_jobs", filter=filter_ or {}, cursor=cursor, count=count, scan=scan)
        page = [row.id for row in rows if row.id is not None]
        found.append(page)
        cursor = rows[-1].cursor_here if rows else None
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


def listed(session, filter_=None, **bounds):
    return [job for page in pages(session, filter_, **bounds) for job in page]


# Lists


def test_without_a_filter_every_job_is_listed_once_latest_first(session):
    everything = sorted((job for jobs in variety(session).values() for job in jobs), reverse=True)
    for count in (1, 2, 7, 1000):
        assert listed(session, count=count) == everything
    assert listed(session, count=3, scan=1) == everything


@pytest.mark.parametrize("state", ["created", "queued", "running", "success", "retry", "dead"])
@pytest.mark.parametrize(("count", "scan"), [(1, 1), (1, 10_000), (2, 3), (50, 2), (50, 10_000)])
def test_each_state_is_listed_whole_whatever_the_size_of_the_pages(session, state, count, scan):
    jobs = variety(session)
    found = listed(session, {"state": state}, count=count, scan=scan)
    assert sorted(found) == sorted(jobs[state])
    assert len(set(found)) == len(found)


def test_several_states_at_once(session):
    jobs = variety(session)
    assert listed(session, {"state": ["dead", "running"]}) == sorted(jobs["dead"] + jobs["running"], reverse=True)
    assert listed(session, {"state": []}) == []


def test_queued_jobs_come_in_claim_order_and_the_parked_ones_after_them(session):
    holder, parked = (session.one("enqueue", kind="k", exclusive_key="x", priority=9) for _ in range(2))
    assert session.column("claim", worker="w", count=2) == [holder]
    low, high = session.one("enqueue", kind="k"), session.one("enqueue", kind="k", priority=5)
    assert listed(session, {"state": "queued"}) == [high, low, parked]
    assert listed(session, {"state": "queued", "exclusive_key": "x"}) == [parked]


def test_dead_jobs_come_latest_first(session):
    first, second = die(session), die(session)
    session.one("retry", id=first)
    session.one("cancel", id=first)
    assert listed(session, {"state": "dead"}, count=1) == [first, second]


def expected(session, where):
    return sorted(session.values(f"select id from jobs where {where}"))


@pytest.mark.parametrize("state", [None, "created", "queued", "running", "success", "retry", "dead"])
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"kind": "l"}, "kind = 'l'"),
        ({"kind": "k"}, "kind = 'k'"),
        ({"queue": "mail"}, "queue = 'mail'"),
        ({"queue": "default"}, "queue = 'default'"),
        ({"queue": "mail", "kind": "k"}, "queue = 'mail' and kind = 'k'"),
        ({"queue": "mail", "kind": "l"}, "queue = 'mail' and kind = 'l'"),
        ({"queue": "a"}, "false"),
        ({"queue": "z"}, "false"),
        ({"tag": "red"}, "'red' = any(tags)"),
        ({"tag": "green"}, "false"),
        ({"exclusive_key": "x"}, "exclusive_key = 'x'"),
        ({"error_class": "ValueError"}, "id in (select job_id from attempts where error_class = 'ValueError')"),
        ({"error_class": "OSError", "kind": "k"}, "id in (select job_id from attempts where error_class = 'OSError')"),
        ({"queues": ["mail", "none"]}, "queue = 'mail'"),
        ({"queues": []}, "false"),
        ({"kinds": ["l"]}, "kind = 'l'"),
        ({"queues": ["mail"], "queue": "default"}, "false"),
    ],
)
def test_filters_give_what_the_table_holds(module_session, shared, state, fields, where):
    variety(shared)
    fits = f"({where})" + (f" and state = '{state}'" if state else "")
    filter_ = fields | ({"state": state} if state else {})
    for count, scan in ((1, 2), (50, 10_000)):
        assert sorted(listed(shared, filter_, count=count, scan=scan)) == expected(shared, fits)


def test_an_error_is_found_by_the_last_part_of_its_class_too(session):
    job = die(session, error={"class": "shop.mail.ServerBusy", "message": "try later"})
    for wanted, found in (("ServerBusy", [job]), ("mail.ServerBusy", [job]), ("shop.mail.ServerBusy", [job]),
                          ("Busy", []), ("", []), ("%", []), ("shop.mail", [])):  # fmt: skip
        assert listed(session, {"error_class": wanted}) == found, wanted


def test_a_range_of_creation_is_exact(session):
    jobs = [session.one("enqueue", kind="k") for _ in range(6)]
    times = session.values("select created_at::text from jobs order by id")
    assert listed(session, {"created_after": times[2]}) == jobs[:1:-1]
    assert listed(session, {"created_before": times[2]}) == jobs[1::-1]
    assert listed(session, {"created_after": times[1], "created_before": times[4]}) == jobs[3:0:-1]
    assert listed(session, {"created_before": times[4], "state": "queued"}) == jobs[:4]


def test_a_range_of_creation_is_found_without_walking_over_what_is_later(session, db):
    old = db.insert(
        session, 3, id="id_at(now() - interval '40 days' - n * interval '1 s')", created_at="now() - interval '40 days'"
    )
    db.insert(session, 500)
    month_ago = session.value("select (now() - interval '30 days')::text")
    rows = session.rows("list_jobs", filter={"created_before": month_ago}, count=3, scan=3)
    assert {row.id for row in rows} == set(old)


def test_a_scan_stops_at_its_budget_and_continues_where_it_stopped(session, db):
    wanted = db.insert(session, 2, kind="'rare'")
    db.insert(session, 100)
    found = pages(session, {"kind": "rare"}, scan=10)
    assert len(found) >= 10
    assert found[0] == []
    assert sorted(job for page in found for job in page) == sorted(wanted)


def test_a_page_shows_each_job_as_it_was_when_the_filter_held(session, db, gate):
    job = session.one("enqueue", kind="k")
    reader = db.connect()
    listing = f"select l.state from (select {gate.SQL}) g, lateral list_jobs(%s) l"
    with ThreadPoolExecutor(1) as pool:
        with gate:
            running = pool.submit(reader.values, listing, '{"state": "running"}')
            gate.wait_for(1)  # its snapshot is taken, its rows are not yet read
            assert session.one("claim_job", job_id=job, worker="w") is True
        assert set(running.result(DEADLINE)) <= {"running"}


def test_a_page_behind_which_nothing_matches_ends_without_a_cursor(session, db):
    jobs = db.insert(session, 2, kind="'rare'")[::-1]
    db.insert(session, 3)
    for state in ({}, {"state": "queued"}):
        filter_ = {"kind": "rare"} | state
        whole = session.rows("list_jobs", filter=filter_, count=2)
        assert [(row.id in jobs, row.cursor_here is None) for row in whole] == [(True, False), (True, True)]
        (first,) = session.rows("list_jobs", filter=filter_, count=1)
        (second,) = session.rows("list_jobs", filter=filter_, count=1, cursor=first.cursor_here)
        assert ({first.id, second.id}, second.cursor_here) == (set(jobs), None)


def test_a_full_page_whose_scan_was_cut_short_may_go_on(session, db):
    job, _ = db.insert(session, 1, kind="'rare'"), db.insert(session, 1)
    (row,) = session.rows("list_jobs", filter={"kind": "rare"}, count=1, scan=2)
    assert (row.id, row.cursor_here is None) == (job[0], False)


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_few_that_wait_are_found_behind_a_long_history(session, db, analyzed):
    jobs = variety(session)
    db.insert(session, 5000, state="'success'", finished_at="now()")
    if analyzed:
        session.execute("analyze jobs")
    for state in ("created", "retry"):
        waiting = [job for job in jobs[state] if session.job(job)["accepted"]]
        session.rows("list_jobs", filter={"state": state}, scan=len(waiting))
        before = rows_read(session)
        rows = session.rows("list_jobs", filter={"state": state}, scan=10)
        assert [row.id for row in rows if row.id is not None] == waiting[::-1]
        assert rows_read(session) - before < 200
    assert sorted(listed(session, {"state": "created"}, scan=300)) == sorted(jobs["created"])


def test_pages_of_the_few_that_wait_go_on_when_they_have_become_many(session, db):
    db.insert(session, 30, state="'created'", run_at="now() + interval '1 hour'")
    first = session.rows("list_jobs", filter={"state": "created"}, count=10)
    db.insert(session, 3000, state="'created'", run_at="now() + interval '1 hour'")
    rest = session.rows("list_jobs", filter={"state": "created"}, count=50, cursor=first[-1].cursor_here)
    assert [row.id for row in [*first, *rest]] == session.values("select id from jobs order by id limit 30")[::-1]


def test_a_scan_reads_no_more_pages_than_its_budget_allows(session, db):
    db.insert(session, 20_000, state="'success'", finished_at="now() - n * interval '1 s'")
    db.insert(session, 20_000, queue="'q' || n % 10")
    session.execute("analyze jobs")
    for state in (None, "success", "queued", "dead", "running", "retry"):
        filter_ = {"tag": "none"} | ({"state": state} if state else {})
        session.rows("list_jobs", filter=filter_, scan=500)  # the plans are made
        before = rows_read(session)
        session.rows("list_jobs", filter=filter_, scan=500)
        assert rows_read(session) - before < 1500, state


def rows_read(session):
    session.execute("select pg_stat_force_next_flush()")
    return session.value(
        "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'leasehold.jobs'::regclass"
    )


@pytest.mark.parametrize(
    "filter_",
    [
        [],
        {"colour": "red"},
        {"state": "asleep"},
        {"state": ["dead", "asleep"]},
        {"state": [1]},
        {"state": {"a": 1}},
        {"state": None},
        {"kind": 1},
        {"kind": None},
        {"queues": "mail"},
        {"tag": ["red"]},
        {"created_after": 5},
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(shared, filter_):
    for function in ("list_jobs", "retry_many", "cancel_many"):
        with pytest.raises(psycopg.Error) as refused:
            shared.execute(f"select * from {function}(%s)", [psycopg.types.json.Jsonb(filter_)])
        assert refused.value.sqlstate == "LH003"


def test_a_time_a_cursor_or_a_count_that_is_none_is_refused(shared):
    for arguments in (
        {"filter": {"created_after": "soon"}},
        {"cursor": "x"},
        {"cursor": '["elsewhere"]'},
        {"cursor": '["ids", "x"]'},
        {"count": 0},
        {"count": 1001},
        {"scan": 0},
        {"count": None},
    ):
        with pytest.raises(psycopg.Error) as refused:
            shared.rows("list_jobs", **arguments)
        assert refused.value.sqlstate[:2] in ("LH", "22"), arguments


# One job


def test_a_detail_has_what_the_job_carries_and_every_attempt(session):
    job = session.one("enqueue", kind="k", payload={"to": "x"}, max_attempts=2, idempotency_key="i", tags=["red"])
    for attempt in (1, 2):
        session.one("claim_job", job_id=job, worker="w")
        session.one("fail", worker="w", id=job, attempt=attempt, retry_after=0, error=ERROR)
        session.one("promote")
    (found,) = session.rows("job_detail", job_id=job)
    assert (found.payload, found.state, found.idempotency_key, found.tags) == ({"to": "x"}, "dead", "i", ["red"])
    assert [(a["attempt"], a["outcome"], a["error_class"]) for a in found.attempts] == [
        (1, "failed", "ValueError"),
        (2, "failed", "ValueError"),
    ]
    assert found.attempts[0]["error_traceback"] == "Traceback: line 1"
    assert session.rows("job_detail", job_id=uuid.uuid4()) == []


def test_run_now_lets_a_job_that_waits_run_at_once(session, db):
    scheduled = session.one("enqueue", kind="k", run_after=timedelta(hours=1), queue="mail")
    failed = session.one("enqueue", kind="k")
    session.one("claim_job", job_id=failed, worker="w")
    session.one("fail", worker="w", id=failed, attempt=1, retry_after=3600)
    waiting = db.connect()
    waiting.execute("listen leasehold")
    assert session.one("run_now", id=scheduled) is True
    assert [n.payload for n in waiting.notifies(timeout=30, stop_after=1)] == ["mail"]
    assert session.one("run_now", id=failed) is True
    assert sorted(session.column("claim", worker="w", count=9)) == sorted([scheduled, failed])
    assert session.job(failed)["retry_count"] == 1


def test_run_now_leaves_every_other_job_as_it_is(session):
    for state, jobs in variety(session).items():
        for job in jobs:
            row = session.job(job)
            if state in ("created", "retry") and row["accepted"]:
                continue
            assert session.one("run_now", id=job) is False
            assert session.job(job) == row
    with pytest.raises(psycopg.Error) as refused:
        session.one("run_now", id=uuid.uuid4())
    assert refused.value.sqlstate == "LH002"
