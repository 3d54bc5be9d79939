"""Why is this job not running?"""

import uuid

import psycopg
import pytest


@pytest.fixture
def sql(dsn):
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=leasehold") as connection:
        yield connection


def enqueue(sql, kind="k", **options):
    names = "".join(f", {name} => %({name})s" for name in options)
    return sql.execute(f"select enqueue(%(kind)s{names})", {"kind": kind, **options}).fetchone()[0]


def reasons(sql, job):
    return [row[0] for row in sql.execute("select reason from explain(%s)", [job])]


def start_worker(sql, kinds=("k",), queues=None):
    sql.execute("select start_worker('w', queues => %s, kinds => %s)", [queues, list(kinds)])


def test_a_job_that_any_worker_may_take_has_no_obstacle(sql):
    start_worker(sql)
    assert reasons(sql, enqueue(sql)) == []


def test_a_kind_that_no_live_worker_knows_is_named(sql):
    start_worker(sql, kinds=["other"])
    job = enqueue(sql)
    assert sql.execute("select reason, detail from explain(%s)", [job]).fetchall() == [
        ("no_worker_for_kind", "no live worker knows the kind 'k' (1 are live)")
    ]
    sql.execute("update workers set kinds = '{k}', seen_at = now() - interval '2 minutes'")
    assert reasons(sql, job) == ["no_worker_for_kind"]
    sql.execute("select upkeep(worker => 'w')")
    assert reasons(sql, job) == []
    sql.execute("select stop_worker('w')")
    assert reasons(sql, job) == ["no_worker_for_kind"]


def test_a_queue_that_no_worker_serves_is_named(sql):
    start_worker(sql, queues=["mail"])
    assert reasons(sql, enqueue(sql, queue="mail")) == []
    assert reasons(sql, enqueue(sql, queue="mial")) == ["no_worker_for_queue"]


def test_a_job_that_waits_for_its_time_says_until_when(sql):
    start_worker(sql)
    job = enqueue(sql, run_after="1 hour")
    assert reasons(sql, job) == ["run_at"]
    assert sql.execute("select until = run_at from explain(%s), jobs", [job]).fetchone() == (True,)


def test_a_job_that_failed_waits_for_its_backoff(sql):
    start_worker(sql)
    job = enqueue(sql)
    sql.execute("select claim('w')")
    assert reasons(sql, job) == ["running"]
    sql.execute("select fail('w', %s, 1, retry_after => 60)", [job])
    assert reasons(sql, job) == ["backoff"]


def test_the_holder_of_a_busy_key_is_named(sql):
    start_worker(sql)
    holder, waiting = enqueue(sql, exclusive_key="x"), enqueue(sql, exclusive_key="x")
    sql.execute("select claim('w', count => 2)")
    assert sql.execute("select reason, blocker from explain(%s)", [waiting]).fetchall() == [("exclusive_key", holder)]


def test_an_exhausted_limit_is_named(sql):
    start_worker(sql)
    job = enqueue(sql, queue="q")
    sql.execute("select set_limit('queue', 'q', 0)")
    assert reasons(sql, job) == ["limit"]


def test_submitted_but_never_accepted(sql):
    start_worker(sql)
    job = sql.execute("select submit('k')").fetchone()[0]
    assert reasons(sql, job) == ["not_accepted"]


def test_a_finished_job_and_an_unknown_one(sql):
    start_worker(sql)
    job = enqueue(sql)
    sql.execute("select cancel(%s)", [job])
    assert reasons(sql, job) == ["finished"]
    with pytest.raises(psycopg.Error) as refused:
        reasons(sql, uuid.uuid4())
    assert refused.value.sqlstate == "LH002"


@pytest.mark.parametrize(
    ("scope", "name", "most", "words"),
    [
        ("global", "", 1, "1 job may run under the global limit, and as many do"),
        ("queue", "default", 2, "2 jobs may run under the queue limit 'default', and as many do"),
    ],
)
def test_a_limit_is_told_in_words(sql, scope, name, most, words):
    sql.execute("select set_limit(%s, %s, %s)", [scope, name, most])
    start_worker(sql)
    for _ in range(most):
        enqueue(sql)
    assert len(sql.execute("select id from claim('w', count => 5)").fetchall()) == most
    assert sql.execute("select detail from explain(%s)", [enqueue(sql)]).fetchall() == [(words,)]
