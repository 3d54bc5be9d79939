"""What the model knows of a job and its attempts."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID


class Refused(Exception):
    """The call is refused with this SQLSTATE and changes nothing."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@dataclass(frozen=True)
class Token:
    """The right to write for one attempt; a claim_id of None is not checked."""

    id: UUID
    attempt: int
    claim_id: UUID | None


@dataclass
class Job:
    id: UUID
    kind: str
    queue: str
    priority: int
    max_attempts: int
    payload: dict[str, Any]
    idempotency_key: str | None
    exclusive_key: str | None
    created_at: datetime
    run_at: datetime
    accepted: bool
    state: str
    updated_at: datetime
    attempt: int = 0
    retry_count: int = 0
    is_current: bool = False
    claim_id: UUID | None = None
    claimed_at: datetime | None = None
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    finished_at: datetime | None = None
    finished_by: str | None = None
    reason: str | None = None
    result: Any = None
    progress: float | None = None
    progress_note: str | None = None
    lines: dict[int, list[Any]] = field(default_factory=dict)
    run_at_until: datetime | None = None
    """The end of the range that a backoff falls into, until it is known where it fell."""
    passed_over: bool = False
    """A claim has found it behind a busy key; it may wait for the holder's end, a sweep of it included."""

    @property
    def place(self) -> tuple[int, UUID]:
        return -self.priority, self.id

    @property
    def lane(self) -> tuple[str, str]:
        return self.queue, self.kind


@dataclass(frozen=True)
class Ended:
    """An attempt that did not succeed."""

    worker: str
    outcome: str
    claimed_at: datetime | None
    ended_at: datetime
    error_class: str | None = None
    error_message: str | None = None
