"""What goes in and what comes out: plain values."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from leasehold.errors import ApiError, InvalidJob

Status: TypeAlias = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]

FINISHED: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
MAX_JOBS: Final = 1_000
"""The most jobs of one `submit_many`: they are recorded in one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be submitted. Its key is made here, once: submitting the same object again finds the same job."""

    kind: str
    """Which task shall run; `jobType` on the wire."""
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Its arguments: what JSON can hold."""
    idempotency_key: str = field(default_factory=lambda: str(uuid.uuid4()))
    """At most one job per key, ever."""
    queue: str | None = None
    """Where it waits; None leaves it to the server, like every None below."""
    priority: int | None = None
    """Higher is more urgent."""
    run_at: datetime | None = None
    """Not before this moment."""
    max_attempts: int | None = None
    """How many failures end it."""
    exclusive_key: str | None = None
    """At most one job of this key runs at a time."""
    tags: Sequence[str] = ()
    """For people to find it by."""
    strict: bool = False
    """Refuse, with IdempotencyConflict, a key that belongs to a job of another kind or payload."""

    def fields(self) -> dict[str, Any]:
        """The JSON object that the API takes; only what was given."""
        if self.run_at is not None and self.run_at.utcoffset() is None:
            raise InvalidJob(f"{self.kind}: run_at {self.run_at} has no time zone", hint="use datetime.now(UTC) + ...")
        given: dict[str, Any] = {
            "queue": self.queue,
            "priority": self.priority,
            "runAt": None if self.run_at is None else self.run_at.isoformat(),
            "maxAttempts": self.max_attempts,
            "exclusiveKey": self.exclusive_key,
            "tags": list(self.tags) or None,
            "idempotency": "strict" if self.strict else None,
        }
        always = {"jobType": self.kind, "payload": self.payload, "idempotencyKey": self.idempotency_key}
        return always | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """All that a client may know of a job."""

    job_id: str
    kind: str
    status: Status
    queue: str | None
    run_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    progress: float | None = None
    """From 0 to 1, as its task last said."""
    progress_note: str | None = None
    reason: str | None = None
    """Why it failed, in one constant word."""

    @property
    def finished(self) -> bool:
        """Whether the status is final."""
        return self.status in FINISHED

    @classmethod
    def read(cls, data: object) -> Self:
        """From the API's JSON; unknown fields are those of a later release and are left out."""
        try:
            return cls._read(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise not_ours(f"a job without a proper {error}") from None

    @classmethod
    def _read(cls, data: Any) -> Self:
        if data["status"] not in get_args(Status):
            raise ValueError("status")
        return cls(
            job_id=data["jobId"],
            kind=data["jobType"],
            status=data["status"],
            queue=data.get("queue"),
            run_at=_moment(data.get("runAt")),
            created_at=datetime.fromisoformat(data["createdAt"]),
            updated_at=datetime.fromisoformat(data["updatedAt"]),
            finished_at=_moment(data.get("finishedAt")),
            progress=data.get("progress"),
            progress_note=data.get("progressNote"),
            reason=(data.get("error") or {}).get("reason"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing, as the API's JSON has it."""

    jobs: tuple[dict[str, Any], ...]
    cursor: str | None
    """Give it to `list_jobs` for the next page; None on the last."""


def encode(value: object) -> bytes:
    """A body, in JSON as the API takes it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"the payload is not JSON: {error}", hint="nothing was sent") from None


def decode(content: bytes) -> Any:
    """The JSON of a successful answer."""
    try:
        return json.loads(content)
    except ValueError:
        raise not_ours(f"{len(content)} bytes that are not JSON") from None


def not_ours(what: str) -> ApiError:
    """What is raised for an answer that the API does not give."""
    return ApiError(f"the server answered with {what}", hint="is the base URL that of a Leasehold API?")


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
