"""One method per SQL function. Each gives the call; nothing here runs anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from leasehold.config import checked_schema
from leasehold.db.call import Call, Row
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
    "claim": "select id, kind, queue, payload::text, attempt, retry_count, max_attempts, priority, lease_seconds,"
    " run_at, claimed_at from {}.claim_v1(%s, %s::text[], %s::text[], %s, %s)",
    "heartbeat": "select * from {}.heartbeat_v1(%s, %s::uuid[], %s::integer[], %s::uuid[], %s::real[], %s::text[])",
    "add_logs": "select * from {}.add_logs_v1(%s, %s::uuid[], %s::integer[], %s::uuid[], %s::jsonb[])",
    "complete": "select * from {}.complete_v1(%s, %s::uuid[], %s::integer[], %s::jsonb[], %s::uuid[])",
    "complete_in": "select * from {}.complete_v1(cast(%s as text), cast(array[cast(%s as text)] as uuid[]),"
    " array[cast(%s as integer)], cast(array[cast(%s as text)] as jsonb[]), cast(array[cast(%s as text)] as uuid[]))",
    "fail_many": "select * from {}.fail_many_v1(%s, %s::jsonb)",
    "release": "select * from {}.release_v1(%s, %s::uuid[], %s::integer[], %s::uuid[])",
    "owned": "select id, attempt, claim_id from {}.owned_v1(%s)",
    "sweep": "select {}.sweep_v1(%s)",
    "promote": "select {}.promote_v1(%s)",
    "upkeep": "select swept, promoted, next_due from {}.upkeep_v1(%s, %s)",
    "explain": "select reason, detail, blocker, until from {}.explain_v1(%s)",
    "hint": "select {}.hint_v1(%s::text[])",
    "next_due": "select {}.next_due_v1()",
    "cancel": "select {}.cancel_v1(%s, %s)",
    "retry": "select {}.retry_v1(%s)",
    "set_limit": "select {}.set_limit_v1(%s, %s, %s)",
    "drop_limit": "select {}.drop_limit_v1(%s, %s)",
    "start_worker": "select {}.start_worker_v1(%s, %s, %s, %s::text[], %s::text[], %s::double precision[], %s)",
    "stop_worker": "select {}.stop_worker_v1(%s)",
    "counts": "select state, jobs, capped from {}.counts_v1(%s)",
    "clock": "select cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)",
}


@dataclass(frozen=True, slots=True)
class Token:
    """What lets an attempt write: the job, its attempt number, and the claim that gave it."""

    id: UUID
    attempt: int
    claim_id: UUID


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job as a claim gives it."""

    id: UUID
    kind: str
    queue: str
    payload: str
    attempt: int
    retry_count: int
    max_attempts: int
    priority: int
    lease_seconds: float
    run_at: datetime
    claimed_at: datetime
    claim_id: UUID

    @property
    def token(self) -> Token:
        """The right to write for this attempt."""
        return Token(self.id, self.attempt, self.claim_id)


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


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a job is not running."""

    reason: str
    """`run_at`, `backoff`, `exclusive_key`, `limit`, `no_worker_for_kind`, `no_worker_for_queue`, …"""

    detail: str
    """The same in words."""

    blocker: UUID | None
    """The job that stands in the way."""

    until: datetime | None
    """When it will be over, where that is known."""


class Store:
    """The SQL API of one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = checked_schema(schema)
        prefix = sql.Identifier(schema)
        self._sql = {name: sql.SQL(text).format(prefix).as_string(None) for name, text in _TEXTS.items()}

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
            _uuid,
            repeatable=id is not None,
        )

    def enqueue_many(
        self, intents: Sequence[Intent], ids: Sequence[UUID] | None = None, *, notify: bool = True
    ) -> Call[list[UUID]]:
        """Record many, all or none."""
        args = (Intent.array(intents, ids), notify)
        return Call(self._sql["enqueue_many"], args, _uuids, repeatable=ids is not None)

    def status(self, job_id: UUID) -> Call[JobStatus | None]:
        """What a client may know of the job; None if there is none."""
        return Call(
            self._sql["status"],
            (job_id,),
            lambda rows: JobStatus(*rows[0]) if rows else None,
            repeatable=True,
        )

    def claim(
        self, worker: str, queues: Sequence[str] | None, kinds: Sequence[str], count: int, claim_id: UUID
    ) -> Call[list[ClaimedJob]]:
        """Take up to `count` jobs."""
        return Call(
            self._sql["claim"],
            (worker, list(queues) if queues else None, list(kinds), count, claim_id),
            lambda rows: [ClaimedJob(*row, claim_id) for row in rows],  # type: ignore[call-arg] # the columns are its fields
            repeatable=True,
        )

    def heartbeat(
        self, worker: str, tokens: Sequence[Token], progress: Sequence[tuple[float, str] | None] = ()
    ) -> Call[set[UUID]]:
        """Renew leases and note progress; gives those still held."""
        fractions = [p and p[0] for p in progress] if any(progress) else None
        notes = [p and p[1] for p in progress] if any(progress) else None
        return Call(self._sql["heartbeat"], (worker, *_columns(tokens), fractions, notes), _uuid_set, repeatable=True)

    def add_logs(self, worker: str, tokens: Sequence[Token], lines: Sequence[str]) -> Call[set[UUID]]:
        """Keep what attempts have said: for each token a JSON array of lines."""
        return Call(self._sql["add_logs"], (worker, *_columns(tokens), list(lines)), _uuid_set)

    def complete(self, worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> Call[set[UUID]]:
        """Report successes; gives those that count."""
        ids, attempts, claim_ids = _columns(tokens)
        values = list(results) if any(result is not None for result in results) else None
        return Call(self._sql["complete"], (worker, ids, attempts, values, claim_ids), _uuid_set, repeatable=True)

    def complete_in(self, worker: str, token: Token, result: str | None) -> Call[set[UUID]]:
        """Report one success, on any connection: everything goes as text, as in `enqueue`."""
        args = (worker, str(token.id), token.attempt, result, str(token.claim_id))
        return Call(self._sql["complete_in"], args, lambda rows: set(_uuids(rows)), repeatable=True)

    def fail_many(self, worker: str, failures: str) -> Call[dict[UUID, str]]:
        """Report attempts that did not succeed; gives the state of each job whose report counts."""
        return Call(
            self._sql["fail_many"], (worker, failures), lambda rows: {row[0]: row[1] for row in rows}, repeatable=True
        )

    def release(self, worker: str, tokens: Sequence[Token]) -> Call[set[UUID]]:
        """Give jobs back without a failure."""
        return Call(self._sql["release"], (worker, *_columns(tokens)), _uuid_set, repeatable=True)

    def owned(self, worker: str) -> Call[list[Token]]:
        """What the database thinks the worker is running."""
        return Call(self._sql["owned"], (worker,), lambda rows: [Token(*row) for row in rows], repeatable=True)

    def sweep(self, limit: int = 1000) -> Call[int]:
        """Requeue expired leases."""
        return Call(self._sql["sweep"], (limit,), _scalar, repeatable=True)

    def promote(self, limit: int = 1000) -> Call[int]:
        """Make due jobs runnable."""
        return Call(self._sql["promote"], (limit,), _scalar, repeatable=True)

    def upkeep(self, worker: str, limit: int = 1000) -> Call[tuple[int, int, float | None]]:
        """Sweep and promote; gives how many of each, and the seconds until there may be more to do."""
        return Call(
            self._sql["upkeep"], (limit, worker), lambda rows: (rows[0][0], rows[0][1], rows[0][2]), repeatable=True
        )

    def explain(self, job_id: UUID) -> Call[list[Obstacle]]:
        """Why the job is not running: nothing, if it may be taken any moment."""
        return Call(self._sql["explain"], (job_id,), lambda rows: [Obstacle(*row) for row in rows], repeatable=True)

    def hint(self, names: Sequence[str]) -> Call[None]:
        """Say that these queues have work."""
        return Call(self._sql["hint"], (list(names),), _nothing, repeatable=True)

    def next_due(self) -> Call[float | None]:
        """Seconds until there is something to promote or to sweep."""
        return Call(self._sql["next_due"], (), _scalar, repeatable=True)

    def cancel(self, job_id: UUID, why: str | None = None) -> Call[bool]:
        """Stop a job for good."""
        return Call(self._sql["cancel"], (job_id, why), _scalar, repeatable=True)

    def retry(self, job_id: UUID) -> Call[bool]:
        """Give a dead job another chance."""
        return Call(self._sql["retry"], (job_id,), _scalar)

    def set_limit(self, scope: str, name: str, max_running: int) -> Call[None]:
        """Let at most `max_running` jobs run: in all, of a queue, of a kind, of the keys that begin with a prefix."""
        return Call(self._sql["set_limit"], (scope, name, max_running), _nothing, repeatable=True)

    def drop_limit(self, scope: str, name: str) -> Call[bool]:
        """Take a limit away; False: there was none."""
        return Call(self._sql["drop_limit"], (scope, name), _scalar, repeatable=True)

    def start_worker(
        self,
        worker: str,
        *,
        host: str,
        pid: int,
        queues: Sequence[str] | None,
        leases: dict[str, float],
        slots: int,
    ) -> Call[None]:
        """Announce a worker and what its tasks declare."""
        args = (
            worker,
            host,
            pid,
            list(queues) if queues else None,
            list(leases),
            list(leases.values()),
            slots,
        )
        return Call(self._sql["start_worker"], args, _nothing, repeatable=True)

    def stop_worker(self, worker: str) -> Call[None]:
        """Say that a worker is gone."""
        return Call(self._sql["stop_worker"], (worker,), _nothing, repeatable=True)

    def counts(self, cap: int = 10_000) -> Call[dict[str, tuple[int, bool]]]:
        """Jobs by state, counted up to `cap`; True: there are more."""
        return Call(self._sql["counts"], (cap,), _counts, repeatable=True)

    def clock(self) -> Call[int]:
        """The database's clock, in microseconds since the epoch."""
        return Call(self._sql["clock"], (), _scalar, repeatable=True)


def _columns(tokens: Sequence[Token]) -> tuple[list[UUID], list[int], list[UUID]]:
    return [t.id for t in tokens], [t.attempt for t in tokens], [t.claim_id for t in tokens]


def _scalar(rows: Sequence[Row]) -> Any:
    return rows[0][0]


def _nothing(rows: Sequence[Row]) -> None:  # noqa: ARG001
    return None


def _uuid(rows: Sequence[Row]) -> UUID:
    return UUID(str(rows[0][0]))


def _uuids(rows: Sequence[Row]) -> list[UUID]:
    return [UUID(str(row[0])) for row in rows]


def _uuid_set(rows: Sequence[Row]) -> set[UUID]:
    return {row[0] for row in rows}


def _counts(rows: Sequence[Row]) -> dict[str, tuple[int, bool]]:
    return {state: (jobs, capped) for state, jobs, capped in rows}
