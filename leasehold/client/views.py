"""What goes in and what comes out: plain values."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeAlias, Unpack, get_args

from pydantic.alias_generators import to_camel

from leasehold.errors import ApiError, InvalidJob
from leasehold.intent import JobOptions

Status: TypeAlias = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]

FINISHED: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
MAX_JOBS: Final = 1_000
"""The most jobs of one `submit_many`: they are recorded in one transaction."""


class Options(JobOptions, total=False):
    """What may be asked for with a job; what is left out is up to the server."""

    idempotency_key: str | None
    run_at: datetime | None


class NewJob:
    """A job to be submitted. Its key is made here, once: submitting the same object again finds the same job."""

    def __init__(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> None:
        if unknown := options.keys() - Options.__annotations__.keys():
            raise TypeError(f"a job has no option {min(unknown)!r}; known: {', '.join(Options.__annotations__)}")
        self.kind = kind
        self.payload = payload or {}
        key = options.pop("idempotency_key", None)
        self.idempotency_key = str(uuid.uuid4()) if key is None else key
        self.options = options

    def fields(self) -> dict[str, Any]:
        """Return the JSON object that the API takes; only what was given."""
        run_at = self.options.get("run_at")
        if run_at is not None and run_at.utcoffset() is None:
            raise InvalidJob(f"{self.kind}: run_at {run_at} has no time zone", hint="use datetime.now(UTC) + ...")
        found = {"jobType": self.kind, "payload": self.payload, "idempotencyKey": self.idempotency_key}
        given = dict(self.options)
        if given.pop("strict", False):
            found["idempotency"] = "strict"
        return found | wired(given)


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
    def read(cls, data: Any) -> Self:
        """Return it from the API's JSON; unknown fields are those of a later release and are left out."""
        try:
            found = {one.name: data.get(to_camel(one.name)) for one in fields(cls)}
            found |= {"kind": data["jobType"], "reason": (data.get("error") or {}).get("reason")}
            for name in ("run_at", "created_at", "updated_at", "finished_at"):
                if found[name] is not None or name in {"created_at", "updated_at"}:
                    found[name] = datetime.fromisoformat(found[name])
            if found["job_id"] is None or found["status"] not in get_args(Status):
                raise ValueError("jobId or status")  # noqa: TRY301 (one place says what is wrong)
            return cls(**found)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise not_ours(f"a job without a proper {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing, as the API's JSON has it."""

    jobs: tuple[dict[str, Any], ...]
    cursor: str | None
    """Pass it to `list_jobs` for the next page; None on the last."""


def wired(given: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields that were given, by the API's names, with times as text."""
    return {
        to_camel(name): value.isoformat() if isinstance(value, datetime) else value
        for name, value in given.items()
        if value not in (None, (), [])
    }


def query_of(given: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The filters of a listing as the parameters of a URL: one for each value of a list and each pair of metadata."""
    found: list[tuple[str, str]] = []
    for name, value in wired(given).items():
        if isinstance(value, Mapping):
            found += [(name, _pair(name, key, one)) for key, one in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            found += [(name, str(one)) for one in value]
        else:
            found.append((name, str(value)))
    return tuple(found)


def _pair(name: str, key: object, value: object) -> str:
    if not isinstance(key, str) or not key or "=" in key:
        raise TypeError(f"{name}: {key!r} is no key to filter by; it is a text without =")
    if not isinstance(value, str | int | float):
        raise TypeError(f"{name}: {key} {value!r} is neither a text, a number nor a bool, which alone are filtered by")
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def encode(value: object) -> bytes:
    """Return a body, in JSON as the API takes it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"the payload is not JSON: {error}", hint="nothing was sent") from None


def decode(content: bytes) -> Any:
    """Return the JSON of a successful response."""
    try:
        return json.loads(content)
    except ValueError:
        raise not_ours(f"{len(content)} bytes that are not JSON") from None


def not_ours(what: str) -> ApiError:
    """Return the exception for a response that the API never sends."""
    return ApiError(f"the server answered with {what}", hint="is the base URL that of a Leasehold API?")
