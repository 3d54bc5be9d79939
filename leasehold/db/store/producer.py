"""The calls of those who record intents and ask what came of them."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, columns_of, filled, nothing, scalar
from leasehold.errors import InvalidJob
from leasehold.intent import ARGUMENTS, Intent

T = TypeVar("T")


def _enqueue(names: Iterable[str]) -> str:
    # Values go as text and are cast twice, because connections of callers carry them too: a driver that knows the
    # parameter to be jsonb or timestamptz would ask for its own Python type, or apply the user's own codec.
    types = {name: ARGUMENTS[name] for name in names} | {"id": "uuid", "notify": "boolean"}
    places = [
        f"{name} => {_CASTS.get(type_, 'cast(cast(%s as text) as {})').format(type_)}" for name, type_ in types.items()
    ]
    return f"select {{}}.enqueue_v1({', '.join(places)})"


_CASTS = dict.fromkeys(("text", "integer", "boolean", "text[]"), "cast(%s as {})")
"""Of types that every driver sends alike."""

# On our own connections only: a caller's transaction has its own lock_timeout. Until the end of the transaction, which
# is this statement: a key that another transaction is using is waited for by repeating the call, see BusyKeys.
_BRIEFLY = " from pg_catalog.set_config('lock_timeout', '250ms', true)"
_ENQUEUE = _enqueue(ARGUMENTS)
_ENQUEUE_BRIEFLY = _ENQUEUE + _BRIEFLY
# What most jobs need, with fewer values to send: these calls are counted in microseconds.
_ENQUEUE_PLAIN = _enqueue(("kind", "payload", "queue", "priority", "max_attempts"))
# One text instead of a row for each id: most are never read.
_ENQUEUE_MANY = (
    "select array_to_string(array(select cast(e as text) from {}.enqueue_many_v1("
    "cast(cast(%s as text) as jsonb), cast(%s as boolean)) e), ',')"
)
_ENQUEUE_MANY_BRIEFLY = _ENQUEUE_MANY + _BRIEFLY
# The ids are ours: only whether it worked is of interest.
_ENQUEUE_BATCH = "select count(*) from {}.enqueue_batch_v1(%s::jsonb, %s::jsonb, %s::uuid[], %s)"
_SUBMIT_MANY = (
    "select error, detail, id, kind, queue"
    " from {}.submit_many_v1(%s::jsonb, %s, %s::text[], %s::text[], %s) order by ord"
)
_SUBMIT_EACH = "select error, detail, id, kind, queue from {}.submit_each_v1(%s::jsonb, null, null, %s) order by ord"
# Alone in its transaction, and lost with a crash of the server like any notification: it need not wait for the disk.
_NOTIFY = "select {}.notify_v1(%s::text[]) from pg_catalog.set_config('synchronous_commit', 'off', true)"
_CLOCK = "select cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)"

_PER_MS = 4096
_FRACTIONS = [f"{n:03x}" for n in range(_PER_MS)]
_VARIANT = {f"{n:x}": "89ab"[n % 4] for n in range(16)}


class IdMaker:
    """Makes the ids of jobs, UUIDv7, so that an enqueue whose answer was lost can be repeated identically.

    They increase within this process. Ids sort by creation, so the jobs of a host with a wrong clock would overtake
    others or be overtaken: `follow` keeps the maker on the database's clock.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.clock = clock
        """Our own clock, in nanoseconds since the epoch; it may be wrong."""
        self._lock = threading.Lock()
        self._last = 0
        self._offset_ns = 0
        self.follows = False
        """Whether the database's clock is known."""

    def follow(self, *, database_ns: int, local_ns: int) -> None:
        """Learn what the database's clock showed when ours showed `local_ns`."""
        self._offset_ns = database_ns - local_ns
        self.follows = True

    def anew(self) -> "IdMaker":
        """Return a new maker for a forked child, where this one's lock may be held for ever."""
        return IdMaker(self.clock)

    def make(self, count: int) -> list[str]:
        """Return so many new ids as text: 48 bits of milliseconds, 12 of their fraction, 62 random ones each."""
        now = (self.clock() + self._offset_ns) * _PER_MS // 1_000_000
        with self._lock:
            first = max(now, self._last + 1)
            self._last = first + count - 1
        chance = secrets.token_bytes(8 * count).hex()
        ids: list[str] = []
        end = first + count
        while first < end:
            # Those of one millisecond have the same beginning.
            milliseconds, fraction = divmod(first, _PER_MS)
            some = min(end - first, _PER_MS - fraction)
            beginning = f"{milliseconds:012x}"
            beginning = f"{beginning[:8]}-{beginning[8:]}-7"
            places = range(16 * len(ids), 16 * (len(ids) + some), 16)
            ids += [
                f"{beginning}{part}-{_VARIANT[chance[n]]}{chance[n + 1 : n + 4]}-{chance[n + 4 : n + 16]}"
                for n, part in zip(places, _FRACTIONS[fraction : fraction + some], strict=True)
            ]
            first += some
        return ids


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a client may know of a job."""

    id: UUID
    kind: str
    queue: str
    state: str
    status: str
    result_text: str | None  # what its task returned, as JSON
    reason: str | None
    reason_detail: str | None
    progress: float | None
    progress_note: str | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    error_class: str | None = None  # of a dead job: the class of what its last attempt raised
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
    origin: str | None = None  # the namespace that it was submitted in; not known of what was just accepted
    differs: str | None = None  # of what was just submitted with a used key: which fields its job had otherwise


_SEEN = "select " + ", ".join(Seen._fields[: Seen._fields.index("origin")])
_ACCEPT_MANY = _SEEN + " from {}.accept_many_v1(%s::uuid[], %s)"
_ACCEPT_EACH = _SEEN + " from {}.accept_each_v1(%s::uuid[], %s)"
_STATUSES = _SEEN + ", origin from {}.statuses_v1(%s::uuid[])"


class Submitted(NamedTuple):
    """One job of many that is on record, now or before; `accept_many` returns the rest."""

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

    def enqueue(self, intent: Intent, *, id: str | None = None) -> Call[UUID]:  # noqa: A002 (the SQL argument's name)
        """Record one intent. With an id of ours, for our own connections: it may be repeated until it is answered."""
        args: tuple[object, ...]
        key = intent.idempotency_key
        notify = id is None  # on a connection of the caller's: only its commit knows when
        if intent.is_plain:
            args = (intent.kind, intent.payload, intent.queue, intent.priority, intent.max_attempts, id, notify)
            sql = _ENQUEUE_PLAIN
        else:
            args = (*intent.arguments(ARGUMENTS), id, notify)
            sql = _ENQUEUE if id is None or key is None else _ENQUEUE_BRIEFLY
        if id is None:
            return Call(filled(sql, self._prefix), args, uuid, invalid=InvalidJob)
        return self._recording(sql, args, uuid, (intent,), (id,), key)

    def enqueue_many(self, intents: Sequence[Intent], ids: Sequence[str] | None = None) -> Call[list[str]]:
        """Record many, all or none. With ids of ours, for our own connections."""
        if ids is None:
            return Call(
                filled(_ENQUEUE_MANY, self._prefix), (Intent.array(intents), True), _listed_ids, invalid=InvalidJob
            )
        if len({intent.head for intent in intents}) == 1 and intents[0].idempotency_key is None:  # only payloads differ
            payloads = f"[{','.join([intent.payload for intent in intents])}]"
            shared = (intents[0].head + "}", payloads, "{" + ",".join(ids) + "}", False)
            return self._recording(_ENQUEUE_BATCH, shared, lambda _: list(ids), intents, ids)
        keyed = any(intent.idempotency_key is not None for intent in intents)
        sql = _ENQUEUE_MANY_BRIEFLY if keyed else _ENQUEUE_MANY
        return self._recording(sql, (Intent.array(intents, ids), False), _listed_ids, intents, ids)

    def _recording(
        self, sql: str, args: tuple[object, ...], read: Callable[[Sequence[Row]], T], intents: Sequence[Intent],
        ids: Sequence[str], key: str | None = None,
    ) -> Call[T]:  # fmt: skip
        """Record intents with ids of ours, on our own connections."""
        return Call(
            filled(sql, self._prefix), args, read, repeatable=True, intents=intents, ids=ids, key=key, wakes=True,
            may_notify=True, invalid=InvalidJob,
        )  # fmt: skip

    def submit_many(
        self, jobs: str, *, all_or_none: bool = False, queues: list[str] | None = None, kinds: list[str] | None = None,
        durable: bool = True,
    ) -> Call[list[Submitted | Refused]]:  # fmt: skip
        """The first step of an API server: record many intents of many clients, each with an id of ours.

        Not `durable`: no client may learn of it before `accept_many`, which is.
        """
        args = (jobs, all_or_none, queues, kinds, durable)
        sql = filled(_SUBMIT_MANY, self._prefix)
        return Call(sql, args, _submitted, repeatable=True, divisible=True, invalid=InvalidJob)

    def submit_each(self, jobs: str, *, durable: bool = True) -> Call[list[Submitted | Refused]]:
        """The same one by one, for when `submit_many` was undone: a key that is in use holds up no other."""
        return Call(filled(_SUBMIT_EACH, self._prefix), (jobs, durable), _submitted, repeatable=True)

    def accept_many(self, ids: Sequence[UUID]) -> Call[list[Seen]]:
        """The second step: let them run, now or when their time comes. Returns what each is now."""
        sql, args = filled(_ACCEPT_MANY, self._prefix), (_array(ids), False)
        return Call(sql, args, _seen, repeatable=True, divisible=True, wakes=True)

    def accept_each(self, ids: Sequence[UUID]) -> Call[list[Seen]]:
        """The same one by one, for when `accept_many` was undone. Those whose row is in use are left out."""
        sql, args = filled(_ACCEPT_EACH, self._prefix), (_array(ids), False)
        return Call(sql, args, _seen, repeatable=True, wakes=True)

    def statuses(self, ids: Sequence[UUID]) -> Call[list[Seen]]:
        """What clients may see of these jobs, in no order; none for an unknown id."""
        return Call(filled(_STATUSES, self._prefix), (_array(ids),), _seen, repeatable=True)

    def status(self, job_id: UUID) -> Call[JobStatus | None]:
        """What a client may know of the job; None if there is none."""
        columns = columns_of(JobStatus, result_text="result::text").removesuffix(", decoder")
        read = lambda rows: JobStatus(*rows[0]) if rows else None  # noqa: E731
        return self._ask("status_v1", job_id, columns=columns, read=read)

    def notify(self, names: Sequence[str]) -> Call[None]:
        """Notify workers of these names, in a transaction that does not wait for the disk."""
        return Call(filled(_NOTIFY, self._prefix), (list(names),), nothing, repeatable=True)

    def clock(self) -> Call[int]:
        """The database's clock, in microseconds since the epoch."""
        return Call(_CLOCK, (), scalar, repeatable=True)


def uuid(rows: Sequence[Row]) -> UUID:
    """Return the only value, whatever the driver makes of a uuid."""
    value = rows[0][0]
    return value if type(value) is UUID else UUID(str(value))


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
