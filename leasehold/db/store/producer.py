"""The calls of those who record intents and ask what came of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, nothing, scalar, uuid
from leasehold.intent import Intent

# Values go as text and are cast twice, because other people's connections carry them too: a driver that knows
# the parameter to be jsonb or timestamptz would ask for its own Python type, or apply the user's own codec.
_ENQUEUE = """
select {}.enqueue_v1(kind => cast(%s as text), payload => cast(cast(%s as text) as jsonb), queue => cast(%s as text),
  priority => cast(%s as integer), run_at => cast(cast(%s as text) as timestamptz),
  run_after => cast(cast(%s as text) as interval), idempotency_key => cast(%s as text),
  max_attempts => cast(%s as integer), exclusive_key => cast(%s as text), tags => cast(%s as text[]),
  strict => cast(%s as boolean), id => cast(cast(%s as text) as uuid), notify => cast(%s as boolean))
"""

# What most jobs need, with fewer values to send: as plain as they are, these calls are counted in microseconds.
_ENQUEUE_PLAIN = """
select {}.enqueue_v1(kind => cast(%s as text), payload => cast(cast(%s as text) as jsonb), queue => cast(%s as text),
  priority => cast(%s as integer), max_attempts => cast(%s as integer), id => cast(cast(%s as text) as uuid),
  notify => cast(%s as boolean))
"""

# On our own connections only: a caller's transaction has its own lock_timeout. Until the end of the transaction, which
# is this statement: a key that another transaction is using is waited for by repeating the call, see busykeys.py.
_BRIEFLY = " from pg_catalog.set_config('lock_timeout', '250ms', true)"

_ENQUEUE_MANY = (
    "select array_to_string(array(select cast(e as text) from {}.enqueue_many_v1("
    "cast(cast(%s as text) as jsonb), cast(%s as boolean)) e), ',')"
)

_TEXTS = {
    "enqueue": _ENQUEUE,
    "enqueue_briefly": _ENQUEUE + _BRIEFLY,
    "enqueue_plain": _ENQUEUE_PLAIN,
    # One text instead of a row for each id: most are never looked at.
    "enqueue_many": _ENQUEUE_MANY,
    "enqueue_many_briefly": _ENQUEUE_MANY + _BRIEFLY,
    # The ids are ours: only whether it worked is of interest.
    "enqueue_batch": "select count(*) from {}.enqueue_batch_v1(%s::jsonb, %s::jsonb, %s::uuid[], %s)",
    "status": "select id, kind, queue, state, status, result::text, reason, reason_detail, progress, progress_note,"
    " run_at, created_at, updated_at, finished_at, error_class from {}.status_v2(%s)",
    "submit_many": "select error, detail, id, kind, queue"
    " from {}.submit_many_v2(%s::jsonb, %s, %s::text[], %s::text[], %s) order by ord",
    "submit_each": "select error, detail, id, kind, queue"
    " from {}.submit_each_v2(%s::jsonb, %s::text[], %s::text[], %s) order by ord",
    "accept_each": "select id, kind, queue, state, status, reason, progress, progress_note, run_at, created_at,"
    " updated_at, finished_at from {}.accept_each_v1(%s::uuid[], %s)",
    "accept_many": "select id, kind, queue, state, status, reason, progress, progress_note, run_at, created_at,"
    " updated_at, finished_at from {}.accept_many_v1(%s::uuid[], %s)",
    "statuses": "select id, kind, queue, state, status, reason, progress, progress_note, run_at, created_at,"
    " updated_at, finished_at, origin from {}.statuses_v2(%s::uuid[])",
    # Alone in its transaction, and lost with a crash of the server like any hint: it need not wait for the disk.
    "hint": "select {}.hint_v1(%s::text[]) from pg_catalog.set_config('synchronous_commit', 'off', true)",
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
    result_text: str | None
    """What its task returned, as JSON."""
    reason: str | None
    reason_detail: str | None
    progress: float | None
    progress_note: str | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    error_class: str | None = None
    """Of a dead job: the class of what its last attempt raised."""
    decoder: Callable[[str], Any] = field(default=json.loads, repr=False, compare=False)

    @property
    def result(self) -> Any:
        """What its task returned; from `Job.refresh` as the type that the task's function is annotated with."""
        return None if self.result_text is None else self.decoder(self.result_text)


class Seen(NamedTuple):
    """What a client may see of a job: its status without the result."""

    id: UUID
    kind: str
    queue: str
    state: str
    status: str
    reason: str | None
    progress: float | None
    progress_note: str | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    origin: str | None = None
    """The namespace that it was submitted in; not known of what was just accepted."""
    differs: str | None = None
    """Of what was just submitted with a used key: which fields its job had otherwise."""


class Submitted(NamedTuple):
    """One job of many that is on record, now or before; `accept_many` tells the rest."""

    id: UUID
    kind: str
    queue: str
    differs: str | None = None
    """What was asked for otherwise when it was recorded: payload, queue, …; None: nothing that was named now."""


