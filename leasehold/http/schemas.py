"""What goes over the wire. Field names are camelCase there; times are RFC 3339 in UTC."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from leasehold._facts import MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_NUMBER, MAX_TAGS
from leasehold.db.store import Seen
from leasehold.intent import check_metadata

JobStatusName = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]

OVER: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
"""The statuses that a job keeps."""

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,6})?\d*(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
quoted: Final = json.encoder.encode_basestring_ascii


class View(BaseModel):
    """The base of everything that is sent and received as JSON: camelCase, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Asked(View):
    """The base of everything that is received: by the names in the description, and no others."""

    model_config = ConfigDict(populate_by_name=False)


def rfc3339(moment: datetime) -> str:
    """Return the moment in UTC, with a Z."""
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


WHOLE: Final = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""Of a whole number, which JSON may write as 5.0."""


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains the character NUL")
    return text


def _fits(most: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text) * 4 > most and len(text.encode("utf-8", "surrogatepass")) > most:
            raise ValueError(f"longer than {most} bytes")
        return _no_nul(text)

    return AfterValidator(check)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), _fits(MAX_NAME_BYTES)]
"""Of a queue or a kind: 1 to 200 bytes."""

Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES), _fits(MAX_KEY_BYTES)]
"""1 to 500 bytes."""

Tag = Annotated[str, Field(max_length=MAX_KEY_BYTES), _fits(MAX_KEY_BYTES)]

When = Annotated[datetime, BeforeValidator(_read_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in a request: with a time zone."""

_NO_NUL: Final = {"pattern": "^[^\\x00]*$"}
Words = Annotated[str, Field(max_length=1000, json_schema_extra=_NO_NUL), AfterValidator(_no_nul)]
"""What a person has to say about something."""

ErrorClass = Annotated[str, Field(max_length=500, json_schema_extra=_NO_NUL), AfterValidator(_no_nul)]


def _small(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        check_metadata(metadata)
    except ValueError as error:  # the answer names the field itself
        raise ValueError(str(error).removeprefix("metadata: ")) from None
    return metadata


Priority = Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER), WHOLE]
Attempts = Annotated[int, Field(ge=1, le=MAX_NUMBER), WHOLE]
Metadata = Annotated[dict[str, Any], AfterValidator(_small)]


class RequestedFields(Asked):
    """A job, whether it is submitted or made by a schedule."""

    job_type: Name = Field(description="Which task shall run.")
    payload: dict[str, Any] = Field(default_factory=dict, description="Its arguments: any JSON object.")
    queue: Name | None = Field(None, description="Where it waits. Null, here and below: as its task declares.")
    priority: Priority | None = Field(None, description="Higher is more urgent.")
    max_attempts: Attempts | None = Field(None, description="How many failures end it.")
    exclusive_key: Key | None = Field(None, description="At most one job of this key runs at a time.")
    tags: list[Tag] | None = Field(None, max_length=MAX_TAGS, description="For people to find it by.")
    metadata: Metadata | None = Field(None, description="Of the call: headers, trace context. At most 4 KiB of JSON.")


class JobRequest(RequestedFields):
    """A job to be recorded."""

    model_config = ConfigDict(strict=True, title="JobRequest")

    idempotency_key: Key | None = Field(
        None, description="Names this request. At most one job per key, ever. May come as a header instead."
    )
    run_at: When | None = Field(None, description="Not before this moment.")
    idempotency: Literal["default", "strict"] = Field(
        "default", description="strict: a used key is 409 when the type, payload, queue or priority differ."
    )

    def columns(self, exact: Mapping[str, str]) -> str:
        """Return the job's fields, by the names of its columns, as the members of a JSON object. `exact`: the JSON text
        of objects, which stays as it is: Python would change the digits of numbers.
        """
        parts = []
        for name, head in _COLUMNS:
            value = self.__dict__[name]
            if value is not None and value != []:
                text = quoted(value) if type(value) is str else exact.get(name) or _encode(value)
                parts.append(head + text)
        return ",".join(parts)


