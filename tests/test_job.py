"""A handle: it shows what the database knows, and waits for the outcome of the job."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from leasehold import App, InvalidJob, Job, JobCancelled, JobFailed, JobUnknown, ResultTimeout, Task
from leasehold.db.store import ClaimedJob
from tests.timing import bound


@dataclass
class Point:
    x: int
    y: float


@pytest.fixture(scope="module")
def common(admin, migrated) -> Iterator[str]:
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)


@pytest.fixture
def app(common: str) -> Iterator[App]:
    with App(common) as app:
        yield app


@pytest.fixture
def task(app: App) -> Task[Any, Any]:
    @app.task(kind="MOVE", queue=uuid.uuid4().hex, max_attempts=1)
    def move(by: int = 0) -> Point | None: ...

    return move


class Hands:
    """A worker, by hand."""

    def __init__(self, app: App, queue: str) -> None:
        self._app = app
        self._queue = queue

    def claim(self) -> ClaimedJob:
        database = self._app.database
        [job] = database.run(database.store.claim("hands", [self._queue], ["MOVE"], 1, uuid.uuid4()))
        return job

    def complete(self, result: str | None) -> None:
        database, job = self._app.database, self.claim()
        assert database.run(database.store.complete("hands", [job], [result])) == 1

    def fail(self, message: str) -> None:
        database, job = self._app.database, self.claim()
        report = {"id": job.id, "attempt": job.attempt, "error": {"class": "E", "message": message}}
        database.run(database.store.fail_many("hands", json.dumps([report])))


@pytest.fixture
def hands(app: App, task: Task[Any, Any]) -> Hands:
    return Hands(app, task.options.queue)


def wait(job: Job[Any], timeout: float | None = None) -> Any:
    return job.result(timeout)


def await_(job: Job[Any], timeout: float | None = None) -> Any:
    return asyncio.run(job.aresult(timeout))


WAYS = pytest.mark.parametrize("result", [wait, await_], ids=["result", "aresult"])
Wait = Callable[..., Any]


def test_a_job_goes_from_pending_over_running_to_completed(task: Task[Any, Any], hands: Hands) -> None:
    job = task.enqueue()
    assert job.status == "PENDING"
    assert asyncio.run(job.astatus()) == "PENDING"
    fresh = job.refresh()
    assert (fresh.id, fresh.kind, fresh.queue, fresh.state) == (job.id, "MOVE", task.options.queue, "queued")
    assert (fresh.result, fresh.reason, fresh.finished_at) == (None, None, None)
    assert asyncio.run(job.arefresh()) == fresh
    hands.complete(None)
    assert job.status == "COMPLETED"
    assert job.refresh().finished_at is not None


def test_running_is_seen_while_it_runs(task: Task[Any, Any], hands: Hands) -> None:
    job = task.enqueue()
    hands.claim()
    assert job.status == "RUNNING"


@WAYS
def test_a_result_comes_back_as_the_type_that_the_task_declares(
    task: Task[Any, Any], hands: Hands, result: Wait
) -> None:
    job = task.enqueue()
    hands.complete('{"x": 1, "y": 2.5}')
    assert result(job) == Point(1, 2.5)
    assert result(job, timeout=0) == Point(1, 2.5)


@WAYS
def test_no_result_is_none(task: Task[Any, Any], hands: Hands, result: Wait) -> None:
    job = task.enqueue()
    hands.complete(None)
    assert result(job, 5) is None


@WAYS
def test_a_handle_made_of_an_id_knows_the_type_if_the_app_knows_the_task(
    app: App, common: str, task: Task[Any, Any], hands: Hands, result: Wait
) -> None:
    job = task.enqueue()
    hands.complete('{"x": 1, "y": 2.5}')
    handle = app.job(str(job.id))
    assert handle.kind is None
    assert result(handle) == Point(1, 2.5)
    assert handle.kind == "MOVE"
    with App(common) as stranger:
        assert result(stranger.job(job.id)) == {"x": 1, "y": 2.5}


@WAYS
def test_a_stored_result_of_another_type_raises(task: Task[Any, Any], hands: Hands, result: Wait) -> None:
    job = task.enqueue()
    hands.complete('{"x": "one"}')
    with pytest.raises(InvalidJob, match="MOVE: the stored result"):
        result(job)


@WAYS
def test_a_dead_job_raises_why(task: Task[Any, Any], hands: Hands, result: Wait) -> None:
    job = task.enqueue()
    hands.fail("disk full")
    with pytest.raises(JobFailed, match=rf"job {job.id} \(MOVE\) is dead, exhausted: disk full \(E\)") as caught:
        result(job, 5)
    assert type(caught.value) is JobFailed
    assert (caught.value.reason, caught.value.error_class) == ("exhausted", "E")
    assert job.status == "FAILED"
    assert job.refresh().error_class == "E"


def test_a_refreshed_status_has_the_result_as_its_task_returned_it(
    task: Task[Any, Any], hands: Hands, common: str
) -> None:
    job = task.enqueue()
    assert job.refresh().result is None
    hands.complete('{"x": 1, "y": 2.0}')
    assert job.refresh().result == Point(1, 2.0)
    assert asyncio.run(job.arefresh()).result == Point(1, 2.0)
    with App(common) as stranger:  # who has no such task sees what the JSON says
        assert stranger.job(job.id).refresh().result == {"x": 1, "y": 2.0}


@WAYS
def test_a_cancelled_job_raises_that_it_is(task: Task[Any, Any], result: Wait) -> None:
    job = task.enqueue()
    assert job.cancel("not wanted")
    with pytest.raises(JobCancelled, match="cancelled: not wanted") as caught:
        result(job)
    assert caught.value.reason == "cancelled"
    assert job.status == "CANCELLED"


@WAYS
@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_job_that_does_not_end_in_time_raises_and_goes_on(task: Task[Any, Any], result: Wait, timeout: float) -> None:
    job = task.enqueue()
    began = time.monotonic()
    with pytest.raises(ResultTimeout, match=rf"had not ended after {timeout} s \(it goes on\)") as caught:
        result(job, timeout)
    assert timeout <= time.monotonic() - began < bound(timeout + 2)
    assert isinstance(caught.value, TimeoutError)
    assert job.status == "PENDING"


@WAYS
def test_a_result_is_waited_for(task: Task[Any, Any], hands: Hands, result: Wait) -> None:
    job = task.enqueue()
    later = threading.Timer(0.3, hands.complete, ['{"x": 7, "y": 0}'])
    later.start()
    assert result(job, 20) == Point(7, 0.0)
    later.join()


async def test_waiting_can_be_cancelled(task: Task[Any, Any]) -> None:
    job = await task.aenqueue()
    waiting = asyncio.create_task(job.aresult())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await job.astatus() == "PENDING"


def test_cancel_is_true_as_often_as_it_is_so(task: Task[Any, Any], hands: Hands) -> None:
    job = task.enqueue()
    assert job.cancel() is True
    assert asyncio.run(job.acancel("again")) is True
    done = task.enqueue()
    hands.complete(None)
    assert done.cancel() is False
    assert done.status == "COMPLETED"


def test_retry_makes_a_dead_job_queued_again(task: Task[Any, Any], hands: Hands) -> None:
    job = task.enqueue()
    assert job.retry() is False
    hands.fail("once")
    assert job.retry() is True
    assert job.status == "PENDING"
    hands.fail("twice")
    assert asyncio.run(job.aretry()) is True
    hands.complete('{"x": 1, "y": 1}')
    assert job.result(5) == Point(1, 1.0)
    assert job.retry() is False


CALLS: list[Callable[[Job[Any]], Any]] = [
    lambda job: job.status,
    lambda job: job.refresh(),
    lambda job: job.result(5),
    lambda job: job.cancel(),
    lambda job: job.retry(),
    lambda job: asyncio.run(job.astatus()),
    lambda job: asyncio.run(job.arefresh()),
    lambda job: asyncio.run(job.aresult(5)),
    lambda job: asyncio.run(job.acancel()),
    lambda job: asyncio.run(job.aretry()),
]


def test_an_unknown_id_raises_whatever_is_asked(app: App) -> None:
    stranger = app.job(uuid.uuid4())
    for call in CALLS:
        with pytest.raises(JobUnknown, match=str(stranger.id)):
            call(stranger)


def test_handles_are_equal_by_their_id(app: App, task: Task[Any, Any]) -> None:
    job, other = task.enqueue(), task.enqueue()
    assert job == app.job(job.id) != other
    assert {job, app.job(job.id), other} == {job, other}
    assert job != job.id
    assert repr(job) == f"<Job MOVE {job.id}>"
