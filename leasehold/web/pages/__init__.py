"""What people see: one file per screen."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from leasehold.web.pages import data, errors, job, jobs, overview, queues, schedules, signing, system, workers
from leasehold.web.visit import Visit

VIEWS: dict[str, Callable[[Visit], Awaitable[Response]]] = {
    "/": overview.show,
    "/queues": queues.show,
    "/jobs": jobs.show,
    "/jobs/{job_id}": job.show,
    "/errors": errors.show,
    "/workers": workers.show,
    "/schedules": schedules.show,
    "/system": system.show,
    "/data/statistics": data.statistics,
    "/data/scoreboard": data.scoreboard,
}
"""By path below the dashboard's own."""

__all__ = ["VIEWS", "signing"]
