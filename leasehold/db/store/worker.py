"""The calls of workers: claim, run, finish, and upkeep."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, array_of, filled, nothing, scalar

_CLAIM = (
    "select id::text, attempt, kind, queue, payload::text, retry_count, max_attempts, lease_seconds, priority,"
    " case when run_at > '-infinity' then date_part('epoch', claimed_at - run_at)::real else 0 end"
    " from {}.claim_v1(%s, %s, %s, %s, %s, %s)"
)
_CLAIM_EACH = _CLAIM.replace("claim_v1", "claim_each_v1")
# With casts: the driver's arrays of numbers and JSON have other types.
# Texts of users are sent as binary arrays (%b): in a text array the driver escapes each by a regular expression, which
# holds up the event loop for seconds when a text is long and full of quotes.
_RENEW = (
    "select id::text, answer from {}.renew_v1"
    "(%s, %s::uuid[], %s::integer[], %s::uuid[], %s::real[], %b::text[], %s::double precision[])"
)
_RENEW_EACH = _RENEW.replace("renew_v1", "renew_each_v1")
_COMPLETE = "select count(*) from {}.complete_v1(%s, %s::uuid[], %s::integer[], %b::jsonb[], %s::uuid[]) c"
_COMPLETED = _COMPLETE.replace("count(*)", "c::text")
_COMPLETE_IN = (
    "select {}.complete_in_v1(cast(%s as text), cast(cast(%s as text) as uuid), cast(%s as integer),"
    " cast(cast(%s as text) as uuid), cast(cast(%s as text) as jsonb))"
)
_ADD_LOGS = "select * from {}.add_logs_v1(%s, %s::uuid[], %s::integer[], %s::uuid[], %b::jsonb[])"
_REPORT_EACH = (
    "select id::text, answer, state, detail from {}.report_each_v1"
    "(%s, %s::uuid[], %s::integer[], %s::uuid[], %b::text[])"
)


# Neither frozen nor compared by value, and ids as text: there is one object for every job that is run, and each of
# these features costs as much as everything else that is done for a job here.
@dataclass(slots=True, eq=False)
class Token:
    """What lets an attempt write: the job, its attempt number, and the claim that took it."""

    id: str
    attempt: int
    claim_id: str


@dataclass(slots=True, eq=False)
class ClaimedJob(Token):
    """A job as a claim returns it. There is one object per attempt; it goes from the claim to the report."""

    kind: str
    queue: str
    payload: str
    retry_count: int
    max_attempts: int
    lease_seconds: float
    priority: int
    waited: float = 0.0
    """Seconds from when it was to run until it was claimed."""
    ran: float = 0.0
    """Seconds that its task took, once it has ended."""
    journal_entry: int = -1
    """Its offset in the worker's journal, if it has an entry there."""
    completes: bool = False
    """Whether its task has called `complete_in`: whether the job succeeds is then its own transaction's to decide."""


@dataclass(slots=True, frozen=True)
class Renewal:
    """What became of leases that were to be renewed, by job id. What is in neither set is lost."""

    renewed: set[str]
    busy: set[str]  # not renewed, because the row was locked at that moment: try again at once


@dataclass(slots=True, frozen=True)
class Reported:
    """What became of one report."""

    id: str
    answer: str
    """`done`, `lost`, `busy` (the row was locked, nothing was written) or `refused` (it cannot be written)."""
    state: str | None
    """What the job is in now, if something was written."""
    detail: str | None


