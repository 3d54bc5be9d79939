"""The client against real servers: both faces, lost answers, servers that die, databases that go away."""

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasehold.client import AsyncClient, Client, NewJob
from leasehold.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    IdempotencyConflict,
    IllegalTransition,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobUnknown,
    NotPermitted,
    ResultTimeout,
)
from tests.conftest import Admin
from tests.db.proxy import Proxy
from tests.http.front import Front
from tests.http.running import Served, serving, token_for
from tests.survival.conftest import Sql, connect, one

NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def api(admin: Admin, migrated: str) -> Iterator[Served]:
    """One server for all tests that leave it alone."""
    with admin.database(template=migrated) as name, serving(admin.server.dsn(name), token=True) as served:
        yield served


@pytest.fixture
def sql(api: Served) -> Iterator[Sql]:
    with connect(api.dsn) as connection:
        yield connection


@pytest.fixture
def client(api: Served) -> Iterator[Client]:
    assert api.token is not None
    with Client(api.url, token=api.token) as client:
        yield client


@pytest.fixture
def kind() -> str:
    """A kind of the test's own, to count its jobs by."""
    return f"K-{uuid.uuid4().hex}"


def finish(sql: Sql, job_id: str, result: object = None) -> None:
    """What a worker would do."""
    sql.execute("select claim_job(%s, 'w')", [job_id])
    attempt = one(sql, "select attempt from jobs where id = %s", job_id)
    one(
        sql,
        "select count(*) from complete('w', %s::uuid[], %s, %s::jsonb[])",
        [job_id],
        [attempt],
        [json.dumps(result)],
    )


def die(sql: Sql, job_id: str) -> None:
    """What a worker would do with a fatal error."""
    sql.execute("select claim_job(%s, 'w')", [job_id])
    attempt = one(sql, "select attempt from jobs where id = %s", job_id)
    error = json.dumps({"class": "Boom", "message": "secret text"})
    sql.execute("select fail('w', %s, %s, error => %s::jsonb, fatal => true)", [job_id, attempt, error])


def jobs(sql: Sql, kind: str) -> int:
    return int(one(sql, "select count(*) from jobs where kind = %s", kind))


def test_a_job_is_submitted_looked_at_and_its_result_fetched(client: Client, sql: Sql) -> None:
    job = client.submit(
        "SEND_EMAIL",
        {"to": "ü@b.c"},
        queue="mail",
        priority=3,
        tags=["a", "b"],
        max_attempts=2,
        metadata={"trace": "1"},
    )
    assert (job.kind, job.status, job.queue, job.finished) == ("SEND_EMAIL", "PENDING", "mail", False)
    assert client.get(job.job_id) == job
    finish(sql, job.job_id, {"sent": [1, None, "ß"]})
    assert client.get(job.job_id).status == "COMPLETED"
    assert client.result(job.job_id) == {"sent": [1, None, "ß"]}
    stored = sql.execute(
        "select payload, priority, tags, max_attempts, metadata from jobs where id = %s", [job.job_id]
    ).fetchone()
    assert stored == {
        "payload": {"to": "ü@b.c"},
        "priority": 3,
        "tags": ["a", "b"],
        "max_attempts": 2,
        "metadata": {"trace": "1"},
    }
    assert [found["jobId"] for found in client.list_jobs(metadata="trace=1").jobs] == [job.job_id]


async def test_the_awaited_face_does_the_same(api: Served, sql: Sql) -> None:
    async with AsyncClient(api.url, token=api.token) as client:
        found = await asyncio.gather(*(client.submit("K", {"n": n}) for n in range(20)))
        assert len({job.job_id for job in found}) == 20
        job = found[0]
        waiting = asyncio.create_task(client.result(job.job_id, timeout=30))
        await asyncio.to_thread(finish, sql, job.job_id, "done")
        assert await waiting == "done"
        assert (await client.get(job.job_id)).status == "COMPLETED"
        seen = [view.status async for view in client.events(job.job_id)]
        assert seen[-1] == "COMPLETED"


