"""What operators see and do, under /ops. One file per noun."""

from fastapi import APIRouter

from leasehold.http import paths  # noqa: F401 (the kind of parameter that the routes below use)
from leasehold.http.ops import bulk, canary, jobs, limits, looks, queues, schedules, statistics, system, tokens

router = APIRouter(prefix="/ops")
# bulk first: /ops/jobs/retry is no job's id
for part in (bulk, jobs, queues, limits, looks, schedules, tokens, statistics, system, canary):
    router.include_router(part.router)

__all__ = ["router"]
