"""Laws of what operators look at: errors in groups, queues, workers, figures. No look depends on the history's size."""

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

ERROR = {"class": "ValueError", "message": "first", "traceback": "Traceback: line 1"}


def fail(session, job, attempt=1, **error):
    assert session.one("claim_job", job_id=job, worker="w") is True
    session.one("fail", worker="w", id=job, attempt=attempt, retry_after=0, error=ERROR | error)


def test_errors_are_grouped_by_kind_and_class_with_the_latest_group_first(session, clock):
    first, second = session.one("enqueue", kind="k"), session.one("enqueue", kind="k", queue="mail")
    fail(session, first)
    began = clock.now
    clock.advance(5)
    fail(session, second, message="second")
    session.one("promote")
    clock.advance(5)
    fail(session, second, attempt=2, message="third")
    clock.advance(5)
    other = session.one("enqueue", kind="l")
    fail(session, other, **{"class": "OSError"})
    assert [tuple(row) for row in session.rows("errors")] == [
        ("l", "OSError", 1, 1, clock.now, clock.now, "first", other),
        ("k", "ValueError", 3, 2, began, began + timedelta(seconds=10), "third", second),
    ]
    assert [row.kind for row in session.rows("errors", kinds=["k"])] == ["k"]
    assert [(row.kind, row.attempts) for row in session.rows("errors", queues=["mail"])] == [("k", 2)]
    assert session.rows("errors", kinds=[]) == []
    assert [row.kind for row in session.rows("errors", scan=1)] == ["l"]


def test_what_was_released_snoozed_or_cancelled_is_no_error(session):
    jobs = [session.one("enqueue", kind="k") for _ in range(3)]
    assert len(session.column("claim", worker="w", count=3)) == 3
    session.column("release", worker="w", ids=[jobs[0]], attempts=[1])
    session.one("fail", worker="w", id=jobs[1], attempt=1, outcome="snoozed", retry_after=60)
    session.one("cancel", id=jobs[2])
    assert session.rows("errors") == []


def test_an_expired_lease_is_an_error_of_its_own_class(session, clock):
    session.one("enqueue", kind="k")
    session.column("claim", worker="w")
    clock.advance(3600)
    session.one("sweep")
    assert [(row.kind, row.error_class) for row in session.rows("errors")] == [("k", "LeaseExpired")]


def test_errors_are_found_by_the_index_and_not_by_walking(session):
    session.execute(
        "insert into attempts (job_id, attempt, worker, outcome, claimed_at, ended_at, error_class)"
        " select gen_random_uuid(), 1, 'w', 'failed', now(), now() - n * interval '1 s', 'E'"
        " from generate_series(1, 20000) n"
    )
    session.execute("analyze attempts")
    plan = "\n".join(session.values("explain analyze select * from attempts a order by a.ended_at desc limit 100"))
    assert "attempts_ended" in plan
    session.rows("errors", scan=100)
    before = attempts_read(session)
    session.rows("errors", scan=100)
    assert attempts_read(session) - before < 500


def attempts_read(session):
    session.execute("select pg_stat_force_next_flush()")
    return session.value(
        "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'leasehold.attempts'::regclass"
    )


def test_queues_show_what_is_ready_what_runs_and_since_when_the_oldest_waits(session, clock):
    began = clock.now
    session.one("enqueue", kind="k", queue="mail", priority=-5)
    clock.advance(10)
    for kind in ("k", "l"):
        session.one("enqueue", kind=kind, queue="mail")
    session.one("enqueue", kind="k", queue="busy")
    assert len(session.column("claim", worker="w", queues=["busy"])) == 1
    session.one("pause", queue="held", reason="down", by="ann")
    session.one("set_limit", scope="queue", name="limited", max_running=3)
    session.execute("select start_worker('w2', queues => '{served}', kinds => '{k}')")
    rows = {row.queue: row for row in session.rows("queue_list")}
    assert sorted(rows) == ["busy", "held", "limited", "mail", "served"]
    assert (rows["mail"].ready, rows["mail"].ready_capped, rows["mail"].running) == (3, False, 0)
    assert rows["mail"].oldest_ready_at == began
    assert (rows["busy"].ready, rows["busy"].running, rows["busy"].oldest_ready_at) == (0, 1, None)
    assert (rows["held"].paused_at, rows["held"].paused_by, rows["held"].reason) == (clock.now, "ann", "down")
    assert rows["limited"].max_running == 3
    assert rows["mail"].paused_at is None


def test_a_queue_that_a_task_declares_or_that_ran_something_lately_stays_listed(session, clock):
    task = {"kind": "k", "lease_seconds": 60, "queue": "declared", "priority": 0, "max_attempts": 3}
    session.execute("select declare_tasks(%s)", [Jsonb([task])])
    tally = {"queue": "ran", "kind": "k", "success": 1, "waits": [0] * 42, "runs": [0] * 42}
    session.execute("select start_worker('w', queues => '{served}', kinds => '{k}')")
    session.execute("select statistics_add('w', 1, 0, %s)", [Jsonb([tally])])
    assert [row.queue for row in session.rows("queue_list")] == ["declared", "ran", "served"]
    assert [row.queue for row in session.rows("rates")] == ["declared", "ran", "served"]
    assert [row.queue for row in session.rows("queue_list", queues=["ran"])] == ["ran"]
    clock.advance(4300)
    assert [row.queue for row in session.rows("queue_list")] == ["declared"]


