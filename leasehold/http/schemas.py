"""What goes over the wire. Field names are camelCase there; times are RFC 3339 in UTC."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from leasehold.db.store import Seen, Submitted
from leasehold.intent import DUE, LARGEST, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_TAGS

JobStatusName = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,6})?\d*(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_quoted: Final = json.encoder.encode_basestring_ascii


class View(BaseModel):
    """The base of everything that is sent and received as JSON: camelCase, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Asked(View):
    """The base of everything that is received: by the names in the description, and no others."""

    model_config = ConfigDict(populate_by_name=False)


def rfc3339(moment: datetime) -> str:
    """The moment in UTC, with a Z."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return utc.isoformat()[:-6] + "Z"


Moment = Annotated[datetime, PlainSerializer(rfc3339, return_type=str)]
"""A time in an answer."""


def _read_moment(value: Any) -> datetime:
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise ValueError("not a time such as 2030-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value.upper())).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("no such time in the calendar") from None


def _integral(value: Any) -> Any:
    # To JSON Schema 5.0 is an integer.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits(most: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text) * 4 > most and len(text.encode("utf-8", "surrogatepass")) > most:
            raise ValueError(f"longer than {most} bytes")
        if "\0" in text:
            raise ValueError("contains the character NUL")
        return text

    return AfterValidator(check)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), _fits(MAX_NAME_BYTES)]
"""Of a queue or a kind: 1 to 200 bytes."""

Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES), _fits(MAX_KEY_BYTES)]
"""1 to 500 bytes."""

Tag = Annotated[str, Field(max_length=MAX_KEY_BYTES), _fits(MAX_KEY_BYTES)]

When = Annotated[datetime, BeforeValidator(_read_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in a request: with a time zone."""


class JobRequest(Asked):
    """A job to be recorded."""

    model_config = ConfigDict(strict=True, title="JobRequest")

    job_type: Name = Field(description="Which task shall run.")
    payload: dict[str, Any] = Field(default_factory=dict, description="Its arguments: any JSON object.")
    idempotency_key: Key | None = Field(
        None, description="Names this request. At most one job per key, ever. May come as a header instead."
    )
    queue: Name | None = Field(
        None, description="Where it waits. Left out, like priority and maxAttempts: as the jobType's task declares it."
    )
    priority: Annotated[int, BeforeValidator(_integral), Field(ge=-LARGEST, le=LARGEST)] | None = Field(
        None, description="Higher is more urgent."
    )
    run_at: When | None = Field(None, description="Not before this moment.")
    max_attempts: Annotated[int, BeforeValidator(_integral), Field(ge=1, le=LARGEST)] | None = Field(
        None, description="How many failures end it."
    )
    exclusive_key: Key | None = Field(None, description="At most one job of this key runs at a time.")
    tags: list[Tag] | None = Field(None, max_length=MAX_TAGS, description="For people to find it by.")
    idempotency: Literal["default", "strict"] = Field(
        "default", description="strict: a used key is 409 when the type or the payload differ."
    )


class BatchRequest(Asked):
    """Many jobs, recorded all or none."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=1000)


class JobError(View):
    """Why a job has failed."""

    reason: str = Field(description="exhausted, fatal, lease_expired, set_aside, …: one word, constant.")


class JobView(View):
    """What a client may know of a job."""

    job_id: UUID
    job_type: str
    status: JobStatusName
    queue: str
    run_at: Moment
    created_at: Moment
    updated_at: Moment
    finished_at: Moment | None = Field(description="null until it has finished.")
    progress: float | None = Field(ge=0, le=1, description="0 to 1; null unless the task has reported it.")
    progress_note: str | None = Field(description="null unless the task has reported one.")
    error: JobError | None = Field(description="null unless the job is FAILED.")


class BatchView(View):
    """The jobs of a batch, in its order."""

    jobs: list[JobView]


class ResultView(View):
    """What a job's task returned."""

    job_id: UUID
    status: Literal["COMPLETED"]
    result: Any = Field(description="Any JSON value; null if the task returned nothing.")


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid request for a job, ready for the database."""

    kind: str
    queue: str | None
    key: str
    element: str
    """The element of submit_many's array, as JSON text without its opening brace and id."""
    queues: frozenset[str] | None = None
    """The queues whose jobs the caller may see; None: all."""
    kinds: frozenset[str] | None = None
    """The kinds whose jobs the caller may see; None: all."""

    def shows(self, job: Submitted) -> bool:
        """Whether the caller may see the job that has the key."""
        return (self.queues is None or job.queue in self.queues) and (self.kinds is None or job.kind in self.kinds)


_OWN: Final = ',"own":true'


def element_of(
    request: JobRequest,
    key: str,
    payload: str,
    queues: frozenset[str] | None = None,
    origin: str | None = None,
    *,
    own: bool = False,
) -> str:
    """The request as an element of submit_many's array. `payload` is JSON text and stays as it is.

    `queues`: those that the job may wait in. If the request names none, the database looks whether the kind's is one.
    `origin`: the namespace whose own the job is. `own`: the caller sees no other jobs, so its key must not find one.
    """
    parts = [f'"kind":{_quoted(request.job_type)},"idempotency_key":{_quoted(key)}{_OWN if own else ""}']
    if request.queue is not None:
        parts.append(f'"queue":{_quoted(request.queue)}')
    elif queues is not None:
        parts.append(f'"queues":{json.dumps(sorted(queues))}')
    if origin is not None:
        parts.append(f'"origin":{_quoted(origin)}')
    if request.priority is not None:
        parts.append(f'"priority":{request.priority}')
    if request.max_attempts is not None:
        parts.append(f'"max_attempts":{request.max_attempts}')
    if request.run_at is not None:
        parts.append(f'"run_at":"{request.run_at.isoformat()}"')
    if request.exclusive_key is not None:
        parts.append(f'"exclusive_key":{_quoted(request.exclusive_key)}')
    if request.tags:
        parts.append(f'"tags":{json.dumps(request.tags)}')
    if request.idempotency == "strict":
        parts.append('"strict":true')
    parts.append(f'"payload":{payload}}}')
    return ",".join(parts)


def view_of(job: Seen) -> bytes:
    """The JobView of a job, as JSON: by hand, because every answer has one. Always with the same fields."""
    finished = "null" if job.finished_at is None else f'"{rfc3339(job.finished_at)}"'
    progress = "null" if job.progress is None else repr(job.progress)
    note = "null" if job.progress_note is None else _quoted(job.progress_note)
    error = f'{{"reason":{_quoted(job.reason or "unknown")}}}' if job.status == "FAILED" else "null"
    return (
        f'{{"jobId":"{job.id}","jobType":{_quoted(job.kind)},"status":"{job.status}","queue":{_quoted(job.queue)},'
        f'"runAt":"{rfc3339(job.run_at)}","createdAt":"{rfc3339(job.created_at)}",'
        f'"updatedAt":"{rfc3339(job.updated_at)}","finishedAt":{finished},"progress":{progress},'
        f'"progressNote":{note},"error":{error}}}'
    ).encode()


def etag_of(view: bytes) -> str:
    """Changes exactly when the view does."""
    return f'"{blake2b(view, digest_size=12).hexdigest()}"'


def hint_of(job: Seen) -> str:
    """What to say to sleeping workers of a job that was just accepted."""
    return job.queue if job.state == "queued" else DUE