def test_many_jobs_are_recorded_in_order_and_found_again(client: Client, sql: Sql, kind: str) -> None:
    wanted = [NewJob(kind=kind, queue=f"q{n}", payload={"n": n}) for n in range(50)]
    first = client.submit_many(wanted)
    assert [job.queue for job in first] == [job.options["queue"] for job in wanted]
    assert [job.job_id for job in client.submit_many(wanted)] == [job.job_id for job in first]
    assert jobs(sql, kind) == 50


def test_a_job_for_later_keeps_its_time(client: Client) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    assert client.submit("K", run_at=later).run_at == later


def test_waiting_ends_when_the_job_does(client: Client, sql: Sql) -> None:
    job = client.submit("K")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait, job.job_id, 30)
        finish(sql, job.job_id)
        assert waiting.result().status == "COMPLETED"


def test_waiting_for_what_does_not_come_ends_too(client: Client) -> None:
    job = client.submit("K")
    for wait in (client.wait, client.result):
        with pytest.raises(ResultTimeout, match=job.job_id):
            wait(job.job_id, 1)


def test_a_dead_job_raises_what_it_would_without_http(client: Client, sql: Sql) -> None:
    job = client.submit("K")
    die(sql, job.job_id)
    with pytest.raises(JobFailed) as caught:
        client.result(job.job_id)
    assert caught.value.reason
    assert "secret text" not in str(caught.value)
    assert client.get(job.job_id).reason == caught.value.reason


def test_a_cancelled_job_is_cancelled_however_often(client: Client) -> None:
    job = client.submit("K")
    assert [client.cancel(job.job_id).status for _ in range(3)] == ["CANCELLED"] * 3
    with pytest.raises(JobCancelled):
        client.result(job.job_id)


def test_what_has_ended_cannot_be_cancelled(client: Client, sql: Sql) -> None:
    job = client.submit("K")
    finish(sql, job.job_id)
    with pytest.raises(IllegalTransition):
        client.cancel(job.job_id)


def test_what_is_not_there_raises_its_own_error(client: Client) -> None:
    for call in (client.get, client.wait, client.result, client.cancel, client.explain):
        for wrong in (NOBODY, "nonsense", "../ops/jobs", "\0"):
            with pytest.raises(JobUnknown):
                call(wrong)
    with pytest.raises(JobUnknown):
        next(iter(client.events(NOBODY)))


def test_what_is_wrong_is_named_with_its_field(client: Client, sql: Sql, kind: str) -> None:
    with pytest.raises(InvalidJob, match="jobType") as caught:
        client.submit("")
    assert isinstance(caught.value.__cause__, ApiError)
    assert caught.value.__cause__.status == 422
    assert caught.value.__cause__.type == "/problems/invalid-request"
    with pytest.raises(InvalidJob, match=r"jobs\.1"):
        client.submit_many([NewJob(kind=kind), NewJob(kind=kind, priority=99_999)])
    assert jobs(sql, kind) == 0


def test_a_strict_key_conflicts_with_another_payload(client: Client) -> None:
    first = client.submit("K", {"a": 1}, idempotency_key="strictly")
    assert client.submit("K", {"a": 2}, idempotency_key="strictly") == first
    with pytest.raises(IdempotencyConflict, match="the key was used before, for a job with another payload"):
        client.submit("K", {"a": 2}, idempotency_key="strictly", strict=True)
    with pytest.raises(IdempotencyConflict, match="the key was used before, for a job with another jobType, payload"):
        client.submit("L", {"a": 2}, idempotency_key="strictly", strict=True)
    with pytest.raises(IdempotencyConflict, match=r"jobs.0: the key was used before, for a job with another payload;"):
        client.submit_many([NewJob("K", {"a": 2}, idempotency_key="strictly", strict=True)])