def test_queues_of_a_long_record_of_statistics_cost_two_probes_each(session, clock):
    zeros = "array_fill(0, array[42])"
    session.execute(
        f"insert into statistics (step, queue, kind, at, waits, runs)"
        f" select 600, 'q' || q, k, clock() - n * interval '2 h', {zeros}, {zeros}"
        f" from generate_series(1, 100) q, generate_series(1, 20) n, unnest(array['', 'k', 'l']) k"
    )
    session.execute("analyze statistics")
    read = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'leasehold.statistics'::regclass"
    session.rows("queue_list")
    session.execute("select pg_stat_force_next_flush()")
    before = session.value(read)
    assert session.rows("queue_list") == []
    session.execute("select pg_stat_force_next_flush()")
    assert session.value(read) - before < 500


def test_queues_are_counted_no_further_than_the_cap(session, db):
    db.insert(session, 500)
    (row,) = session.rows("queue_list", cap=20)
    assert (row.ready, row.ready_capped) == (20, True)
    (row,) = session.rows("queue_list", cap=500)
    assert (row.ready, row.ready_capped) == (500, False)


def test_queues_behind_a_long_history_cost_what_is_ready(session, db):
    db.insert(session, 20_000, state="'success'", finished_at="now()", queue="'old' || n % 100")
    db.insert(session, 30, queue="'q' || n % 3")
    session.execute("analyze jobs")
    session.rows("queue_list")
    session.execute("select pg_stat_force_next_flush()")
    query = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'leasehold.jobs'::regclass"
    before = session.value(query)
    assert [row.ready for row in session.rows("queue_list")] == [10, 10, 10]
    session.execute("select pg_stat_force_next_flush()")
    assert session.value(query) - before < 500


def test_workers_show_who_lives_and_what_runs_there(session, clock):
    for name in ("live", "silent", "stopped"):
        session.execute("select start_worker(%s, host => 'h', pid => 7, kinds => '{k}', slots => 5)", [name])
    for _ in range(3):
        session.one("enqueue", kind="k")
    session.column("claim", worker="live", count=2)
    session.column("claim", worker="silent")
    clock.advance(61)
    session.execute("select upkeep(worker => 'live')")
    session.execute("select stop_worker('stopped')")
    rows = {row.id: row for row in session.rows("worker_list")}
    assert {name: row.live for name, row in rows.items()} == {"live": True, "silent": False, "stopped": False}
    assert (rows["live"].host, rows["live"].pid, rows["live"].slots, rows["live"].kinds) == ("h", 7, 5, ["k"])
    assert len(session.rows("worker_list", max=2)) == 2


def test_the_jobs_that_a_worker_runs_are_counted(session):
    session.execute("select start_worker('a', kinds => '{k}')")
    session.execute("select start_worker('b', kinds => '{k}')")
    for _ in range(3):
        session.one("enqueue", kind="k")
    session.column("claim", worker="a", count=3)
    assert {row.id: row.running for row in session.rows("worker_list")} == {"a": 3, "b": 0}


def test_the_figures_are_what_the_table_holds(session, clock):
    session.execute("select start_worker('w', kinds => '{k}', slots => 4)")
    session.execute("select start_worker('w2', kinds => '{k}', slots => 6)")
    jobs = [session.one("enqueue", kind="k") for _ in range(5)]
    session.one("enqueue", kind="k", run_after=timedelta(hours=1))
    session.column("claim", worker="w", count=3)
    session.column("complete", worker="w", ids=[jobs[0]], attempts=[1])
    session.one("cancel", id=jobs[1])
    session.one("pause", queue="q")
    found = {row.name: row.value for row in session.rows("stats")}
    assert found == {
        "created": 1,
        "queued": 2,
        "parked": 0,
        "running": 1,
        "retry": 0,
        "success": 1,
        "dead": 1,
        "success_last_minute": 1,
        "dead_last_minute": 1,
        "queues_paused": 1,
        "workers_live": 2,
        "slots": 10,
    }
    clock.advance(61)
    later = {row.name: row.value for row in session.rows("stats")}
    assert (later["success"], later["success_last_minute"], later["dead_last_minute"]) == (1, 0, 0)
    assert {row.capped for row in session.rows("stats", cap=1) if row.name == "queued"} == {True}


@pytest.mark.parametrize("kinds", [None, ["k"]])
def test_a_worker_that_names_no_kinds_takes_any(session, kinds):
    session.execute("select start_worker('w', kinds => %s)", [kinds])
    assert session.rows("explain", job_id=session.one("enqueue", kind="k")) == []


def test_reasons_come_with_the_most_important_one_first(session):
    job = session.one("submit", kind="k", queue="q", run_after=timedelta(hours=1), exclusive_key="x")
    holder = session.one("enqueue", kind="k", exclusive_key="x")
    assert session.one("claim_job", job_id=holder, worker="w") is True
    session.one("pause", queue="q")
    session.one("set_limit", scope="queue", name="q", max_running=0)
    found = session.rows("explain", job_id=job)
    assert [row.reason for row in found] == [
        "not_accepted",
        "paused",
        "run_at",
        "exclusive_key",
        "limit",
        "no_worker_for_kind",
    ]
    assert found[3].blocker == holder
