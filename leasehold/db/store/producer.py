"""The calls of those who record intents and ask what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from leasehold.db.call import Call
from leasehold.db.store.calls import Calls, nothing, scalar, uuid, uuids
from leasehold.intent import Intent

# Values go as text and are cast twice, because other people's connections carry them too: a driver that knows
# the parameter to be jsonb or timestamptz would ask for its own Python type, or apply the user's own codec.
_ENQUEUE = """
select {}.enqueue_v1(kind => cast(%s as text), payload => cast(cast(%s as text) as jsonb), queue => cast(%s as text),
  priority => cast(%s as integer), run_at => cast(cast(%s as text) as timestamptz),
  run_after => cast(cast(%s as text) as interval), idempotency_key => cast(%s as text),
  max_attempts => cast(%s as integer), exclusive_key => cast(%s as text), tags => cast(%s as text[]),
  id => cast(cast(%s as text) as uuid), notify => cast(%s as boolean))
"""

_TEXTS = {
    "enqueue": _ENQUEUE,
    "enqueue_many": "select * from {}.enqueue_many_v1(cast(cast(%s as text) as jsonb), cast(%s as boolean))",
    "status": "select id, kind, queue, state, status, result::text, reason, reason_detail, progress, progress_note,"
    " run_at, created_at, updated_at, finished_at from {}.status_v1(%s)",
    "hint": "select {}.hint_v1(%s::text[])",
    "clock": "select cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)",
}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a client may know of a job."""

    id: UUID
    kind: str
    queue: str
    state: str
    status: str
    result: str | None
    reason: str | None
    reason_detail: str | None
    progress: float | None
    progress_note: str | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class ProducerCalls(Calls):
    """Record intents, and ask what came of them."""

    texts = _TEXTS

    def enqueue(
        self,
        intent: Intent,
        *,
        id: UUID | None = None,  # noqa: A002 (the SQL argument's name)
        notify: bool = True,
    ) -> Call[UUID]:
        """Record one intent. With an id of ours the call may be repeated until it is answered."""
        return Call(
            self._sql["enqueue"],
            (*intent.columns(), str(id) if id else None, notify),
            uuid,
            repeatable=id is not None,
        )

    def enqueue_many(
        self, intents: Sequence[Intent], ids: Sequence[UUID] | None = None, *, notify: bool = True
    ) -> Call[list[UUID]]:
        """Record many, all or none."""
        args = (Intent.array(intents, ids), notify)
        return Call(self._sql["enqueue_many"], args, uuids, repeatable=ids is not None)

    def status(self, job_id: UUID) -> Call[JobStatus | None]:
        """What a client may know of the job; None if there is none."""
        return Call(
            self._sql["status"],
            (job_id,),
            lambda rows: JobStatus(*rows[0]) if rows else None,
            repeatable=True,
        )

    def hint(self, names: Sequence[str]) -> Call[None]:
        """Say that these queues have work."""
        return Call(self._sql["hint"], (list(names),), nothing, repeatable=True)

    def clock(self) -> Call[int]:
        """The database's clock, in microseconds since the epoch."""
        return Call(self._sql["clock"], (), scalar, repeatable=True)