class Refused(NamedTuple):
    """One job of many that was not recorded."""

    code: str
    """LH003: it is wrong. LH004: its key or id belongs to another. LH008: not in that queue. 40001: repeat it.
    55P03: an open transaction uses its key. Any other: what its row has raised."""

    detail: str
    """What is wrong, in words."""


class ProducerCalls(Calls):
    """Record intents, and ask what came of them."""

    texts = _TEXTS

    def enqueue(
        self,
        intent: Intent,
        *,
        id: str | None = None,  # noqa: A002 (the SQL argument's name)
        notify: bool = True,
    ) -> Call[UUID]:
        """Record one intent. With an id of ours, for our own connections: it may be repeated until it is answered."""
        args: tuple[object, ...]
        if intent.is_plain:
            args = (intent.kind, intent.payload, intent.queue, intent.priority, intent.max_attempts, id, notify)
            sql = self._sql["enqueue_plain"]
        else:
            args = (*intent.columns(), id, notify)
            sql = self._sql["enqueue" if id is None or intent.idempotency_key is None else "enqueue_briefly"]
        if id is None:
            return Call(sql, args, uuid)
        return Call(sql, args, uuid, repeatable=True, intents=(intent,), ids=(id,))

    def enqueue_many(
        self, intents: Sequence[Intent], ids: Sequence[str] | None = None, *, notify: bool = True
    ) -> Call[list[str]]:
        """Record many, all or none. With ids of ours, for our own connections."""
        if ids is not None and _differ_in_payload_only(intents):
            payloads = f"[{','.join([intent.payload for intent in intents])}]"
            shared = (intents[0].head + "}", payloads, "{" + ",".join(ids) + "}", notify)
            return Call(
                self._sql["enqueue_batch"], shared, lambda _: list(ids), repeatable=True, intents=intents, ids=ids
            )
        args = (Intent.array(intents, ids), notify)
        if ids is None:
            return Call(self._sql["enqueue_many"], args, _listed_ids)
        keyed = any(intent.idempotency_key is not None for intent in intents)
        sql = self._sql["enqueue_many_briefly" if keyed else "enqueue_many"]
        return Call(sql, args, _listed_ids, repeatable=True, intents=intents, ids=ids)

    def submit_many(
        self,
        jobs: str,
        *,
        all_or_none: bool = False,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        durable: bool = True,
    ) -> Call[list[Submitted | Refused]]:
        """The first step of an API server: record many intents of many people, each on its own.

        Every job has an id of ours, so that the call may be repeated until it is answered. Not `durable`: nobody may be
        told of it before `accept_many`, which is.
        """
        args = (jobs, all_or_none, _listed(queues), _listed(kinds), durable)
        return Call(self._sql["submit_many"], args, _submitted, repeatable=True, divisible=True)

    def submit_each(self, jobs: str, *, durable: bool = True) -> Call[list[Submitted | Refused]]:
        """The same one by one, for when `submit_many` was undone: a key that is in use holds up no other."""
        return Call(self._sql["submit_each"], (jobs, None, None, durable), _submitted, repeatable=True)

    def accept_many(self, ids: Sequence[UUID], *, notify: bool = True) -> Call[list[Seen]]:
        """The second step: let them run, now or when their time comes. Gives what each is now."""
        return Call(self._sql["accept_many"], (_array(ids), notify), _seen, repeatable=True, divisible=True)

    def accept_each(self, ids: Sequence[UUID], *, notify: bool = True) -> Call[list[Seen]]:
        """The same one by one, for when `accept_many` was undone. Those whose row is in use are left out."""
        return Call(self._sql["accept_each"], (_array(ids), notify), _seen, repeatable=True)

    def statuses(self, ids: Sequence[UUID]) -> Call[list[Seen]]:
        """What clients may see of these jobs, in no order; none for an unknown id."""
        return Call(self._sql["statuses"], (_array(ids),), _seen, repeatable=True)

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


def _differ_in_payload_only(intents: Sequence[Intent]) -> bool:
    if not intents or intents[0].idempotency_key is not None:
        return False
    return len({intent.head for intent in intents}) == 1


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _array(ids: Sequence[UUID]) -> str:
    # As text: the driver takes several times as long to make an array of each of them.
    return "{" + ",".join(map(str, ids)) + "}"


def _seen(rows: Sequence[Row]) -> list[Seen]:
    return [Seen(*row) for row in rows]


def _submitted(rows: Sequence[Row]) -> list[Submitted | Refused]:
    return [Submitted(row[2], row[3], row[4], row[1]) if row[0] is None else Refused(row[0], row[1]) for row in rows]


def _listed_ids(rows: Sequence[Row]) -> list[str]:
    text: str = rows[0][0]
    return text.split(",") if text else []
