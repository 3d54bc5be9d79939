"""/ops/queues: what waits and runs in each; pause and resume."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from leasehold.http.body import body_of, read_model
from leasehold.http.ops.bulk import BODY_PROBLEMS
from leasehold.http.ops.callers import Looker, Operator, check_whole_queue
from leasehold.http.ops.pages import Page, page_of
from leasehold.http.ops.schemas import Paused, PauseRequest, QueueList, QueueView
from leasehold.http.problems import responses
from leasehold.http.runtime import runtime
from leasehold.http.schemas import Name

router = APIRouter(tags=["ops"])

QueueName = Annotated[Name, Path(description="The queue's name.", openapi_examples={"a queue": {"value": "mail"}})]


@router.get(
    "/queues",
    operation_id="listQueues",
    summary="The queues",
    response_model=QueueList,
    responses=responses("not-found", "invalid-request"),
)
async def list_queues(request: Request, caller: Looker, page: Page) -> QueueList:
    """Every queue that has something to run, runs something, is paused, is limited, or is served by a live worker."""
    parts = await runtime(request)
    queues = None if caller.queues is None else sorted(caller.queues)
    kinds = None if caller.kinds is None else sorted(caller.kinds)
    found = await parts.database.arun(parts.database.store.queues(queues=queues, kinds=kinds))
    fields = [name for name in QueueView.model_fields if name != "paused_reason"]
    shown, cursor = page_of(found, page, lambda row: row.queue)
    views = [QueueView(**{name: getattr(row, name) for name in fields}, paused_reason=row.reason) for row in shown]
    return QueueList(queues=views, cursor=cursor)


@router.post(
    "/queues/{queue:name}/pause",
    operation_id="pauseQueue",
    summary="Pause a queue",
    response_model=Paused,
    responses=responses("not-found", *BODY_PROBLEMS),
    openapi_extra=body_of(PauseRequest, {"reason": "the mail server is down"}),
)
async def pause_queue(request: Request, caller: Operator, queue: QueueName) -> Paused:
    """None of its jobs is claimed any more; what runs goes on; what is enqueued waits."""
    parts = await runtime(request)
    check_whole_queue(caller, queue)
    wanted = await read_model(request, PauseRequest)
    await parts.database.arun(parts.database.store.pause(queue, wanted.reason, caller.name))
    return Paused(queue=queue, paused=True)


@router.post(
    "/queues/{queue:name}/resume",
    operation_id="resumeQueue",
    summary="Resume a queue",
    response_model=Paused,
    responses=responses("not-found", "invalid-request"),
)
async def resume_queue(request: Request, caller: Operator, queue: QueueName) -> Paused:
    """Its jobs are claimed again. Resuming a queue that is not paused changes nothing."""
    parts = await runtime(request)
    check_whole_queue(caller, queue)
    await parts.database.arun(parts.database.store.resume(queue))
    return Paused(queue=queue, paused=False)
