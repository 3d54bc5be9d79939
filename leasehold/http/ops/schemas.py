"""What is sent and received under /ops."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field

from leasehold._drain_outlook import Outlook
from leasehold._histogram import BOUNDS, percentile
from leasehold.db import store
from leasehold.http.ops.serving import CURSOR, WITHHELD, shown, view
from leasehold.http.schemas import WHOLE, Asked, ErrorClass, JobFilter, JobStatusName, Moment, Name, View, When, Words
from leasehold.operate.reasons import REASONS
from leasehold.operate.statistics import Statistics

State = Literal["created", "queued", "running", "success", "retry", "dead"]
Scope = Literal["submit", "status", "read", "operate"]
_WITHHELD: Final = Field(None, description=WITHHELD)


def _no_control(text: str) -> str:
    if any(character < " " for character in text):
        raise ValueError("contains a control character")
    return text


Namespace = Annotated[Name, Field(json_schema_extra={"pattern": "^[^\\x00-\\x1f]+$"}), AfterValidator(_no_control)]
"""Whose jobs are whose."""


class RetryFilter(JobFilter):
    """Which dead jobs."""

    state: Literal["dead"] = Field("dead", description="Only dead jobs can be retried.")


class CancelFilter(JobFilter):
    """Which jobs that have not ended."""

    state: Literal["created", "queued", "running", "retry"] | None = Field(None, description="All four when left out.")


class _BulkRequest(Asked):
    model_config = ConfigDict(strict=True)

    dry_run: bool = Field(description="True: say how many there are, and change nothing.")
    limit: Annotated[int, WHOLE] = Field(500, ge=1, le=1000, description="Change no more.")
    cursor: Annotated[str, Field(max_length=10_000)] | None = Field(
        None, description="Of the answer before, to the same filter: go on there."
    )


class RetryRequest(_BulkRequest):
    """Retry many dead jobs."""

    filter: RetryFilter


class CancelRequest(_BulkRequest):
    """Cancel many jobs."""

    filter: CancelFilter
    reason: Words | None = Field(None, description="Kept with each job.")


class PauseRequest(Asked):
    """Why a queue is paused."""

    reason: Words | None = None


class LimitRequest(Asked):
    """How many jobs may run at the same time."""

    model_config = ConfigDict(strict=True)

    max_running: Annotated[int, WHOLE] = Field(ge=0, le=2_147_483_647)


class CanaryRequest(Asked):
    """Which group."""

    model_config = ConfigDict(strict=True, title="CanaryRequest")

    job_type: Name = Field(description="Of the dead jobs.")
    error_class: ErrorClass | None = Field(
        None, description="Of their latest recorded attempt, as in /ops/errors; null: those without one."
    )


class TokenRequest(Asked):
    """A token to be made."""

    model_config = ConfigDict(strict=True)

    name: Namespace = Field(description="Whose it is, or what it is for.")
    scopes: list[Scope] = Field(min_length=1, max_length=10)
    queues: list[Name] | None = Field(None, min_length=1, max_length=100, description="Only these; null: all.")
    kinds: list[Name] | None = Field(None, min_length=1, max_length=100, description="Only these; null: all.")
    rate: float | None = Field(None, ge=0.001, le=1_000_000, description="At most so many requests a second.")
    expires_at: When | None = Field(None, description="When it ends; null: when the token which makes it does.")
    namespace: Namespace | None = Field(None, description="Whose jobs are its own; null: its name.")


# -- what is sent

OpsJob = shown(
    "OpsJob", "A job as operators see it.", store.JobRow, renamed={"id": "job_id"}, metadata=WITHHELD, state=State,
    status=JobStatusName,
)  # fmt: skip
JobList = shown(
    "JobList", "A page of jobs. It may be short, even empty, and yet not be the last: `cursor` says.",
    jobs=[OpsJob], cursor=(str | None, "For the next page, with the same filter; null: that was all."),
)  # fmt: skip
AttemptView = shown(
    "AttemptView", "An attempt that did not end in success.", store.AttemptRow,
    outcome=Literal["failed", "lease_expired", "snoozed", "released", "cancelled"],
    error_message=WITHHELD, error_traceback=WITHHELD,
)  # fmt: skip
JobDetailView = shown(
    "JobDetailView", "Everything about a job; what it carries only with the scope operate.", base=OpsJob,
    attempts=([AttemptView], "The latest hundred that did not end in success, oldest first."),
    idempotency_key=(str | None, _WITHHELD), reason_detail=(str | None, _WITHHELD), payload=(Any, _WITHHELD),
    result=(Any, _WITHHELD),
)  # fmt: skip
ObstacleView = shown(
    "ObstacleView", "One reason why a job is not running.", store.Obstacle,
    reason=(str, f"One of {', '.join(REASONS)}."),
)  # fmt: skip
Explanation = shown(
    "Explanation", "Why a job is not running: the most important reason first. None: a worker may claim it any moment.",
    job_id=UUID, reasons=[ObstacleView],
)  # fmt: skip
LogLine = shown("LogLine", "A line that a task logged.", at=str, level=str, text=str)
AttemptLog = shown("AttemptLog", "The lines that one attempt logged.", attempt=int, lines=[LogLine])
JobLogs = shown("JobLogs", "The lines that a job's attempts logged, oldest first.", job_id=UUID, attempts=[AttemptLog])
Changes = shown("Changes", "What a change of many jobs did.", store.Changed)
QueueView = shown(
    "QueueView", "A queue. A count that is capped says: so many, and more.", store.QueueRow,
    renamed={"reason": "paused_reason"},
)  # fmt: skip
Paused = shown("Paused", "Whether a queue is paused.", queue=str, paused=bool)
LimitView = shown(
    "LimitView", "A limit.", scope=Literal["global", "queue", "kind", "key"],
    name=(str, "The queue, the kind, the beginning of the exclusive keys; empty for the global one."), max_running=int,
)  # fmt: skip
LimitUse = shown("LimitUse", "A limit, and what runs under it.", base=LimitView, running=int, updated_at=Moment)
WorkerView = shown("WorkerView", "A worker.", store.WorkerRow)
ErrorGroupView = shown(
    "ErrorGroupView", "Recent failures of one job type with one class of error.", store.ErrorGroup,
    last_message=WITHHELD,
)  # fmt: skip
Figure = shown("Figure", "A count; capped: so many, and more.", value=int, capped=bool)
Stats = shown("Stats", "A few figures.", figures=dict[str, Figure])  # type: ignore[valid-type]
CanaryView = shown(
    "CanaryView", "A canary retry: ten jobs, then a tenth of them, then all; it stops when too many fail again.",
    store.Canary, state=Literal["running", "stopped", "done"],
)  # fmt: skip
Percentiles = shown(
    "Percentiles", "Seconds that half, 95 % and 99 % stayed under; null: there were none.",
    p50=float | None, p95=float | None, p99=float | None,
)  # fmt: skip
BucketView = shown(
    "BucketView", "What workers tallied in one step of time.", store.Bucket,
    wait=(Percentiles, "From when the job was to run until it was claimed."), run=Percentiles,
    waits=(list[int], "How many waited up to each of `bounds`; the last, longer."),
    runs=(list[int], "How many ran up to each of `bounds`; the last, longer."),
)  # fmt: skip
FlowView = shown(
    "FlowView", "How many jobs were in which state, each counted up to 100,000.", store.FlowRow,
    finished=(int, "Since the beginning of the span, as tallied."),
)  # fmt: skip
StatisticsView = shown(
    "StatisticsView", "A span of time in equal steps, without gaps.",
    step=(int, "Seconds from one bucket to the next."), since=Moment,
    until=(Moment, "The end of the last bucket that is complete."),
    bounds=(list[float], "Where the classes of `waits` and `runs` end, in seconds."), buckets=[BucketView],
    flow=(list[FlowView] | None, "Null for some queues or job types only."),  # type: ignore[valid-type]
)  # fmt: skip
RateView = shown(
    "RateView", "A queue, what comes and goes, and what becomes of it.", store.Rate, outlook=Outlook,
    words=(str, Field(description="The same for people.", examples=["clears in ~35 min"])),
    clears_in=(float | None, "Seconds; with a capped count, at least so many."),
    grows_by=(float | None, "Jobs a second."),
)  # fmt: skip
TableView = shown("TableView", "One of our tables, as the server's statistics have it.", store.TableRow)
HolderView = shown(
    "HolderView", "What keeps dead rows from being removed.", store.HorizonHolder,
    what=Literal["session", "standby", "slot", "prepared"],
    query=(str | None, Field(None, description=f"What it ran last. {WITHHELD}")), words=(str, "Which one, in words."),
)  # fmt: skip
SystemView = shown(
    "SystemView", "The server and our tables on it.", store.System, leasehold=(str, "The version of this API server."),
    tables=[TableView], horizon=([HolderView], "What holds the xmin horizon back, the oldest first."),
)  # fmt: skip
TokenInfo = shown("TokenInfo", "A token; its secret is not known.", store.TokenView, "session", scopes=list[Scope])
TokenList = shown(
    "TokenList", "A page of the tokens, revoked and expired ones included.", cursor=CURSOR, tokens=[TokenInfo]
)
TokenMade = shown(
    "TokenMade", "A new token. It is shown this once.", id=UUID, token=str, namespace=str | None, rate=float | None,
    expires_at=Moment | None,
)  # fmt: skip


def statistics_view(found: Statistics) -> View:
    """Return the statistics as the API shows them."""
    flow = None if found.flow is None else [view(FlowView, row, finished=done) for row, done in found.flow]
    buckets = [view(BucketView, one, wait=_percentiles(one.waits), run=_percentiles(one.runs)) for one in found.buckets]
    return view(StatisticsView, found, bounds=list(BOUNDS), buckets=buckets, flow=flow)


def _percentiles(counts: Sequence[int]) -> View:
    return view(Percentiles, {name: percentile(counts, int(name[1:]) / 100) for name in Percentiles.model_fields})


def rate_view(row: store.Rate) -> View:
    """Return the row with what becomes of it."""
    judged = {name: getattr(row.drain, name) for name in ("outlook", "words", "clears_in", "grows_by")}
    return view(RateView, row, **judged)