_COLUMNS: Final = tuple(
    (name, f'"{"kind" if name == "job_type" else name}":')
    for name in JobRequest.model_fields
    if name not in {"idempotency_key", "idempotency"}
)
_encode: Final = json.JSONEncoder(default=datetime.isoformat).encode


Pair = Annotated[str, Field(pattern="^[^=\\x00]+=[^\\x00]*$")]
Pairs = Annotated[list[Pair], Field(min_length=1, max_length=20)]
"""All of which a job's metadata must have."""


class JobFilter(View):
    """Which jobs: all fields that are given must hold."""

    kind: Name | None = Field(None, description="Jobs of this type.")
    queue: Name | None = Field(None, description="Jobs of this queue.")
    tag: Tag | None = Field(None, description="Jobs with this tag.")
    metadata: Pair | Pairs | None = Field(
        None, description="Jobs whose metadata have this, or all of these: key=value."
    )
    exclusive_key: Key | None = Field(None, description="Jobs with this exclusive key.")
    error_class: ErrorClass | None = Field(None, description="Jobs whose latest recorded attempt has this error class.")
    created_after: When | None = Field(None, description="Created at this moment or later.")
    created_before: When | None = Field(None, description="Created before this moment.")

    def fields(self) -> dict[str, Any]:
        """Return it as the database has it."""
        return self.model_dump(
            mode="json", by_alias=False, exclude_none=True, include=set(JobFilter.model_fields) | {"state"}
        )


class BatchRequest(Asked):
    """Many jobs, recorded all or none."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=1000)


class JobError(View):
    """Why a job has failed."""

    reason: str = Field(description="exhausted, fatal, lease_expired, set_aside, …: one word, constant.")


class StatusView(View):
    """What a client may know of a job."""

    model_config = ConfigDict(title="JobView")

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

    jobs: list[StatusView]


class ResultView(View):
    """What a job's task returned."""

    job_id: UUID
    status: Literal["COMPLETED"]
    result: Any = Field(description="Any JSON value; null if the task returned nothing.")


def view_of(job: Seen) -> bytes:
    """Return the StatusView of a job, as JSON: by hand, because every answer has one. Always with the same fields."""
    finished = "null" if job.finished_at is None else f'"{rfc3339(job.finished_at)}"'
    progress = "null" if job.progress is None else repr(job.progress)
    note = "null" if job.progress_note is None else quoted(job.progress_note)
    error = f'{{"reason":{quoted(job.reason or "unknown")}}}' if job.status == "FAILED" else "null"
    created = rfc3339(job.created_at)
    run = created if job.run_at == job.created_at else rfc3339(job.run_at)
    updated = created if job.updated_at == job.created_at else rfc3339(job.updated_at)
    return (
        f'{{"jobId":"{job.id}","jobType":{quoted(job.kind)},"status":"{job.status}","queue":{quoted(job.queue)},'
        f'"runAt":"{run}","createdAt":"{created}","updatedAt":"{updated}","finishedAt":{finished},'
        f'"progress":{progress},"progressNote":{note},"error":{error}}}'
    ).encode()


def etag_of(view: bytes) -> str:
    """Return the ETag, which changes exactly when the view does."""
    return f'"{blake2b(view, digest_size=12).hexdigest()}"'


def parameter(
    where: str, name: str, description: str, schema: Mapping[str, Any], example: Any = None
) -> dict[str, Any]:
    """Return a parameter of an operation in the API's description; `where`: path, query or header."""
    found = {"name": name, "in": where, "required": where == "path", "description": description, "schema": schema}
    return found if example is None else {**found, "examples": {"one": {"value": example}}}


EXAMPLE_ID: Final = "019a5f2e-7c11-7abc-8def-0123456789ab"
KEY_HEADER: Final = parameter(
    "header",
    "Idempotency-Key",
    "Names this request: sent twice, it is done once.",
    {"type": "string", "minLength": 1, "maxLength": 500, "pattern": "^[!-~]([ -~]*[!-~])?$"},
)
