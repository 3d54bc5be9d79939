"""What goes over the wire under /ops."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from leasehold.db.store import AttemptRow, JobRow
from leasehold.http.schemas import Asked, JobStatusName, Key, Moment, Name, Tag, View, When

State = Literal["created", "queued", "running", "success", "retry", "dead"]
Scope = Literal["submit", "status", "read", "operate"]


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains the character NUL")
    return text


def _no_control(text: str) -> str:
    if any(character < " " for character in text):
        raise ValueError("contains a control character")
    return text


def _integral(value: Any) -> Any:
    # To JSON Schema 5.0 is an integer.
    return int(value) if isinstance(value, float) and value.is_integer() else value


_NO_NUL = {"pattern": "^[^\\x00]*$"}

Words = Annotated[str, Field(max_length=1000, json_schema_extra=_NO_NUL), AfterValidator(_no_nul)]
"""What a person has to say about something."""


Namespace = Annotated[Name, Field(json_schema_extra={"pattern": "^[^\\x00-\\x1f]+$"}), AfterValidator(_no_control)]
"""Whose jobs are whose."""

ErrorClass = Annotated[str, Field(max_length=500, json_schema_extra=_NO_NUL), AfterValidator(_no_nul)]


class JobFilter(View):
    """Which jobs: all fields that are given must hold."""

    kind: Name | None = Field(None, description="Jobs of this type.")
    queue: Name | None = Field(None, description="Jobs of this queue.")
    tag: Tag | None = Field(None, description="Jobs with this tag.")
    exclusive_key: Key | None = Field(None, description="Jobs with this exclusive key.")
    error_class: ErrorClass | None = Field(
        None, description="Jobs whose latest recorded attempt ended with this class of error."
    )
    created_after: When | None = Field(None, description="Created at this moment or later.")
    created_before: When | None = Field(None, description="Created before this moment.")

    def fields(self) -> dict[str, Any]:
        """As the database has it."""
        return self.model_dump(
            mode="json", by_alias=False, exclude_none=True, include=set(JobFilter.model_fields) | {"state"}
        )


class OpsJob(View):
    """A job as operators see it: nothing of what it carries."""

    job_id: UUID
    job_type: str
    queue: str
    state: State
    status: JobStatusName
    priority: int
    attempt: int = Field(description="How often it was claimed.")
    retry_count: int = Field(description="How often it failed since it was last retried by a person.")
    max_attempts: int
    exclusive_key: str | None
    tags: list[str] | None
    parked: bool = Field(description="It waits for a job of its exclusive key, or for a limit on keys.")
    accepted: bool = Field(description="False: submitted, and the answer was never given.")
    reason: str | None = Field(description="Why it is dead: cancelled, exhausted, fatal, lease_expired, set_aside.")
    error_class: str | None = Field(description="Of its latest recorded attempt.")
    progress: float | None
    progress_note: str | None
    lease_owner: str | None = Field(description="The worker that runs it.")
    lease_expires_at: Moment | None
    run_at: Moment
    created_at: Moment
    updated_at: Moment
    claimed_at: Moment | None
    finished_at: Moment | None


class JobList(View):
    """A page of jobs. It may be short, even empty, and yet not be the last: `cursor` says."""

    jobs: list[OpsJob]
    cursor: str | None = Field(description="For the next page, with the same filter; null: that was all.")


class AttemptView(View):
    """An attempt that did not end in success."""

    attempt: int
    worker: str
    outcome: Literal["failed", "lease_expired", "snoozed", "released", "cancelled"]
    claimed_at: Moment
    ended_at: Moment
    error_class: str | None
    error_message: str | None = Field(None, description="Only with the scope operate.")
    error_traceback: str | None = Field(None, description="Only with the scope operate.")


class JobDetailView(OpsJob):
    """Everything about a job; what it carries only with the scope operate."""

    attempts: list[AttemptView] = Field(description="The latest hundred that did not end in success, oldest first.")
    idempotency_key: str | None = Field(None, description="Only with the scope operate.")
    reason_detail: str | None = Field(None, description="Only with the scope operate.")
    payload: Any = Field(None, description="Only with the scope operate.")
    result: Any = Field(None, description="Only with the scope operate.")


class ObstacleView(View):
    """One reason why a job is not running."""

    reason: str = Field(
        description="not_accepted, paused, run_at, backoff, exclusive_key, limit, no_worker_for_kind, …"
    )
    detail: str
    blocker: UUID | None = Field(description="The job that stands in the way.")
    until: Moment | None = Field(description="When it will be over, where that is known.")


class Explanation(View):
    """Why a job is not running: what to look at first comes first. Nothing: it may be taken any moment."""

    job_id: UUID
    reasons: list[ObstacleView]


class LogLine(View):
    """What a task said."""

    at: str
    level: str
    text: str


class AttemptLog(View):
    """What one attempt said."""

    attempt: int
    lines: list[LogLine]


class JobLogs(View):
    """What a job's attempts said, oldest first."""

    job_id: UUID
    attempts: list[AttemptLog]


