"""What people do: one file per noun. Each checks again what the visitor may touch, and says what came of it."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from leasehold.web.actions import bulk, canaries, clone, demo, jobs, limits, queues, schedules
from leasehold.web.visit import Visit

ACTIONS: dict[str, tuple[type[BaseModel], Callable[[Visit, Any], Awaitable[Response]]]] = {
    "/jobs/retry": (jobs.Chosen, jobs.retry),
    "/jobs/cancel": (jobs.Chosen, jobs.cancel),
    "/jobs/run": (jobs.Chosen, jobs.run_now),
    "/jobs/clone": (clone.Clone, clone.clone),
    "/jobs/matching/retry": (bulk.Matching, bulk.retry),
    "/jobs/matching/cancel": (bulk.Matching, bulk.cancel),
    "/queues/pause": (queues.Pause, queues.pause),
    "/queues/resume": (queues.Resume, queues.resume),
    "/limits/set": (limits.SetLimit, limits.set_limit),
    "/limits/clear": (limits.ClearLimit, limits.clear_limit),
    "/schedules/run": (schedules.Named, schedules.run_now),
    "/schedules/enable": (schedules.Named, schedules.enable),
    "/schedules/disable": (schedules.Named, schedules.disable),
    "/canaries/start": (canaries.Start, canaries.start),
    "/canaries/stop": (canaries.Stop, canaries.stop),
    "/demo/kill": (demo.Nothing, demo.kill),
}
"""By path below the dashboard's own: what is sent, and what is done."""
