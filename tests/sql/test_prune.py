"""Laws of pruning: only what is over, only when asked, with everything that belongs to it."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Database, Session, TestClock

DAY = timedelta(days=1)


def finished(session: Session, jobs: int = 1, kind: str = "k", **columns: str) -> list[UUID]:
    """Jobs that ended two days ago."""
    ended = {"state": "'success'", "attempt": "1", "finished_at": "clock() - interval '2 days'", **columns}
    return Database.insert(session, jobs, kind=f"'{kind}'", **ended)


def dead(session: Session, jobs: int = 1, **columns: str) -> list[UUID]:
    return finished(session, jobs, state="'dead'", reason="'exhausted'", retry_count="1", **columns)


def everything_of(session: Session, job: UUID) -> dict[str, int]:
    tables = {"jobs": "id", "attempts": "job_id", "job_logs": "job_id", "events": "job_id"}
    query = "select count(*) from {} where {} = %s"
    return {table: session.value(query.format(table, column), job) for table, column in tables.items()}


def test_a_finished_job_goes_with_all_that_is_recorded_of_it(session: Session, clock: TestClock) -> None:
    session.one("history", enabled=True)
    job, other = session.one("enqueue", kind="k", max_attempts=1), session.one("enqueue", kind="k")
    (token,) = session.rows("claim", worker="w", claim_id=uuid4())
    lines = [Jsonb([["now", "info", "x"]])]
    session.execute("select add_logs('w', %s, '{1}', null, %s)", [[job], lines])
    session.one("fail", worker="w", id=token.id, attempt=1)
    clock.advance(90_000)
    assert everything_of(session, job) == {"jobs": 1, "attempts": 1, "job_logs": 1, "events": 3}
    (row,) = session.rows("prune", older_than=DAY, states=["dead"])
    assert (row.kind, row.state, row.jobs, row.capped) == ("k", "dead", 1, False)
    assert everything_of(session, job) == {"jobs": 0, "attempts": 0, "job_logs": 0, "events": 0}
    assert everything_of(session, other) == {"jobs": 1, "attempts": 0, "job_logs": 0, "events": 1}


def test_only_what_ended_long_enough_ago_in_the_given_states_goes(session: Session) -> None:
    (old,) = finished(session)
    (young,) = finished(session, finished_at="clock() - interval '1 hour'")
    (failed,) = dead(session)
    session.rows("prune", older_than=DAY)
    assert session.values("select id from jobs order by id") == sorted([young, failed])
    session.rows("prune", older_than=DAY, states=["success", "dead"])
    assert session.values("select id from jobs") == [young]
    assert old not in (young, failed)


@pytest.mark.parametrize("state", ["created", "queued", "running", "retry"])
def test_what_has_not_finished_is_never_touched_however_old(session: Session, state: str) -> None:
    lease = {"lease_owner": "'w'", "lease_expires_at": "clock()", "attempt": "1"} if state == "running" else {}
    old = "clock() - interval '900 days'"
    Database.insert(session, 3, state=f"'{state}'", created_at=old, updated_at=old, run_at=old, **lease)
    before = session.everything()
    assert session.rows("prune", older_than=timedelta(0), states=["success", "dead"]) == []
    assert session.everything() == before


def test_a_dry_run_says_what_would_go_and_changes_nothing(session: Session) -> None:
    finished(session, 3, kind="a")
    finished(session, 2, kind="b")
    dead(session, 4)
    before = session.everything()
    said = session.rows("prune", older_than=DAY, states=["success", "dead"], dry_run=True)
    assert [(row.kind, row.state, row.jobs, row.capped) for row in said] == [
        ("a", "success", 3, False), ("b", "success", 2, False), ("k", "dead", 4, False),
    ]  # fmt: skip
    assert session.everything() == before
    assert session.rows("prune", older_than=DAY, states=["success", "dead"]) == said
    assert session.value("select count(*) from jobs") == 0


def test_each_call_takes_a_bounded_number_the_oldest_first_and_says_whether_there_is_more(session: Session) -> None:
    finished(session, 10, finished_at="clock() - n * interval '2 days'", priority="n")
    seen = []
    while rows := session.rows("prune", older_than=DAY, max=4):
        seen.append((rows[0].jobs, rows[0].capped, session.values("select priority from jobs order by priority")))
    assert seen == [(4, True, [1, 2, 3, 4, 5, 6]), (4, True, [1, 2]), (2, False, [])]


@pytest.mark.parametrize(
    "arguments",
    [
        {"older_than": None}, {"older_than": timedelta(days=-1)}, {"states": ["queued"]}, {"states": []},
        {"states": None}, {"states": ["success", "running"]}, {"max": 0}, {"max": 10_001},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(session: Session, arguments: dict[str, Any]) -> None:
    finished(session)
    with pytest.raises(psycopg.Error) as refused:
        session.rows("prune", **({"older_than": DAY} | arguments))
    assert refused.value.sqlstate == "LH003"
    assert session.value("select count(*) from jobs") == 1


def test_the_key_of_a_pruned_job_can_be_used_again_and_makes_a_new_job(session: Session) -> None:
    (old,) = finished(session, idempotency_key="'key'")
    assert session.one("enqueue", kind="k", idempotency_key="key") == old
    session.rows("prune", older_than=DAY)
    new = session.one("enqueue", kind="k", idempotency_key="key")
    assert new != old
    assert session.one("enqueue", kind="k", idempotency_key="key") == new


def test_a_key_that_is_sent_while_its_job_is_pruned_returns_a_job_that_is_there(db: Database, session: Session) -> None:
    (old,) = finished(session, idempotency_key="'key'")
    other = db.connect()
    with session.transaction():
        session.rows("prune", older_than=DAY)
        answers: list[UUID] = []
        crowd = db.connect()
        thread = _later(lambda: answers.append(crowd.one("enqueue", kind="k", idempotency_key="key")))
        db.until_blocked(other, [crowd.info.backend_pid])
    thread.join()
    assert session.values("select id from jobs") == answers
    assert answers != [old]


def test_a_retry_that_comes_first_keeps_the_job(db: Database, session: Session) -> None:
    (job,) = dead(session)
    person = db.connect()
    with person.transaction():
        assert person.one("retry", id=job) is True
        assert session.rows("prune", older_than=DAY, states=["dead"]) == []
    assert session.rows("prune", older_than=DAY, states=["dead"]) == []
    assert session.job(job)["state"] == "queued"


def test_a_retry_that_comes_second_raises_that_there_is_no_such_job(db: Database, session: Session) -> None:
    (job,) = dead(session)
    person, other = db.connect(), db.connect()
    refused: list[str | None] = []

    def retry() -> None:
        try:
            person.one("retry", id=job)
        except psycopg.Error as error:
            refused.append(error.sqlstate)

    with session.transaction():
        session.rows("prune", older_than=DAY, states=["dead"])
        thread = _later(retry)
        db.until_blocked(other, [person.info.backend_pid])
    thread.join()
    assert refused == ["LH002"]
    assert session.value("select count(*) from jobs") == 0


LOOK_AGAIN = (
    " and (j.state is not distinct from 'success' or j.state is not distinct from 'dead')\n"
    "        and j.finished_at < before"
)
FOUND = "  if dry_run then\n    mine"


def retried_between_the_look_and_the_lock(db: Database, session: Session) -> str | None:
    """What becomes of a dead job that is retried, and committed, while prune is between finding and locking it."""
    (job,) = dead(session)
    session.mutate("prune_v1", FOUND, f"  perform pg_advisory_xact_lock_shared(4711);\n{FOUND}")
    gate, pruner = db.connect(), db.connect()
    gate.execute("select pg_advisory_lock(4711)")
    thread = _later(lambda: pruner.rows("prune", older_than=DAY, states=["dead"]))
    db.until_blocked(session, [pruner.info.backend_pid])
    assert session.one("retry", id=job) is True
    gate.execute("select pg_advisory_unlock(4711)")
    thread.join()
    found = session.values("select state::text from jobs where id = %s", job)
    return found[0] if found else None


def test_a_job_that_is_retried_after_it_was_found_is_looked_at_again_and_stays(db: Database, session: Session) -> None:
    assert retried_between_the_look_and_the_lock(db, session) == "queued"


def test_the_race_with_a_retry_catches_a_prune_that_does_not_read_again(db: Database, session: Session) -> None:
    session.mutate("prune_v1", LOOK_AGAIN, "")
    assert retried_between_the_look_and_the_lock(db, session) is None


def test_any_number_may_prune_at_once_and_each_job_is_counted_once(db: Database, session: Session) -> None:
    finished(session, 300)

    def prune(mine: Session, _: int) -> int:
        removed = 0
        while mine.value("select exists (select from jobs)"):
            removed += sum(row.jobs for row in mine.rows("prune", older_than=DAY, max=20))
        return removed

    assert sum(db.crowd(4, prune)) == 300


def test_workers_long_gone_are_forgotten_and_others_are_not(session: Session) -> None:
    for worker, seen in {"gone": "8 days", "recent": "1 day", "busy": "9 days"}.items():
        session.one("start_worker", worker=worker)
        session.execute("update workers set seen_at = clock() - %s::interval where id = %s", [seen, worker])
    Database.insert(session, 1, state="'running'", attempt="1", lease_owner="'busy'", lease_expires_at="clock()")
    assert session.column("prune_workers", dry_run=True) == ["gone"]
    assert session.value("select count(*) from workers") == 3
    assert session.column("prune_workers") == ["gone"]
    assert session.column("prune_workers") == []
    assert session.values("select id from workers order by id") == ["busy", "recent"]
    for too_soon in (timedelta(seconds=59), timedelta(days=-1), None):
        with pytest.raises(psycopg.Error) as refused:
            session.column("prune_workers", older_than=too_soon)
        assert refused.value.sqlstate == "LH003"


def test_pruning_leaves_nothing_for_verify_to_find(session: Session, clock: TestClock) -> None:
    session.one("history", enabled=True)
    for _ in range(5):
        session.one("enqueue", kind="k", max_attempts=1)
    for token in session.rows("claim", worker="w", count=3):
        session.one("fail", worker="w", id=token.id, attempt=1)
    clock.advance(90_000)
    session.rows("prune", older_than=DAY, states=["dead"], max=2)
    assert [row.name for row in session.rows("verify") if not row.ok] == []
    Database.assert_consistent(session)


def _later(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread
