"""What a server process says of itself: whether it is alive and ready, its metrics, what its problems mean."""

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from leasehold.db.migrations.compatibility import schema_problem
from leasehold.db.migrations.files import packaged
from leasehold.errors import LeaseholdError
from leasehold.http.front import BOUNDS, Answer, Meter, operation
from leasehold.http.problems import KNOWN, Problem
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import View, parameter
from leasehold.operate.caller import Caller
from leasehold.operate.reasons import MEANINGS

_NAME: Final = parameter("path", "name", "The end of its type.", {"type": "string"}, "idempotency-conflict")
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_WELL: Final = {200: {"description": "It is."}}


class Health(View):
    """All is well."""

    status: str = "ok"


_OK: Final = Answer(200, Health().model_dump_json().encode())


@operation("GET /healthz", "isAlive", "Is this process alive?", tag="process", result=Health, answers=_WELL)
async def healthz(_: Request) -> Answer:
    """Return 200 while it is, whatever the state of the database."""
    return _OK


@operation(
    "GET /readyz", "isReady", "Can this process serve requests?", tag="process", result=Health, answers=_WELL,
    problems=("database-unavailable", "schema-mismatch"),
)  # fmt: skip
async def readyz(request: Request) -> Answer:
    """Return 200 when the database answers and has a schema that this release knows, else 503."""
    parts: Runtime = await request.app.state.leasehold.runtime()
    # Open to all, so it must not be a way to keep the database busy.
    check = partial(schema_problem, parts.database.arun, latest=packaged().latest, schema=parts.app.settings.schema)
    _, problem = await parts.readiness.get("ready", 0.5, check)
    if problem is not None:
        raise problem
    return _OK


@operation(
    "GET /problems/{name}", "explainProblem", "What a type of problem means", tag="process", parameters=[_NAME],
    answers={200: {"description": "In words.", "content": _TEXT}}, problems=["not-found"],
)  # fmt: skip
async def explain(request: Request) -> PlainTextResponse:
    """Return the meaning: the types of problem details are relative references to here."""
    known = KNOWN.get(request.path_params["name"])
    if known is None:
        raise Problem("not-found", "no such problem")
    return PlainTextResponse(f"{known.title} ({known.status})\n\n{known.meaning}\n")


# -- metrics


@operation(
    "GET /metrics", "getMetrics", "Metrics for Prometheus", ("read", "operate"), tag="process",
    answers={200: {"description": "The metrics.", "content": _TEXT}},
)  # fmt: skip
async def metrics(request: Request, parts: Runtime, caller: Caller) -> PlainTextResponse:
    """Return those of this process; with several behind one address, scrape each at its own. A token for some queues
    or kinds sees how many of their jobs wait and run, and nothing of the process.
    """
    store = parts.database.store
    found: Any = None
    with contextlib.suppress(LeaseholdError):  # without the database, the rest is worth seeing all the more
        found = await parts.database.arun(store.queues(**caller.narrow()) if caller.restricted else store.counts())
    meter = request.app.state.leasehold.meter
    made = list(_of_queues(found or []) if caller.restricted else _of_process(meter, parts, found or {}))
    collector: Any = SimpleNamespace(collect=lambda: made)
    return PlainTextResponse(generate_latest(collector), media_type="text/plain; version=0.0.4; charset=utf-8")


def _of_process(meter: Meter, parts: Runtime, counts: dict[str, tuple[int, bool]]) -> Iterator[Metric]:
    labels = ("method", "route", "status")
    requests = CounterMetricFamily("leasehold_http_requests", "Requests answered.", labels=labels)
    for (method, route, status), number in meter.requests.items():
        requests.add_metric((method, route, str(status)), number)
    yield requests
    times = HistogramMetricFamily("leasehold_http_request_seconds", "Time to answer.", labels=("route",))
    for route, numbers in meter.times.items():
        buckets = list(zip((*map(str, BOUNDS), "+Inf"), accumulate(map(float, numbers)), strict=True))
        times.add_metric((route,), buckets, meter.seconds[route])
    yield times
    submitter, watcher = parts.submitter, parts.watcher
    yield CounterMetricFamily("leasehold_http_submissions", "Jobs submitted.", submitter.submissions)
    yield CounterMetricFamily("leasehold_http_submit_statements", "Statements for them.", submitter.statements)
    yield GaugeMetricFamily("leasehold_http_submissions_waiting", "Submissions that wait.", submitter.waiting)
    yield GaugeMetricFamily("leasehold_http_watchers", "Requests that wait for jobs.", watcher.waiting)
    jobs = GaugeMetricFamily("leasehold_jobs", "Jobs by state, counted up to 10,000.", labels=("state",))
    for state in MEANINGS:
        if state in counts:
            jobs.add_metric((state,), counts[state][0])
    yield jobs
    recent, _ = counts.get("success in 10 s", (0, False))
    yield GaugeMetricFamily("leasehold_jobs_succeeded_10s", "Jobs that succeeded in the last ten seconds.", recent)


def _of_queues(queues: list[Any]) -> Iterator[Metric]:
    for name, about in {"ready": "Jobs that can run now.", "running": "Jobs that run."}.items():
        family = GaugeMetricFamily(f"leasehold_queue_{name}", about, labels=("queue",))
        for queue in queues:
            family.add_metric((queue.queue,), getattr(queue, name))
        yield family


OPERATIONS: Final = (healthz, readyz, explain, metrics)