def test_events_follow_the_job_to_its_end(client: Client, sql: Sql) -> None:
    job = client.submit("K")
    stream = client.events(job.job_id)
    assert next(stream).status == "PENDING"
    finish(sql, job.job_id)
    assert [view.status for view in stream][-1] == "COMPLETED"


def test_events_go_on_when_the_connection_was_cut(api: Served, sql: Sql) -> None:
    with Front(lambda: [api.port]) as front, Client(front.url, token=api.token) as client:
        job = client.submit("K")
        stream = client.events(job.job_id)
        assert next(stream).status == "PENDING"
        front.cut()
        finish(sql, job.job_id)
        seen = [view.status for view in stream]
    assert seen[-1] == "COMPLETED"
    assert "PENDING" not in seen, "what was seen before the cut is not sent again"


def test_operators_list_explain_retry_pause_and_resume(client: Client, sql: Sql, kind: str) -> None:
    made = [client.submit("K", {"n": n}, queue=kind).job_id for n in range(5)]
    page = client.list_jobs(queue=kind, limit=3)
    assert len(page.jobs) == 3
    rest = client.list_jobs(queue=kind, limit=3, cursor=page.cursor)
    assert {job["jobId"] for job in (*page.jobs, *rest.jobs)} == set(made)
    client.pause(kind, reason="the relay is down")
    assert "paused" in json.dumps(client.explain(made[0]))
    client.resume(kind)
    assert "paused" not in json.dumps(client.explain(made[0]))
    die(sql, made[0])
    client.retry(made[0])
    assert client.get(made[0]).status == "PENDING"


# Tokens


def test_a_token_that_may_not_gets_an_error_that_says_so(api: Served) -> None:
    reader = token_for(api.dsn, "read")
    with Client(api.url, token=reader) as client, pytest.raises(NotPermitted) as caught:
        client.submit("K")
    assert isinstance(caught.value.__cause__, ApiError)
    assert caught.value.__cause__.status == 403
    with Client(api.url) as client, pytest.raises(NotPermitted):
        client.submit("K")


