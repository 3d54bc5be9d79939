"""What a client can do, written once for both faces. Each gives the steps of one operation."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from leasehold.client.problems import name_of
from leasehold.client.retries import Patience, call
from leasehold.client.steps import Request, Steps
from leasehold.client.views import MAX_JOBS, JobView, NewJob, Page, decode, encode, not_ours
from leasehold.errors import ApiError, InvalidJob, ResultTimeout

POLL = 20.0
"""Seconds that one long poll is held by the server."""
GRACE = 2.0
"""Seconds for the answer to the last poll to arrive."""

_JSON = (("Content-Type", "application/json"),)


def submit(
    patience: Patience,
    kind: str,
    payload: Mapping[str, Any] | None = None,
    *,
    idempotency_key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    exclusive_key: str | None = None,
    tags: Sequence[str] = (),
    strict: bool = False,
) -> Steps[JobView]:
    """Record a job. Without a key one is made, and kept over all repetitions: one call, one job."""
    job = NewJob(
        kind=kind,
        payload=payload or {},
        idempotency_key=str(uuid.uuid4()) if idempotency_key is None else idempotency_key,
        queue=queue,
        priority=priority,
        run_at=run_at,
        max_attempts=max_attempts,
        exclusive_key=exclusive_key,
        tags=tags,
        strict=strict,
    )
    body = encode(job.fields())
    request = Request(method="POST", path="/jobs", body=body, headers=_JSON, keys=(job.idempotency_key,))
    answer = yield from call(patience, request)
    return JobView.read(decode(answer.content))


def submit_many(patience: Patience, jobs: Iterable[NewJob]) -> Steps[list[JobView]]:
    """Record up to 1,000 jobs in one transaction, all or nothing; the answers are in the order of the jobs."""
    given = list(jobs)
    if not 1 <= len(given) <= MAX_JOBS:
        raise InvalidJob(f"{len(given)} jobs are not 1 to {MAX_JOBS:,}", hint="submit them in parts")
    body = encode({"jobs": [job.fields() for job in given]})
    keys = tuple(job.idempotency_key for job in given)
    answer = yield from call(patience, Request(method="POST", path="/jobs/batch", body=body, headers=_JSON, keys=keys))
    return [JobView.read(one) for one in _member(decode(answer.content), "jobs", list)]


def get(patience: Patience, job_id: str | uuid.UUID) -> Steps[JobView]:
    """What has become of a job."""
    answer = yield from call(patience, _of_job("GET", job_id))
    return JobView.read(decode(answer.content))


def wait(patience: Patience, job_id: str | uuid.UUID, timeout: float | None = None) -> Steps[JobView]:
    """Wait until the job has finished, whatever its status; ResultTimeout after `timeout` seconds."""
    deadline = None if timeout is None else patience.clock() + timeout
    while True:
        held, limit = _hold(patience, deadline)
        answer = yield from call(patience, _of_job("GET", job_id, held=held), timeout=limit)
        view = JobView.read(decode(answer.content))
        if view.finished:
            return view
        if deadline is not None and patience.clock() >= deadline:
            raise _late(job_id, timeout)


def result(patience: Patience, job_id: str | uuid.UUID, timeout: float | None = None) -> Steps[Any]:
    """Wait until the job has finished, and give what its task returned.

    Raises JobFailed or JobCancelled if it is dead, ResultTimeout after `timeout` seconds.
    """
    deadline = None if timeout is None else patience.clock() + timeout
    while True:
        held, limit = _hold(patience, deadline)
        try:
            answer = yield from call(patience, _of_job("GET", job_id, "/result", held=held), timeout=limit)
        except ApiError as error:
            if name_of(error) != "not-finished":
                raise
            if deadline is not None and patience.clock() >= deadline:
                raise _late(job_id, timeout) from None
        else:
            return _member(decode(answer.content), "result")


def cancel(patience: Patience, job_id: str | uuid.UUID) -> Steps[JobView]:
    """Stop the job for good; IllegalTransition if it has already ended otherwise."""
    answer = yield from call(patience, _of_job("DELETE", job_id))
    return JobView.read(decode(answer.content))


def list_jobs(
    patience: Patience,
    *,
    state: str | None = None,
    kind: str | None = None,
    queue: str | None = None,
    tag: str | None = None,
    exclusive_key: str | None = None,
    error_class: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Steps[Page]:
    """One page of the jobs that fit, newest first; needs the scope `read`."""
    given = {
        "state": state,
        "kind": kind,
        "queue": queue,
        "tag": tag,
        "exclusiveKey": exclusive_key,
        "errorClass": error_class,
        "createdAfter": None if created_after is None else created_after.isoformat(),
        "createdBefore": None if created_before is None else created_before.isoformat(),
        "cursor": cursor,
        "limit": None if limit is None else str(limit),
    }
    query = tuple((name, value) for name, value in given.items() if value is not None)
    data = decode((yield from call(patience, Request(method="GET", path="/ops/jobs", query=query))).content)
    return Page(jobs=tuple(_member(data, "jobs", list)), cursor=_member(data, "cursor"))


def explain(patience: Patience, job_id: str | uuid.UUID) -> Steps[dict[str, Any]]:
    """Why the job is not running."""
    answer = yield from call(patience, _of_job("GET", job_id, "/explain", below="/ops/jobs/"))
    return _object(decode(answer.content))


def retry(patience: Patience, job_id: str | uuid.UUID) -> Steps[dict[str, Any]]:
    """Give a dead job another chance; needs the scope `operate`. Not repeated when its answer is lost."""
    request = _of_job("POST", job_id, "/retry", below="/ops/jobs/", repeatable=False)
    return _object(decode((yield from call(patience, request)).content))


def pause(patience: Patience, queue: str, reason: str) -> Steps[dict[str, Any]]:
    """Let no job of the queue start until `resume`; needs the scope `operate`."""
    path = f"/ops/queues/{quote(queue, safe='')}/pause"
    request = Request(method="POST", path=path, body=encode({"reason": reason}), headers=_JSON)
    return _object(decode((yield from call(patience, request)).content))


def resume(patience: Patience, queue: str) -> Steps[dict[str, Any]]:
    """Let jobs of the queue start again; needs the scope `operate`."""
    request = Request(method="POST", path=f"/ops/queues/{quote(queue, safe='')}/resume")
    return _object(decode((yield from call(patience, request)).content))


def _of_job(
    method: str,
    job_id: str | uuid.UUID,
    what: str = "",
    *,
    below: str = "/jobs/",
    held: float | None = None,
    repeatable: bool = True,
) -> Request:
    return Request(
        method=method,
        path=f"{below}{quote(str(job_id), safe='')}{what}",
        query=() if held is None else (("wait", f"{held:.0f}"),),
        job_id=str(job_id),
        patience=held or 0.0,
        repeatable=repeatable,
    )


def _hold(patience: Patience, deadline: float | None) -> tuple[float, float]:
    """For how long the server may hold the next poll, and how long that call may take with its repetitions."""
    if deadline is None:
        return POLL, patience.timeout + POLL
    left = max(deadline - patience.clock(), 0.0)
    held = float(round(min(POLL, left)))  # the server counts whole seconds
    return held, min(patience.timeout + held, left + GRACE)


def _late(job_id: str | uuid.UUID, timeout: float | None) -> ResultTimeout:
    return ResultTimeout(f"job {job_id} had not finished after {timeout} s", hint="it goes on")


def _object(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise not_ours("something that is not an object")
    return data


def _member(data: object, name: str, kind: type = object) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get(name), kind):
        raise not_ours(f"an object without a proper {name}")
    return data.get(name)
