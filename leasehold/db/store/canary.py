"""The calls around canary retries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from leasehold.db.call import Call
from leasehold.db.store.calls import Calls, scalar, uuid

_ROW = (
    "id, kind, error_class, queues, state, stage, total, total_capped, retried, succeeded, failed, pending, reason,"
    " started_by, created_at, updated_at, finished_at"
)

_TEXTS = {
    "canary_start": "select {}.canary_start_v1(%s, %s, %s, %s::text[])",
    "canary_step": "select {}.canary_step_v1(%s)",
    "canary_stop": "select {}.canary_stop_v1(%s, %s)",
    "canaries": f"select {_ROW} from {{}}.canary_list_v1(%s, %s)",  # noqa: S608 (constants)
}


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary retry of the dead jobs of one kind and error class: ten, then a tenth, then all."""

    id: UUID
    kind: str
    error_class: str | None
    queues: list[str] | None
    """Only jobs of these; None: all."""
    state: str
    """`running`, `stopped` (`reason` says why), `done`."""
    stage: int
    """1: the first ten; 2: a tenth of them; 3: all the rest."""
    total: int
    """Dead jobs found at the start, counted up to 10,000."""
    total_capped: bool
    retried: int
    succeeded: int
    failed: int
    """That failed again."""
    pending: int
    """Retried, with no outcome yet."""
    reason: str | None
    started_by: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class CanaryCalls(Calls):
    """Retry a group with care."""

    texts = _TEXTS

    def canary_start(
        self, kind: str, error_class: str | None, by: str | None = None, *, queues: Sequence[str] | None = None
    ) -> Call[UUID]:
        """Start one; gives its id, or that of the one that is running for the group. JobUnknown: nothing to retry."""
        listed = None if queues is None else list(queues)
        return Call(self._sql["canary_start"], (kind, error_class, by, listed), uuid, repeatable=True)

    def canary_step(self, limit: int = 1000) -> Call[int]:
        """Take each running canary's next step, with at most `limit` jobs on their way; gives how many are running."""
        return Call(self._sql["canary_step"], (limit,), scalar, repeatable=True)

    def canary_stop(self, canary: UUID, by: str | None = None) -> Call[bool]:
        """Retry no more of it; False: it had ended already, or there is none."""
        return Call(self._sql["canary_stop"], (canary, by), scalar, repeatable=True)

    def canaries(self, count: int = 50, canary: UUID | None = None) -> Call[list[Canary]]:
        """The latest first; or one."""
        read = lambda rows: [Canary(*row) for row in rows]  # noqa: E731
        return Call(self._sql["canaries"], (count, canary), read, repeatable=True)
