"""The two steps of an API server, for many at once: each job has its own fate, one key has one job."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from leasehold.retry import USUAL_ATTEMPTS
from tests.sql.conftest import Database, Session

Job = dict[str, Any]

NO_TIME = "is not a time such as 2030-01-31T12:00:00Z"
BAD: list[tuple[Any, str]] = [
    (5, "it is not a JSON object"),
    (None, "it is not a JSON object"),
    ({}, "kind is empty"),
    ({"kind": 1}, "kind is not a text"),
    ({"kind": "k", "queue": ["q"]}, "queue is not a text"),
    ({"kind": "k", "nonsense": 1}, "unknown field 'nonsense'"),
    ({"kind": "k", "priority": "high"}, "priority high is not between -32767 and 32767"),
    ({"kind": "k", "priority": 1.5}, "priority 1.5 is not between -32767 and 32767"),
    ({"kind": "k", "priority": 40_000}, "priority 40000 is not between -32767 and 32767"),
    ({"kind": "k", "max_attempts": 0}, "max_attempts 0 is not between 1 and 32767"),
    ({"kind": "k", "payload": [1]}, "payload is not a JSON object"),
    ({"kind": "k", "idempotency_key": ""}, "idempotency_key is empty"),
    ({"kind": "k", "idempotency_key": "x" * 501}, "idempotency_key is longer than 500 bytes"),
    ({"kind": "k", "strict": "yes"}, "strict is neither true nor false"),
    ({"kind": "k", "own": "yes"}, "own is neither true nor false"),
    ({"kind": "k", "id": "7"}, "id is not a UUID"),
    ({"kind": "k", "tags": "a"}, "tags is not an array"),
    ({"kind": "k", "tags": ["a", 1]}, "a tag is not a text"),
    ({"kind": "k", "tags": ["a"] * 51}, "more than 50 tags"),
    ({"kind": "k", "run_at": "soon"}, f"run_at soon {NO_TIME}"),
    ({"kind": "k", "run_at": "2030-02-30T00:00:00Z"}, f"run_at 2030-02-30T00:00:00Z {NO_TIME}"),
    ({"kind": "k", "run_at": "2030-01-01T24:00:00Z"}, f"run_at 2030-01-01T24:00:00Z {NO_TIME}"),
    ({"kind": "k", "run_at": "2030-01-01T00:00:00"}, f"run_at 2030-01-01T00:00:00 {NO_TIME}"),
    ({"kind": "k", "run_after": "a while"}, "run_after is not a number of microseconds such as '1000 microseconds'"),
    ({"kind": "k", "run_at": "2030-01-01T00:00:00Z", "run_after": "1 microseconds"}, "both run_at and run_after"),
]  # fmt: skip


def submit(session: Session, jobs: list[Any], **options: Any) -> list[Any]:
    return session.rows("submit_many", jobs=jobs or [{}], **options)


def test_jobs_are_recorded_as_created_and_run_only_when_they_are_accepted(shared: Session) -> None:
    rows = submit(
        shared, [{"kind": "a", "idempotency_key": "1"}, {"kind": "b", "run_at": "2099-02-28T23:59:59.5+02:00"}]
    )
    assert [(row.ord, row.error, row.kind, row.state, row.status) for row in rows] == [
        (1, None, "a", "created", "PENDING"),
        (2, None, "b", "created", "PENDING"),
    ]
    assert shared.values("select accepted from jobs") == [False, False]
    assert shared.one("promote") == 0
    assert shared.rows("claim", worker="w") == []
    ids = [row.id for row in rows]
    accepted = shared.rows("accept_many", ids=ids[::-1])
    assert [(row.id, row.state) for row in accepted] == [(ids[1], "created"), (ids[0], "queued")]
    assert [row.id for row in shared.rows("claim", worker="w")] == [ids[0]]


def test_accepting_again_changes_nothing_and_an_unknown_id_has_no_row(shared: Session) -> None:
    (row,) = submit(shared, [{"kind": "a"}])
    first = shared.rows("accept_many", ids=[row.id])
    before = shared.everything()
    assert shared.rows("accept_many", ids=[row.id, uuid4()]) == first
    assert shared.everything() == before
    shared.rows("claim", worker="w")
    assert [again.state for again in shared.rows("accept_many", ids=[row.id])] == ["running"]


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_one_bad_job_never_fails_its_neighbours(shared: Session, bad: Any, why: str) -> None:
    rows = submit(shared, [{"kind": "before"}, bad, {"kind": "after"}])
    assert [row.kind for row in rows] == ["before", None, "after"]
    assert (rows[1].error, rows[1].detail) == ("LH003", why)
    assert shared.values("select kind from jobs order by kind") == ["after", "before"]


def test_null_is_the_same_as_missing(shared: Session) -> None:
    names = ["payload", "queue", "priority", "run_at", "run_after", "idempotency_key", "max_attempts", "exclusive_key",
             "tags", "id", "strict", "own"]  # fmt: skip
    (row,) = submit(shared, [{"kind": "k", **dict.fromkeys(names)}])
    assert row.error is None
    job = shared.job(row.id)
    assert (job["payload"], job["queue"], job["priority"], job["max_attempts"]) == ({}, "default", 0, USUAL_ATTEMPTS)


def test_every_field_is_recorded(shared: Session) -> None:
    job_id = uuid4()
    (row,) = submit(
        shared,
        [{"kind": "k", "payload": {"a": [1, {"b": None}]}, "queue": "q", "priority": -3,
          "run_after": "60000000 microseconds",
          "idempotency_key": "key", "max_attempts": 7, "exclusive_key": "x", "tags": ["s", "t"], "id": str(job_id)}],
    )  # fmt: skip
    job = shared.job(job_id)
    assert row.id == job_id
    assert (job["payload"], job["queue"], job["priority"], job["max_attempts"]) == ({"a": [1, {"b": None}]}, "q", -3, 7)
    assert (job["exclusive_key"], job["tags"], job["idempotency_key"]) == ("x", ["s", "t"], "key")
    assert (job["run_at"] - job["created_at"]).total_seconds() == 60


def test_a_used_key_returns_the_job_that_has_it(shared: Session) -> None:
    job_id = shared.one("enqueue", kind="first", idempotency_key="key")
    before = shared.job(job_id)
    rows = submit(shared, [{"kind": "second", "idempotency_key": "key"}, {"kind": "other"}])
    assert [(row.id == job_id, row.kind, row.state) for row in rows] == [
        (True, "first", "queued"),
        (False, "other", "created"),
    ]
    assert shared.job(job_id) == before


def test_the_same_key_twice_in_one_batch_is_one_job(shared: Session) -> None:
    rows = submit(shared, [{"kind": "k", "idempotency_key": "a"}, {"kind": "k"}, {"kind": "k", "idempotency_key": "a"}])
    assert rows[0].id == rows[2].id != rows[1].id
    assert shared.value("select count(*) from jobs") == 2


def test_strict_refuses_a_used_key_of_another_kind_or_payload_alone(shared: Session) -> None:
    first: Job = {"kind": "k", "payload": {"n": 1}, "idempotency_key": "a", "strict": True}
    submit(shared, [first])
    rows = submit(
        shared, [first, first | {"payload": {"n": 2}}, first | {"kind": "l"}, first | {"kind": "l", "strict": False}]
    )
    assert [row.error for row in rows] == [None, "LH004", "LH004", None]
    assert rows[1].id is None


def test_a_repeated_call_with_the_same_ids_returns_the_same_answer(shared: Session) -> None:
    jobs: list[Job] = [{"kind": "k", "id": str(uuid4()), "idempotency_key": key} for key in ("a", "b", None)]
    first = submit(shared, jobs)
    assert submit(shared, jobs) == first
    assert shared.value("select count(*) from jobs") == 3


def test_an_id_that_belongs_to_another_key_is_refused_alone(shared: Session) -> None:
    job_id = shared.one("enqueue", kind="k", idempotency_key="mine")
    rows = submit(shared, [{"kind": "k", "id": str(job_id), "idempotency_key": "yours"}, {"kind": "k"}])
    assert [row.error for row in rows] == ["LH004", None]


def test_a_used_key_outside_the_queues_and_kinds_is_refused_without_a_word_about_its_job(shared: Session) -> None:
    job_id = shared.one("enqueue", kind="secret kind", queue="secret queue", idempotency_key="key")
    for rights in ({"queues": ["mine"]}, {"kinds": ["mine"]}):
        (row,) = submit(shared, [{"kind": "mine", "queue": "mine", "idempotency_key": "key"}], **rights)
        assert row.error == "LH004"
        assert "secret" not in str(row)
        assert str(job_id) not in str(row)
    (row,) = submit(shared, [{"kind": "x", "idempotency_key": "key"}], queues=["secret queue"], kinds=["secret kind"])
    assert row.id == job_id


@pytest.mark.parametrize("call", ["submit_many", "submit_each"])
def test_a_key_of_its_own_is_refused_without_a_word_about_the_job_of_another_origin(shared: Session, call: str) -> None:
    mine: Job = {"kind": "k", "origin": "mine", "own": True}
    jobs = {
        "of the application": shared.one("enqueue", kind="secret", idempotency_key="of the application"),
        "of another": shared.rows(
            call, jobs=[{"kind": "secret", "idempotency_key": "of another", "origin": "theirs", "own": True}]
        )[0].id,
    }
    for key, job_id in jobs.items():
        refused, other = shared.rows(call, jobs=[mine | {"idempotency_key": key}, mine])
        assert (refused.error, refused.id, other.error) == ("LH004", None, None)
        assert "secret" not in str(refused)
        assert str(job_id) not in str(refused)
        (seen,) = shared.rows(call, jobs=[mine | {"idempotency_key": key, "own": False}])
        assert seen.id == job_id
    first, again = (shared.rows(call, jobs=[mine | {"idempotency_key": "new"}])[0] for _ in range(2))
    assert first.id == again.id
    (old,) = shared.rows(call, jobs=[{"kind": "k", "own": True, "idempotency_key": "of the application"}])
    assert old.id == jobs["of the application"]


def test_of_origins_that_use_a_key_at_once_one_has_the_job_and_the_rest_are_refused(db: Database) -> None:
    sessions = {origin: db.connect() for origin in "abcd"}

    def race(origin: str) -> list[tuple[Any, Any]]:
        jobs: list[Job] = [
            {"kind": "k", "origin": origin, "own": True, "idempotency_key": f"key {n}"} for n in range(50)
        ]
        random.Random(origin).shuffle(jobs)
        rows = [row for some in (jobs[:25], jobs[25:]) for row in sessions[origin].rows("submit_many", jobs=some)]
        return [(job["idempotency_key"], row.error) for job, row in zip(jobs, rows, strict=True)]

    with ThreadPoolExecutor(4) as pool:
        found = [pair for answers in pool.map(race, "abcd") for pair in answers]
    for n in range(50):
        errors = [error for key, error in found if key == f"key {n}"]
        assert sorted(errors, key=str) == ["LH004"] * 3 + [None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": ""},
        {"kind": "k", "idempotency_key": "used", "strict": True},
        {"kind": "k", "idempotency_key": "used", "origin": "mine", "own": True},
    ],
)
def test_all_or_none_records_nothing_when_one_is_wrong(shared: Session, wrong: Job) -> None:
    shared.one("enqueue", kind="first", idempotency_key="used")
    with pytest.raises(psycopg.DatabaseError) as caught:
        submit(shared, [{"kind": "a"}, wrong, {"kind": "b"}], all_or_none=True)
    assert (caught.value.diag.message_detail or "").startswith("jobs[1]: ")
    assert shared.values("select kind from jobs") == ["first"]


def test_what_is_not_an_array_is_refused(shared: Session) -> None:
    with pytest.raises(psycopg.DatabaseError) as caught:
        shared.execute("select * from submit_many('{}')")
    assert caught.value.sqlstate == "LH003"
    assert shared.execute("select * from submit_many('[]')").fetchall() == []


def test_statuses_shows_what_a_client_may_see_of_each(shared: Session) -> None:
    (done, other) = submit(shared, [{"kind": "a", "payload": {"s": "secret"}}, {"kind": "b"}])
    shared.rows("accept_many", ids=[done.id])
    shared.rows("claim", worker="w")
    shared.execute("select complete('w', array[%s], '{1}', array['\"secret\"'::jsonb])", [done.id])
    rows = {row.id: row for row in shared.rows("statuses", ids=[done.id, other.id, uuid4()])}
    assert {row.id: row.status for row in rows.values()} == {done.id: "COMPLETED", other.id: "PENDING"}
    assert "secret" not in str(rows)


# -- races


def hammer(db: Database, session: Session) -> None:
    """Many API servers, each in its own order, over the same few keys."""
    keys = [f"key {n}" for n in range(60)]

    def serve(server: Session, place: int) -> dict[str, UUID]:
        chance = random.Random(place)
        seen: dict[str, UUID] = {}
        for _ in range(6):
            mine = [chance.choice(keys) for _ in range(40)]
            rows = server.rows(
                "submit_many", jobs=[{"kind": "k", "idempotency_key": key, "id": str(uuid4())} for key in mine]
            )
            for key, row in zip(mine, rows, strict=True):
                assert row.error is None
                assert seen.setdefault(key, row.id) == row.id
            chance.shuffle(rows)
            server.rows("accept_many", ids=[row.id for row in rows])
        return seen

    answers = db.crowd(12, serve)
    jobs = dict(session.execute("select idempotency_key, id from jobs").fetchall())
    assert session.value("select count(*) from jobs") == len(jobs)
    for answer in answers:
        assert answer.items() <= jobs.items()
    assert session.values("select distinct state::text from jobs") == ["queued"]


def test_concurrent_batches_that_share_keys_never_deadlock_and_agree_on_the_ids(db: Database, session: Session) -> None:
    hammer(db, session)


def test_crossing_batches_catch_the_naive_version_that_inserts_in_the_order_sent(
    db: Database, session: Session
) -> None:
    session.mutate("read_intents", "order by i.idempotency_key, i.id, e.ord", "order by e.ord")
    with pytest.raises(psycopg.errors.DeadlockDetected):
        cross(db, session, times=20)


def cross(db: Database, session: Session, times: int) -> None:
    """Two batches with the same two keys in opposite orders, each held up before each of its inserts."""
    session.execute(
        "create function dawdle() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.05); return new; end $$"
    )
    session.execute("create trigger dawdle before insert on jobs for each row execute function dawdle()")
    for _ in range(times):
        cross_once(db, session)
        assert session.value("select count(*) from jobs") == 2
        session.execute("truncate jobs")


def cross_once(db: Database, session: Session) -> None:
    jobs = [{"kind": "k", "idempotency_key": key} for key in ("a", "b")]
    db.crowd(2, lambda server, place: server.rows("submit_many", jobs=jobs[:: 1 if place else -1]))


def test_crossing_batches_wait_for_each_other(db: Database, session: Session) -> None:
    cross(db, session, times=5)


def test_a_batch_waits_for_an_uncommitted_neighbour_and_returns_its_job(db: Database, session: Session) -> None:
    first = db.connect()
    first.execute("begin")
    (mine,) = first.rows("submit_many", jobs=[{"kind": "k", "idempotency_key": "key"}])
    second = db.connect()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(second.rows, "submit_many", jobs=[{"kind": "k", "idempotency_key": "key"}, {"kind": "l"}])
        db.until_blocked(session, [second.info.backend_pid])
        first.execute("commit")
        rows = answer.result()
    assert rows[0].id == mine.id
    assert session.value("select count(*) from jobs") == 2


def test_waiting_catches_the_naive_version_that_inserts_and_reads_in_one_statement(
    db: Database, session: Session
) -> None:
    session.execute(
        """create function naive(jobs jsonb) returns table (error text, id uuid) language sql as $$
          with made as (
            insert into leasehold.jobs (max_attempts, kind, idempotency_key, accepted)
            select 5, i.kind, i.idempotency_key, false from jsonb_populate_recordset(null::leasehold.intent, jobs) i
            on conflict do nothing
            returning id, idempotency_key)
          select case when coalesce(m.id, j.id) is null then '40001' end, coalesce(m.id, j.id)
          from jsonb_populate_recordset(null::leasehold.intent, jobs) i left join made m using (idempotency_key)
          left join leasehold.jobs j using (idempotency_key) $$"""
    )
    first = db.connect()
    first.execute("begin")
    first.execute("insert into jobs (max_attempts, kind, idempotency_key) values (5, 'k', 'key')")
    second = db.connect()
    with ThreadPoolExecutor(1) as pool:
        ask = 'select * from naive(\'[{"kind": "k", "idempotency_key": "key"}]\'::jsonb)'
        answer = pool.submit(lambda: second.execute(ask).fetchall())
        db.until_blocked(session, [second.info.backend_pid])
        first.execute("commit")
        assert answer.result() == [("40001", None)], "the row that it has waited for is not in its snapshot"


def test_a_commit_that_does_not_wait_for_the_disk_is_only_the_first_steps(db: Database, session: Session) -> None:
    session.execute("create table settings (step text, value text)")
    session.execute(
        "create function note() returns trigger language plpgsql as $$ begin insert into leasehold.settings"
        " values (new.state::text, current_setting('synchronous_commit')); return new; end $$"
    )
    session.execute("create trigger note before insert or update on jobs for each row execute function note()")
    (row,) = session.rows("submit_many", jobs=[{"kind": "k"}], durable=False)
    session.rows("accept_many", ids=[row.id])
    session.rows("submit_many", jobs=[{"kind": "k"}])
    assert session.execute("select step, value from settings").fetchall() == [
        ("created", "off"), ("queued", "on"), ("created", "on"),
    ]  # fmt: skip
