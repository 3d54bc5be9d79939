"""Submissions that go together: one statement for many, and each has its own fate."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from leasehold.db.database import Database
from leasehold.db.store import Seen
from leasehold.http.problems import Problem
from leasehold.http.schemas import JobRequest
from leasehold.http.settings import ApiSettings
from leasehold.http.submissions import submission_of
from leasehold.http.submitter import Submission, Submitter
from leasehold.http.waiting import Watcher
from leasehold.operate.caller import Caller
from tests.db.proxy import Proxy
from tests.http.conftest import connect, key

SETTINGS = ApiSettings(database_seconds=5)


def submission(idempotency_key: str | None = None, payload: str = "{}", **fields: Any) -> Submission:
    unique = idempotency_key or key()
    request = JobRequest.model_validate({"jobType": "k", **fields})
    return submission_of(request, unique, {"payload": payload})


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    made = Database(dsn, schema="leasehold", wait=5, bounded=True)
    yield made
    made.close()


async def test_a_lone_submission_is_sent_at_once_and_accepted(database: Database) -> None:
    submitter = Submitter(database, SETTINGS)
    job = await submitter.submit(submission())
    assert (job.state, job.kind, submitter.statements) == ("queued", "k", 1)


@pytest.mark.parametrize("senders", [1, 2, 3])
async def test_a_client_that_comes_back_with_the_answer_finds_a_sender(database: Database, senders: int) -> None:
    """The moment in which a sender has just ended: a submission must not be left to it."""
    submitter = Submitter(database, ApiSettings(database_seconds=5, senders=senders))
    watcher = Watcher(database, ApiSettings(database_seconds=5, senders=senders))

    async def client() -> None:
        for _ in range(20):
            job = await submitter.submit(submission())
        for _ in range(20):
            assert await watcher.read(job.id) == job

    async with asyncio.timeout(60):
        await client()
        await asyncio.gather(*(client() for _ in range(senders * 4)))


async def test_what_arrives_meanwhile_is_gathered_into_few_statements(database: Database) -> None:
    submitter = Submitter(database, SETTINGS)
    jobs = await asyncio.gather(*(submitter.submit(submission()) for _ in range(500)))
    assert len({job.id for job in jobs}) == 500
    assert {job.state for job in jobs} == {"queued"}
    assert submitter.submissions == 500
    assert submitter.statements <= 10


async def test_one_bad_job_never_fails_its_neighbours(database: Database) -> None:
    submitter = Submitter(database, SETTINGS)
    bad = submission()
    wrong = replace(bad, element=bad.element.replace('"payload"', '"priority":99999,"payload"'))
    good, refused, other = await asyncio.gather(
        submitter.submit(submission()), submitter.submit(wrong), submitter.submit(submission()), return_exceptions=True
    )
    assert submitter.statements == 1
    assert isinstance(good, Seen)
    assert isinstance(other, Seen)
    assert isinstance(refused, Problem)
    assert refused.name == "invalid-request"


async def test_a_conflict_is_the_business_of_one(database: Database) -> None:
    submitter = Submitter(database, SETTINGS)
    mine = submission(jobType="mine", idempotency="strict")
    yours = submission(mine.key, jobType="yours", idempotency="strict")
    first, conflict, other = await asyncio.gather(
        submitter.submit(mine), submitter.submit(yours), submitter.submit(submission()), return_exceptions=True
    )
    assert isinstance(first, Seen)
    assert isinstance(other, Seen)
    assert isinstance(conflict, Problem)
    assert conflict.name == "idempotency-conflict"


async def test_the_same_key_in_one_statement_gets_the_same_job(database: Database) -> None:
    submitter = Submitter(database, ApiSettings(database_seconds=5, senders=1))
    same = submission()
    jobs = await asyncio.gather(*(submitter.submit(same) for _ in range(50)))
    assert len(set(jobs)) == 1
    assert submitter.statements == 1


async def test_a_job_that_the_caller_may_not_see_is_neither_shown_nor_accepted(dsn: str, database: Database) -> None:
    submitter = Submitter(database, SETTINGS)
    with connect(dsn) as sql:
        sql.execute("select submit('theirs', idempotency_key => 'key')")
        mine = submission("key")
        limited = replace(mine, caller=Caller("limited", kinds=frozenset({"k"})))
        with pytest.raises(Problem) as caught:
            await submitter.submit(limited)
        assert caught.value.name == "idempotency-conflict"
        assert b"theirs" not in caught.value.body()
        assert sql.execute("select state::text, accepted from jobs").fetchall() == [
            {"state": "created", "accepted": False}
        ]


async def test_a_request_that_is_gone_does_not_disturb_its_neighbours(database: Database) -> None:
    submitter = Submitter(database, SETTINGS)
    tasks = [asyncio.create_task(submitter.submit(submission())) for _ in range(60)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, Seen) for result in results] == [n % 3 != 0 for n in range(60)]


async def test_too_many_that_wait_are_refused_at_once_and_the_others_served(database: Database) -> None:
    submitter = Submitter(database, ApiSettings(database_seconds=5, waiting=10, coalesced=5, senders=1))
    results = await asyncio.gather(*(submitter.submit(submission()) for _ in range(30)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, Problem)]
    assert {problem.name for problem in refused} == {"overloaded"}
    assert len(refused) == 20
    assert all(isinstance(result, Seen) for result in results[:10])


@pytest.mark.parametrize("step", ["submit_many", "accept_many"])
async def test_a_lost_answer_is_asked_for_again_and_there_is_one_job(dsn: str, step: str) -> None:
    proxy = Proxy(dsn)
    database = Database(proxy.dsn, schema="leasehold", prepare=False, wait=20, bounded=True)
    try:
        submitter = Submitter(database, SETTINGS)
        proxy.lose_answers(2, to=step)
        wanted = [submission() for _ in range(5)]
        jobs = await asyncio.gather(*map(submitter.submit, wanted))
        assert proxy.lost == 2
        with connect(dsn) as sql:
            rows = sql.execute("select id, idempotency_key as key, state::text from jobs").fetchall()
        assert {row["key"]: row["id"] for row in rows} == {w.key: job.id for w, job in zip(wanted, jobs, strict=True)}
        assert {row["state"] for row in rows} == {"queued"}
    finally:
        database.close()
        proxy.close()


@pytest.mark.parametrize("step", ["submit_many", "accept_many"])
async def test_an_outcome_that_stays_unknown_is_an_error_with_the_id_and_the_key(
    dsn: str, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = Proxy(dsn)
    database = Database(proxy.dsn, schema="leasehold", prepare=False, wait=1.0, bounded=True)
    try:
        submitter = Submitter(database, SETTINGS)
        proxy.lose_answers(10_000, to=step)
        wanted = submission()
        with pytest.raises(Problem) as caught:
            await submitter.submit(wanted)
        assert caught.value.name == "outcome-unknown"
        assert caught.value.members["idempotencyKey"] == wanted.key
        assert "1 submissions are answered with 503, their outcome is unknown: " in caplog.text
        with connect(dsn) as sql:
            (row,) = sql.execute("select id, state::text from jobs").fetchall()
        assert caught.value.members["jobId"] == str(row["id"])
        proxy.lose_answers(0)
        repeated = await submitter.submit(wanted)
        assert (repeated.id, repeated.state) == (row["id"], "queued")
    finally:
        database.close()
        proxy.close()


@pytest.mark.parametrize("step", ["submit_many", "accept_many"])
async def test_a_batch_whose_outcome_stays_unknown_is_an_error_and_repeated_it_is_there_once(
    dsn: str, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = Proxy(dsn)
    database = Database(proxy.dsn, schema="leasehold", prepare=False, wait=1.0, bounded=True)
    try:
        submitter = Submitter(database, SETTINGS)
        proxy.lose_answers(10_000, to=step)
        wanted = [submission() for _ in range(3)]
        with pytest.raises(Problem) as caught:
            await submitter.submit_all(wanted)
        assert caught.value.name == "outcome-unknown"
        assert "3 submissions are answered with 503, their outcome is unknown: " in caplog.text
        proxy.lose_answers(0)
        jobs = await submitter.submit_all(wanted)
        with connect(dsn) as sql:
            rows = sql.execute("select idempotency_key as key, id, state::text from jobs").fetchall()
        assert [(row["key"], row["id"], row["state"]) for row in sorted(rows, key=lambda row: row["id"])] == [
            (one.key, job.id, "queued") for one, job in zip(wanted, jobs, strict=True)
        ]
    finally:
        database.close()
        proxy.close()


async def test_what_was_certainly_never_sent_raises_its_own_error(dsn: str) -> None:
    proxy = Proxy(dsn)
    database = Database(proxy.dsn, schema="leasehold", wait=1.0, bounded=True)
    try:
        submitter = Submitter(database, SETTINGS)
        await submitter.submit(submission())
        proxy.go_away()
        results = await asyncio.gather(*(submitter.submit(submission()) for _ in range(20)), return_exceptions=True)
        assert {problem.name for problem in results if isinstance(problem, Problem)} == {"database-unavailable"}
        assert len(results) == 20
        proxy.come_back()
        await submitter.submit(submission())
        with connect(dsn) as sql:
            assert sql.execute("select count(*) as jobs from jobs").fetchone() == {"jobs": 2}
    finally:
        database.close()
        proxy.close()


async def test_a_key_that_an_open_transaction_uses_costs_only_its_own_submissions(database: Database, dsn: str) -> None:
    """begin; select enqueue(…, idempotency_key => 'K') and nothing more, while clients post K and other jobs."""
    submitter = Submitter(database, SETTINGS)
    with connect(dsn) as sleeper:
        sleeper.execute("begin")
        sleeper.execute("select leasehold.enqueue('k', idempotency_key => 'K')")
        for _ in range(3):
            answers = await asyncio.gather(
                *(submitter.submit(submission("K" if n in (3, 7) else None)) for n in range(20)), return_exceptions=True
            )
            for n, answer in enumerate(answers):
                if n in (3, 7):
                    assert isinstance(answer, Problem)
                    assert (answer.name, answer.headers["retry-after"]) == ("database-unavailable", "1")
                    assert "idempotency key" in answer.detail
                else:
                    assert isinstance(answer, Seen)
                    assert answer.state == "queued"
        statements = submitter.statements
        first, second = await asyncio.gather(
            submitter.submit(submission("K")), submitter.submit(submission()), return_exceptions=True
        )
        assert isinstance(first, Problem)
        assert isinstance(second, Seen)
        assert submitter.statements == statements + 2  # known to be in use: it goes apart from the others
        sleeper.execute("rollback")
    assert (await submitter.submit(submission("K"))).state == "queued"
    await submitter.close()
