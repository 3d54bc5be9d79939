"""Who may see and do what under /ops. A token that is for some queues or kinds knows of nothing else."""

import re
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Depends, Path

from leasehold.db.store import Seen
from leasehold.http.auth import Caller, Need
from leasehold.http.problems import Problem
from leasehold.http.runtime import Runtime

Looker = Annotated[Caller, Depends(Need("read", "operate"))]
"""Somebody who may look."""

Operator = Annotated[Caller, Depends(Need("operate"))]
"""Somebody who may see what jobs carry, and change what happens to them."""

JobId = Annotated[
    str,
    Path(
        alias="jobId",
        description="The job's id.",
        openapi_examples={"a job": {"value": "019a5f2e-7c11-7abc-8def-0123456789ab"}},
        json_schema_extra={"format": "uuid"},
    ),
]

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def uuid_of(text: str, what: str = "job") -> UUID:
    """The id, or a 404: a text that is no id is nobody's."""
    if not _UUID.fullmatch(text):
        raise Problem("not-found", f"no such {what}")
    return UUID(text)


def narrowed(caller: Caller) -> dict[str, Any]:
    """The fields of a filter that leave out what is not the caller's business."""
    found: dict[str, Any] = {}
    if caller.queues is not None:
        found["queues"] = sorted(caller.queues)
    if caller.kinds is not None:
        found["kinds"] = sorted(caller.kinds)
    return found


def check_unrestricted(caller: Caller, what: str) -> None:
    """Refuse a token that is for some queues or kinds only."""
    if caller.restricted:
        raise Problem("forbidden", f"{what} needs a token for all queues and kinds")


def check_whole_queue(caller: Caller, queue: str) -> None:
    """Refuse a token that does not know the queue, or not all kinds in it."""
    if caller.queues is not None and queue not in caller.queues:
        raise Problem("not-found", "no such queue")
    if caller.kinds is not None:
        raise Problem("forbidden", "a whole queue needs a token for all kinds")


async def visible(parts: Runtime, caller: Caller, job_id: str) -> Seen:
    """The job, if there is one and it is the caller's business. Its queue and kind never change."""
    for job in await parts.database.arun(parts.database.store.statuses([uuid_of(job_id)])):
        if caller.may(queue=job.queue, kind=job.kind):
            return job
    raise Problem("not-found", "no such job")