class RetryFilter(JobFilter):
    """Which dead jobs."""

    state: Literal["dead"] = Field("dead", description="Only dead jobs can be retried.")


class CancelFilter(JobFilter):
    """Which jobs that have not ended."""

    state: Literal["created", "queued", "running", "retry"] | None = Field(None, description="All four when left out.")


class _BulkRequest(Asked):
    model_config = ConfigDict(strict=True)

    dry_run: bool = Field(description="True: say how many there are, and change nothing.")
    limit: Annotated[int, BeforeValidator(_integral)] = Field(500, ge=1, le=1000, description="Change no more.")


class RetryRequest(_BulkRequest):
    """Give many dead jobs another chance."""

    filter: RetryFilter


class CancelRequest(_BulkRequest):
    """Stop many jobs for good."""

    filter: CancelFilter
    reason: Words | None = Field(None, description="Kept with each job.")


class Changes(View):
    """What became of a change of many jobs."""

    matched: int = Field(description="How many fit, counted no further than `limit`.")
    changed: int = Field(description="How many were changed; 0 in a dry run.")
    capped: bool = Field(description="There may be more that fit: send it again.")


class QueueView(View):
    """A queue. A count that is capped says: so many, and more."""

    queue: str
    ready: int
    ready_capped: bool
    running: int
    running_capped: bool
    oldest_ready_at: Moment | None = Field(
        description="Since when the longest waiting of its next jobs has been ready."
    )
    paused_at: Moment | None
    paused_by: str | None
    paused_reason: str | None
    max_running: int | None = Field(description="Its limit, if it has one.")


class QueueList(View):
    """The queues that have to do with anything now."""

    queues: list[QueueView]
    cursor: str | None = Field(description="For the next page; null: that was all.")


class PauseRequest(Asked):
    """Why a queue is paused."""

    reason: Words | None = None


class Paused(View):
    """Whether a queue is paused."""

    queue: str
    paused: bool


class LimitRequest(Asked):
    """How many jobs may run at the same time."""

    model_config = ConfigDict(strict=True)

    max_running: Annotated[int, BeforeValidator(_integral)] = Field(ge=0, le=2_147_483_647)


class LimitView(View):
    """A limit."""

    scope: Literal["global", "queue", "kind", "key"]
    name: str = Field(description="The queue, the kind, the beginning of the exclusive keys; empty for the global one.")
    max_running: int


class LimitUse(LimitView):
    """A limit, and what runs under it."""

    running: int
    updated_at: Moment


class LimitList(View):
    """The limits."""

    limits: list[LimitUse]
    cursor: str | None = Field(description="For the next page; null: that was all.")


class WorkerView(View):
    """A worker."""

    id: str
    host: str | None
    pid: int | None
    queues: list[str] | None = Field(description="null: all.")
    kinds: list[str] | None = Field(description="null: all.")
    slots: int | None
    running: int
    live: bool = Field(description="Seen within the last minute and not stopped.")
    started_at: Moment
    seen_at: Moment
    stopped_at: Moment | None


class WorkerList(View):
    """The workers that were seen last."""

    workers: list[WorkerView]
    cursor: str | None = Field(description="For the next page; null: that was all.")


class ErrorGroupView(View):
    """Recent failures of one job type with one class of error."""

    job_type: str
    error_class: str | None
    attempts: int
    jobs: int
    first_seen: Moment
    last_seen: Moment
    last_job: UUID
    last_message: str | None = Field(None, description="Only with the scope operate.")


class ErrorList(View):
    """Recent failures in groups, the latest first."""

    errors: list[ErrorGroupView]
    cursor: str | None = Field(description="For the next page; null: that was all.")


class Figure(View):
    """A count; capped: so many, and more."""

    value: int
    capped: bool


class Stats(View):
    """A few figures."""

    figures: dict[str, Figure]


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


class TokenInfo(View):
    """A token; its secret is not known."""

    id: UUID
    name: str
    scopes: list[Scope]
    queues: list[str] | None
    kinds: list[str] | None
    rate: float | None
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    live: bool
    namespace: str | None = Field(description="Whose jobs are its own; null: from before there were namespaces.")
    created_by: UUID | None = Field(description="The token that made it; null: a person with a database login.")


class TokenList(View):
    """A page of the tokens, revoked and expired ones included."""

    tokens: list[TokenInfo]
    cursor: str | None = Field(description="For the next page; null: that was all.")


class TokenMade(View):
    """A new token. It is shown this once."""

    id: UUID
    token: str
    namespace: str | None
    rate: float | None
    expires_at: Moment | None


def job_view(job: JobRow) -> dict[str, Any]:
    """The fields of an OpsJob."""
    fields = {name: getattr(job, name) for name in OpsJob.model_fields if name not in ("job_id", "job_type")}
    return {"job_id": job.id, "job_type": job.kind, **fields}


def attempt_view(attempt: AttemptRow, *, whole: bool) -> AttemptView:
    """An attempt, its error's text only if `whole`."""
    secret = () if whole else ("error_message", "error_traceback")
    return AttemptView(**{name: getattr(attempt, name) for name in AttemptView.model_fields if name not in secret})