class WorkerCalls(Calls):
    """Claim, run, finish."""

    def claim(
        self, worker: str, queues: Sequence[str] | None, kinds: Sequence[str], count: int, claim_id: UUID, *,
        lanes: str | None = None, each: bool = False,
    ) -> Call[list[ClaimedJob]]:  # fmt: skip
        """Take up to `count` jobs; with `lanes`, only those behind some positions.

        With `each`, one by one, and jobs that cannot be taken are set aside: for when a claim was refused.
        """
        by = str(claim_id)
        args = (worker, array_of(tuple(queues)) if queues else None, array_of(tuple(kinds)), count, by, lanes)
        read = lambda rows: [ClaimedJob(id_, attempt, by, *rest) for id_, attempt, *rest in rows]  # noqa: E731
        return Call(filled(_CLAIM_EACH if each else _CLAIM, self._prefix), args, read, repeatable=True)

    def renew(
        self, worker: str, jobs: Sequence[ClaimedJob], progress: Sequence[tuple[float, str] | None] = (), *,
        each: bool = False,
    ) -> Call[Renewal]:  # fmt: skip
        """Renew leases, each by the length of its claim, and record progress; waits for no lock. `each`: one by one."""
        fractions = [p and p[0] for p in progress] if any(progress) else None
        notes = [p and p[1] for p in progress] if any(progress) else None
        sql = filled(_RENEW_EACH if each else _RENEW, self._prefix)
        leases = f"{{{','.join([str(job.lease_seconds) for job in jobs])}}}"
        return Call(sql, (worker, *_columns(jobs), fractions, notes, leases), _renewal, repeatable=True)

    def add_logs(self, worker: str, tokens: Sequence[Token], lines: Sequence[str]) -> Call[set[str]]:
        """Store the log lines of attempts, for each token a JSON array of lines; returns the ids of those stored."""
        return Call(filled(_ADD_LOGS, self._prefix), (worker, *_columns(tokens), list(lines)), _ids)

    def complete(self, worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> Call[int]:
        """Report successes; returns how many count. If not all do, `completed` says which."""
        read = lambda rows: rows[0][0]  # noqa: E731
        return Call(filled(_COMPLETE, self._prefix), _successes(worker, tokens, results), read, repeatable=True)

    def completed(self, worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> Call[set[str]]:
        """Make or repeat the same report; returns the ids that count."""
        return Call(filled(_COMPLETED, self._prefix), _successes(worker, tokens, results), _ids, repeatable=True)

    def complete_in(self, worker: str, token: Token, result: str | None) -> Call[bool]:
        """Report one success on any connection: every argument is text, as in `enqueue`. Returns whether it counts."""
        args = (worker, token.id, token.attempt, token.claim_id, result)
        return Call(filled(_COMPLETE_IN, self._prefix), args, scalar, repeatable=True)

    def fail_many(self, worker: str, failures: str) -> Call[dict[str, str]]:
        """Report attempts that did not succeed; returns the state of each job whose report counts."""
        read = lambda rows: {row[0]: row[1] for row in rows}  # noqa: E731
        return self._ask("fail_many_v1", worker, failures, columns="id::text, state", read=read)

    def release(self, worker: str, tokens: Sequence[Token]) -> Call[set[str]]:
        """Return jobs to the queue without a failure."""
        return self._ask("release_v1", worker, *_columns(tokens), columns="release_v1::text", read=_ids)

    def report_each(self, worker: str, tokens: Sequence[Token], reports: Sequence[str]) -> Call[list[Reported]]:
        """Report outcomes one by one, as JSON texts: for when a report of many was refused."""
        args = (worker, *_columns(tokens), list(reports))
        read = lambda rows: [Reported(*row) for row in rows]  # noqa: E731
        return Call(filled(_REPORT_EACH, self._prefix), args, read, repeatable=True)

    def owned(self, worker: str) -> Call[list[Token]]:
        """Return the jobs that the worker owns according to the database."""
        return self._list(Token, "owned_v1", worker, columns="id::text, attempt, claim_id::text")

    def upkeep(self, worker: str, limit: int = 1000) -> Call[tuple[int, int, float | None]]:
        """Sweep and promote; returns how many of each, and the seconds until there may be more to do."""
        columns = "swept, promoted, next_due"
        return self._row(lambda *row: row, "upkeep_v1", limit, worker, columns=columns)

    def start_worker(
        self, worker: str, *, host: str, pid: int, queues: Sequence[str] | None, kinds: Sequence[str], slots: int
    ) -> Call[None]:
        """Register a worker; `declare_tasks` stores the leases of its kinds."""
        args = (worker, host, pid, list(queues) if queues else None, list(kinds), None, slots)
        return self._ask("start_worker_v1", *args, read=nothing)

    def declare_tasks(self, tasks: str) -> Call[None]:
        """Store what tasks declare: a JSON array of objects with kind, lease_seconds, queue, priority, max_attempts."""
        return self._ask("declare_tasks_v1", tasks, read=nothing)

    def stop_worker(self, worker: str) -> Call[None]:
        """Record that a worker has stopped."""
        return self._ask("stop_worker_v1", worker, read=nothing)


def _ids(rows: Sequence[Row]) -> set[str]:
    return {row[0] for row in rows}


def _renewal(rows: Sequence[Row]) -> Renewal:
    return Renewal(*({id_ for id_, answer in rows if answer == wanted} for wanted in ("renewed", "busy")))


def _columns(tokens: Sequence[Token]) -> tuple[str, str, str]:
    """Ids, attempts, claim ids, each as the text of an array: the driver takes ten times as long for a list."""
    return (
        f"{{{','.join([t.id for t in tokens])}}}",
        f"{{{','.join([str(t.attempt) for t in tokens])}}}",
        f"{{{','.join([t.claim_id for t in tokens])}}}",
    )


def _successes(worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> tuple[object, ...]:
    ids, attempts, claim_ids = _columns(tokens)
    values = list(results) if any(result is not None for result in results) else None
    return worker, ids, attempts, values, claim_ids
