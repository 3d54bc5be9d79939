"""/ops/statistics, /ops/rates: what pictures are made of, and what becomes of each queue."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from pydantic import Field

from leasehold.db.pool import Database
from leasehold.db.store import Bucket, FlowRow, Rate, Span
from leasehold.histogram import BOUNDS, percentile
from leasehold.http.auth import Caller
from leasehold.http.ops.callers import Looker
from leasehold.http.ops.pages import CURSOR, Page, page_of
from leasehold.http.problems import Problem, responses
from leasehold.http.runtime import runtime
from leasehold.http.schemas import Moment, Name, View
from leasehold.verdict import Outlook

router = APIRouter(tags=["ops"])

LONGEST: Final = 14 * 24 * 3600
_MOST: Final = 1000
_STEPS: Final = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400)
_LATE: Final = timedelta(seconds=15)
"""Workers hand their tallies in up to this late: until then a bucket is not complete."""


class Percentiles(View):
    """Seconds that half, 95 % and 99 % stayed under; null: there were none."""

    p50: float | None
    p95: float | None
    p99: float | None


class BucketView(View):
    """What workers tallied in one step of time."""

    at: Moment = Field(description="Its beginning.")
    success: int
    failed: int = Field(description="Attempts that failed, whatever became of the job.")
    dead: int = Field(description="Of these, the last ones of their jobs.")
    snoozed: int
    cancelled: int
    released: int
    wait: Percentiles = Field(description="From when the job was to run until it was claimed.")
    run: Percentiles
    waits: list[int] = Field(description="How many waited up to each of `bounds`; the last, longer.")
    runs: list[int] = Field(description="How many ran up to each of `bounds`; the last, longer.")


class FlowView(View):
    """How many jobs were in which state, each counted up to 100,000."""

    at: Moment
    created: int
    queued: int
    running: int
    retry: int
    dead: int
    finished: int = Field(description="Since the beginning of the span, as tallied.")
    arrived: int | None = Field(description="Jobs created in the step before; beyond 100,000 a minute an estimate.")


class StatisticsView(View):
    """A span of time in equal steps, without gaps."""

    step: int = Field(description="Seconds from one bucket to the next.")
    since: Moment
    until: Moment = Field(description="The end of the last bucket that is complete.")
    bounds: list[float] = Field(description="Where the classes of `waits` and `runs` end, in seconds.")
    buckets: list[BucketView]
    flow: list[FlowView] | None = Field(description="Null for some queues or job types only.")


class RateView(View):
    """A queue, what comes and goes, and what becomes of it."""

    queue: str
    ready: int
    ready_capped: bool = Field(description="So many, and more.")
    running: int
    oldest_seconds: float | None = Field(description="How long the longest waiting of those that come next has waited.")
    in_rate: float = Field(description="Jobs a second that arrive.")
    out_rate: float = Field(description="Jobs a second that succeed, die or are cancelled.")
    paused: bool
    served: bool = Field(description="Whether a live worker takes jobs from it.")
    max_running: int | None
    recent: list[int] | None = Field(description="Jobs finished in each of the last thirty whole minutes, as tallied.")
    outlook: Outlook
    words: str = Field(description="The same for people.", examples=["clears in ~35 min"])
    clears_in: float | None = Field(description="Seconds; with a capped count, at least so many.")
    grows_by: float | None = Field(description="Jobs a second.")


class RateList(View):
    """The queues."""

    rates: list[RateView]
    cursor: str | None = Field(None, description=CURSOR)


@router.get(
    "/statistics",
    operation_id="getStatistics",
    summary="What happened over time",
    response_model=StatisticsView,
    responses=responses("not-found", "invalid-request"),
)
async def statistics(
    request: Request,
    caller: Looker,
    seconds: Annotated[int, Query(ge=60, le=LONGEST, description="How far back.")] = 3600,
    step: Annotated[
        int | None,
        Query(ge=10, le=86400, multiple_of=10, description="Made longer where there would be more than 1,000."),
    ] = None,
    queue: Annotated[Name | None, Query(description="Only of this queue.")] = None,
    job_type: Annotated[Name | None, Query(alias="jobType", description="Only of this type.")] = None,
) -> StatisticsView:
    """Throughput, failures, waiting and running times as workers tally them, and samples of the flow.

    Steps of ten seconds reach back two hours, whole minutes two days, multiples of ten minutes two weeks.
    """
    parts = await runtime(request)
    return await statistics_for(parts.database, caller, seconds=seconds, step=step, queue=queue, kind=job_type)


@router.get(
    "/rates",
    operation_id="listRates",
    summary="What becomes of each queue",
    response_model=RateList,
    responses=responses("not-found", "invalid-request"),
)
async def rates(request: Request, caller: Looker, page: Page) -> RateList:
    """What waits, what comes and goes a second over the last minute, and what becomes of it if that goes on."""
    parts = await runtime(request)
    found = await rates_for(parts.database, caller)
    shown, cursor = page_of(found.rates, page, lambda rate: rate.queue)
    return RateList(rates=shown, cursor=cursor)


async def statistics_for(
    database: Database,
    caller: Caller,
    *,
    seconds: int = 3600,
    step: int | None = None,
    queue: str | None = None,
    kind: str | None = None,
) -> StatisticsView:
    """As much of it as the caller may see."""
    step = fitting_step(seconds, step)
    queues, kinds = _chosen(caller.queues, queue, "queue"), _chosen(caller.kinds, kind, "job type")
    span = await database.arun(database.store.statistics(seconds, step, queues=queues, kinds=kinds))
    whole = queues is None and kinds is None
    flow: list[FlowRow] | None = None
    if whole:
        flow = await _of_everything(database, seconds, step)
    return _view(span, flow)


async def _of_everything(database: Database, seconds: int, step: int) -> list[FlowRow]:
    return await database.arun(database.store.flow(seconds, step))


async def rates_for(database: Database, caller: Caller) -> RateList:
    """As much of it as the caller may see."""
    queues = None if caller.queues is None else sorted(caller.queues)
    kinds = None if caller.kinds is None else sorted(caller.kinds)
    found = await database.arun(database.store.rates(queues=queues, kinds=kinds))
    return RateList(rates=[_rate(row) for row in found], cursor=None)


def fitting_step(seconds: int, step: int | None) -> int:
    """The step that was asked for, or one that gives about a hundred; never more than a thousand."""
    if step is None:
        step = next((size for size in _STEPS if seconds <= size * 120), _STEPS[-1])
    least = -(-seconds // _MOST)
    return max(step, -(-least // 10) * 10)


def _chosen(allowed: frozenset[str] | None, asked: str | None, what: str) -> list[str] | None:
    if asked is None:
        return None if allowed is None else sorted(allowed)
    if allowed is not None and asked not in allowed:
        raise Problem("not-found", f"no such {what}")
    return [asked]


def _view(span: Span, flow: list[FlowRow] | None) -> StatisticsView:
    step = timedelta(seconds=span.step)
    # A bucket that is not over yet would look like a fall. Long steps are shown all the same: they fill for minutes.
    shown = [bucket for bucket in span.buckets if span.step >= 600 or bucket.at + step + _LATE <= span.now]
    since = span.buckets[0].at
    return StatisticsView(
        step=span.step,
        since=since,
        until=shown[-1].at + step if shown else since,
        bounds=list(BOUNDS),
        buckets=[_bucket(bucket) for bucket in shown],
        flow=None if flow is None else _flow(span.buckets, flow),
    )


def _bucket(bucket: Bucket) -> BucketView:
    return BucketView(
        at=bucket.at,
        success=bucket.success,
        failed=bucket.failed,
        dead=bucket.dead,
        snoozed=bucket.snoozed,
        cancelled=bucket.cancelled,
        released=bucket.released,
        wait=_percentiles(bucket.waits),
        run=_percentiles(bucket.runs),
        waits=list(bucket.waits),
        runs=list(bucket.runs),
    )


def _percentiles(counts: Sequence[int]) -> Percentiles:
    return Percentiles(p50=percentile(counts, 0.5), p95=percentile(counts, 0.95), p99=percentile(counts, 0.99))


def _flow(buckets: Sequence[Bucket], rows: list[FlowRow]) -> list[FlowView]:
    """The samples, each with what had finished by then."""
    ends = [bucket.at for bucket in buckets]
    finished = list(accumulate((bucket.success for bucket in buckets), initial=0))
    return [
        FlowView(
            at=row.at,
            created=row.created,
            queued=row.queued,
            running=row.running,
            retry=row.retry,
            dead=row.dead,
            finished=finished[_before(ends, row.at)],
            arrived=row.arrived,
        )
        for row in rows
    ]


def _before(ends: Sequence[datetime], moment: datetime) -> int:
    return sum(1 for at in ends if at < moment)


def _rate(row: Rate) -> RateView:
    fields = {name: getattr(row, name) for name in RateView.model_fields if hasattr(row, name)}
    judged = row.verdict
    return RateView(
        **fields,
        outlook=judged.outlook,
        words=judged.words,
        clears_in=judged.clears_in,
        grows_by=judged.grows_by,
    )
