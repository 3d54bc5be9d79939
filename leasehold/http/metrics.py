"""What this process has done, for Prometheus. Each server process counts for itself."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.errors import LeaseholdError
from leasehold.http.auth import Caller, Need
from leasehold.http.paths import route_path
from leasehold.http.problems import responses
from leasehold.http.runtime import Runtime, runtime

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Of the request times, in seconds."""

STATES: Final = ("created", "queued", "parked", "running", "retry", "success", "dead")
"""What jobs are counted by."""

router = APIRouter(tags=["process"])


class Meter:
    """Counts, in plain numbers: nothing is looked up or locked while a request waits."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, list[int]] = {}
        self.seconds: Counter[str] = Counter()

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request is over."""
        self.requests[method, route, status] += 1
        times = self.times.get(route)
        if times is None:
            times = self.times[route] = [0] * (len(BOUNDS) + 1)
        times[bisect_left(BOUNDS, seconds)] += 1
        self.seconds[route] += seconds  # type: ignore[assignment] # a Counter of floats


class Metering:
    """The ASGI middleware that counts."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            # The template of the path, never the path: that would be one series for each job.
            route = getattr(scope.get("route"), "path", "(none)")
            if route_path(scope).startswith("/ops/") and route != "(none)" and not route.startswith("/ops/"):
                route = f"/ops{route}"  # a router's own routes do not know below what they were included
            method = scope["method"] if route != "(none)" else "(any)"
            self._meter.note(method, route, status, time.perf_counter() - begin)


class _Collector(Collector):
    """Turns the counts into Prometheus' metrics when they are asked for."""

    def __init__(self, meter: Meter, parts: Runtime, jobs: dict[str, tuple[int, bool]]) -> None:
        self._meter = meter
        self._parts = parts
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "leasehold_http_requests", "Requests answered.", labels=("method", "route", "status")
        )
        for (method, route, status), number in self._meter.requests.items():
            requests.add_metric((method, route, str(status)), number)
        yield requests
        yield self._times()
        submitter, watcher = self._parts.submitter, self._parts.watcher
        yield CounterMetricFamily("leasehold_http_submissions", "Jobs submitted.", submitter.submissions)
        yield CounterMetricFamily("leasehold_http_submit_statements", "Statements for them.", submitter.statements)
        yield GaugeMetricFamily("leasehold_http_submissions_waiting", "Submissions that wait.", submitter.waiting)
        yield GaugeMetricFamily("leasehold_http_watchers", "Requests that wait for jobs.", watcher.waiting)
        jobs = GaugeMetricFamily("leasehold_jobs", "Jobs by state, counted up to 10,000.", labels=("state",))
        for state in STATES:
            if state in self._jobs:
                jobs.add_metric((state,), self._jobs[state][0])
        yield jobs
        recent, _ = self._jobs.get("success in 10 s", (0, False))
        yield GaugeMetricFamily("leasehold_jobs_succeeded_10s", "Jobs that succeeded in the last ten seconds.", recent)

    def _times(self) -> Metric:
        family = HistogramMetricFamily("leasehold_http_request_seconds", "Time to answer.", labels=("route",))
        for route, times in self._meter.times.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, number in zip((*BOUNDS, float("inf")), times, strict=True):
                total += number
                buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
            family.add_metric((route,), buckets, self._meter.seconds[route])
        return family


class _Narrow(Collector):
    """What a token for some queues or kinds may know."""

    def __init__(self, queues: list[Any]) -> None:
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("leasehold_queue_ready", "Jobs that can run now.", labels=("queue",))
        running = GaugeMetricFamily("leasehold_queue_running", "Jobs that run.", labels=("queue",))
        for queue in self._queues:
            ready.add_metric((queue.queue,), queue.ready)
            running.add_metric((queue.queue,), queue.running)
        yield ready
        yield running


async def _queues(parts: Runtime, caller: Caller) -> list[Any]:
    queues = None if caller.queues is None else sorted(caller.queues)
    kinds = None if caller.kinds is None else sorted(caller.kinds)
    try:
        return await parts.database.arun(parts.database.store.queues(queues=queues, kinds=kinds))
    except LeaseholdError:
        return []


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses=responses("internal"),
)
async def metrics(request: Request, caller: Annotated[Caller, Depends(Need("read"))]) -> PlainTextResponse:
    """Of this process; with several behind one address, scrape each at its own. A token for some queues or kinds sees
    how many of their jobs wait and run, and nothing of the process.
    """
    parts = await runtime(request)
    registry = CollectorRegistry()
    if caller.restricted:
        registry.register(_Narrow(await _queues(parts, caller)))
    else:
        try:
            jobs = await parts.database.arun(parts.database.store.counts())
        except LeaseholdError:
            jobs = {}  # the rest is worth seeing above all when the database is away
        registry.register(_Collector(request.app.state.leasehold.meter, parts, jobs))
    text: Any = generate_latest(registry)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