def test_the_token_is_shown_nowhere(api: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert api.token is not None
    secret = api.token[-20:]
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    with Client(api.url, token=api.token, timeout=30) as client:
        client.submit("K")
        for wrong in (lambda: client.submit(""), lambda: client.get(NOBODY)):
            try:
                wrong()
            except Exception as error:  # noqa: BLE001 (whatever it is, it shows no token)
                shown += [repr(error), str(error), repr(error.__cause__), repr(vars(error))]
        shown.append(repr(client))
    with Client("http://127.0.0.1:9", token=api.token, timeout=0.2) as client:
        with pytest.raises(ApiUnavailable) as caught:
            client.submit("K")
        shown += [repr(caught.value), str(caught.value), repr(caught.value.__cause__)]
    shown.append(caplog.text)
    assert caplog.text
    assert not [text for text in shown if secret in text]


# Faults


@pytest.mark.parametrize("number", [1, 3])
def test_an_answer_lost_after_the_commit_leaves_one_job(api: Served, sql: Sql, kind: str, number: int) -> None:
    with Front(lambda: [api.port]) as front, Client(front.url, token=api.token) as client:
        front.lose_answers(number)
        job = client.submit(kind)
        assert front.lost == number
    assert jobs(sql, kind) == 1
    assert str(one(sql, "select id from jobs where kind = %s", kind)) == job.job_id


def test_a_client_with_a_new_key_for_each_try_would_leave_several(api: Served, sql: Sql, kind: str) -> None:
    """What the kept key is for: the same faults, a key per try, and the test above fails."""
    with Front(lambda: [api.port]) as front:
        front.lose_answers(2)
        for _ in range(3):
            try:
                with Client(front.url, token=api.token, timeout=0.05, try_timeout=10) as naive:
                    naive.submit(kind)
            except ApiUnavailable:
                continue
    assert jobs(sql, kind) > 1


def test_a_batch_whose_answer_is_lost_is_recorded_once(api: Served, sql: Sql, kind: str) -> None:
    with Front(lambda: [api.port]) as front, Client(front.url, token=api.token) as client:
        front.lose_answers(2)
        assert len(client.submit_many(NewJob(kind=kind) for _ in range(10))) == 10
        assert front.lost == 2
    assert jobs(sql, kind) == 10


@pytest.mark.parametrize("step", ["submit_many", "accept_many"])
def test_an_answer_of_the_database_lost_after_the_commit_leaves_one_job(
    api: Served, sql: Sql, kind: str, step: str
) -> None:
    proxy = Proxy(api.dsn)
    try:
        with serving(proxy.dsn, token=api.token) as served, Client(served.url, token=api.token) as client:
            client.submit("WARM")
            proxy.lose_answers(2, to=step)
            job = client.submit(kind)
            assert proxy.lost >= 1
    finally:
        proxy.close()
    assert jobs(sql, kind) == 1
    assert str(one(sql, "select id from jobs where kind = %s", kind)) == job.job_id
    assert one(sql, "select state from jobs where kind = %s", kind) == "queued"


def test_a_database_that_comes_back_in_time_is_not_noticed(api: Served, sql: Sql, kind: str) -> None:
    proxy = Proxy(api.dsn)
    try:
        with serving(proxy.dsn, token=api.token) as served:
            with Client(served.url, token=api.token) as client:
                client.submit("WARM")
                proxy.go_away()
                threading.Timer(2.0, proxy.come_back).start()
                client.submit(kind)
            with Client(served.url, token=api.token, timeout=2) as client:
                proxy.go_away()
                with pytest.raises((DatabaseUnavailable, ApiUnavailable)):
                    client.submit("NEVER")
                proxy.come_back()
    finally:
        proxy.close()
    assert jobs(sql, kind) == 1


@pytest.mark.parametrize("place", ["before-submit", "after-submit", "after-accept", "before-answer", "half-answer"])
def test_a_server_killed_at_any_step_leaves_one_job(api: Served, sql: Sql, kind: str, place: str) -> None:
    with (
        serving(api.dsn, token=api.token, LEASEHOLD_FAILPOINT=place) as first,
        Front(lambda: [first.port if first.process.poll() is None else api.port]) as front,
        Client(front.url, token=api.token) as client,
    ):
        job = client.submit(kind)
        assert first.process.wait(60) == -9
        assert client.get(job.job_id).status == "PENDING"
    assert jobs(sql, kind) == 1
    assert one(sql, "select state from jobs where kind = %s", kind) == "queued"


def test_servers_killed_under_load_lose_and_double_nothing(api: Served, sql: Sql, kind: str) -> None:
    keys = [f"{kind}-{n}" for n in range(200)]
    with ExitStack() as stack:
        servers = [*(stack.enter_context(serving(api.dsn, token=api.token)) for _ in range(2)), api]
        front = stack.enter_context(Front(lambda: [one.port for one in servers if one.process.poll() is None]))
        client = stack.enter_context(Client(front.url, token=api.token, timeout=60))
        pool = stack.enter_context(ThreadPoolExecutor(16))
        moments = {150: threading.Event(), 300: threading.Event()}

        def submit(number: int) -> tuple[str, str]:
            if number in moments:
                moments[number].set()
            key = keys[number % len(keys)]
            return key, client.submit(kind, {"key": key}, idempotency_key=key).job_id

        def kill() -> None:
            for server, moment in zip(servers, moments.values(), strict=False):
                moment.wait(60)
                server.process.kill()

        killing = pool.submit(kill)
        answers: list[Any] = list(pool.map(submit, range(600)))
        killing.result()
    assert len(set(answers)) == len(keys), "one id per key, whichever server answered"
    assert jobs(sql, kind) == len(keys)
