"""The calls of workers: claim, run, finish, and the upkeep between."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from leasehold.db.call import Call, Row
from leasehold.db.store.calls import Calls, array_of, nothing, scalar, texts

_TEXTS = {
    "claim": "select id::text, attempt, kind, queue, payload::text, retry_count, max_attempts, lease_seconds,"
    " priority, case when run_at > '-infinity' then date_part('epoch', claimed_at - run_at)::real else 0 end"
    " from {}.claim_v1(%s, %s::text[], %s::text[], %s, %s::uuid, %s::jsonb)",
    "claim_each": "select id::text, attempt, kind, queue, payload::text, retry_count, max_attempts, lease_seconds,"
    " priority, case when run_at > '-infinity' then date_part('epoch', claimed_at - run_at)::real else 0 end"
    " from {}.claim_each_v1(%s, %s::text[], %s::text[], %s, %s::uuid, %s::jsonb)",
    "renew_each": "select id::text, answer from {}.renew_each_v1(%s, %s::uuid[], %s::integer[], %s::uuid[], %s::real[],"
    " %s::text[])",
    "report_each": "select id::text, answer, state, detail from {}.report_each_v1(%s, %s::uuid[], %s::integer[],"
    " %s::uuid[], %s::text[])",
    "renew": "select id::text, answer from {}.renew_v1(%s, %s::uuid[], %s::integer[], %s::uuid[], %s::real[],"
    " %s::text[])",
    "add_logs": "select * from {}.add_logs_v1(%s, %s::uuid[], %s::integer[], %s::uuid[], %s::jsonb[])",
    "complete": "select count(*) from {}.complete_v1(%s, %s::uuid[], %s::integer[], %s::jsonb[], %s::uuid[])",
    "completed": "select c::text from {}.complete_v1(%s, %s::uuid[], %s::integer[], %s::jsonb[], %s::uuid[]) c",
    "complete_in": "select {}.complete_in_v1(cast(%s as text), cast(cast(%s as text) as uuid), cast(%s as integer),"
    " cast(cast(%s as text) as uuid), cast(cast(%s as text) as jsonb))",
    "fail_many": "select id::text, state from {}.fail_many_v1(%s, %s::jsonb)",
    "release": "select r::text from {}.release_v1(%s, %s::uuid[], %s::integer[], %s::uuid[]) r",
    "owned": "select id::text, attempt, claim_id::text from {}.owned_v1(%s)",
    "sweep": "select {}.sweep_v1(%s)",
    "promote": "select {}.promote_v1(%s)",
    "upkeep": "select swept, promoted, next_due from {}.upkeep_v1(%s, %s)",
    "next_due": "select {}.next_due_v1()",
    "start_worker": "select {}.start_worker_v1(%s, %s, %s, %s::text[], %s::text[], %s::double precision[], %s)",
    "stop_worker": "select {}.stop_worker_v1(%s)",
    "declare_tasks": "select {}.declare_tasks_v1(%s::jsonb)",
}


# Neither frozen nor compared by value, and ids as text: there is one of these for every job that is run, and each of
# those niceties costs as much as all else that is done for a job here.
@dataclass(slots=True, eq=False)
class Token:
    """What lets an attempt write: the job, its attempt number, and the claim that gave it."""

    id: str
    attempt: int
    claim_id: str


@dataclass(slots=True, eq=False)
class ClaimedJob(Token):
    """A job as a claim gives it. There is one object per attempt; it goes from the claim to the report."""

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


@dataclass(slots=True, frozen=True)
class Renewal:
    """What became of leases that were to be renewed, by job id. What is in neither set is lost."""

    renewed: set[str]
    busy: set[str]
    """Not renewed, because the row was locked at that moment: try again at once."""


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

    texts = _TEXTS

    def claim(
        self,
        worker: str,
        queues: Sequence[str] | None,
        kinds: Sequence[str],
        count: int,
        claim_id: UUID,
        *,
        lanes: str | None = None,
        each: bool = False,
    ) -> Call[list[ClaimedJob]]:
        """Take up to `count` jobs; with `lanes`, only those behind some places.

        With `each`, one by one, and those that cannot be taken are set aside: for when a claim was refused.
        """
        by = str(claim_id)
        return Call(
            self._sql["claim_each" if each else "claim"],
            (worker, array_of(tuple(queues)) if queues else None, array_of(tuple(kinds)), count, by, lanes),
            lambda rows: [ClaimedJob(id_, attempt, by, *rest) for id_, attempt, *rest in rows],
            repeatable=True,
        )

    def renew(
        self,
        worker: str,
        tokens: Sequence[Token],
        progress: Sequence[tuple[float, str] | None] = (),
        *,
        each: bool = False,
    ) -> Call[Renewal]:
        """Renew leases and note progress; waits for no lock. With `each`, one by one: for when that was refused."""
        fractions = [p and p[0] for p in progress] if any(progress) else None
        notes = [p and p[1] for p in progress] if any(progress) else None
        sql = self._sql["renew_each" if each else "renew"]
        return Call(sql, (worker, *_columns(tokens), fractions, notes), _renewal, repeatable=True)

    def add_logs(self, worker: str, tokens: Sequence[Token], lines: Sequence[str]) -> Call[None]:
        """Keep what attempts have said: for each token a JSON array of lines."""
        return Call(self._sql["add_logs"], (worker, *_columns(tokens), list(lines)), nothing)

    def complete(self, worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> Call[int]:
        """Report successes; gives how many count. If not all do, `completed` says which."""
        return Call(self._sql["complete"], _successes(worker, tokens, results), scalar, repeatable=True)

    def completed(self, worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> Call[set[str]]:
        """The same report, made or repeated; gives the ids that count."""
        return Call(self._sql["completed"], _successes(worker, tokens, results), texts, repeatable=True)

    def complete_in(self, worker: str, token: Token, result: str | None) -> Call[bool]:
        """Report one success, on any connection: everything goes as text, as in `enqueue`. Whether it counts."""
        args = (worker, token.id, token.attempt, token.claim_id, result)
        return Call(self._sql["complete_in"], args, scalar, repeatable=True)

    def fail_many(self, worker: str, failures: str) -> Call[dict[str, str]]:
        """Report attempts that did not succeed; gives the state of each job whose report counts."""
        return Call(
            self._sql["fail_many"], (worker, failures), lambda rows: {row[0]: row[1] for row in rows}, repeatable=True
        )

    def release(self, worker: str, tokens: Sequence[Token]) -> Call[set[str]]:
        """Give jobs back without a failure."""
        return Call(self._sql["release"], (worker, *_columns(tokens)), texts, repeatable=True)

    def report_each(self, worker: str, tokens: Sequence[Token], reports: Sequence[str]) -> Call[list[Reported]]:
        """Report outcomes one by one, as JSON texts: for when a report of many was refused."""
        return Call(
            self._sql["report_each"],
            (worker, *_columns(tokens), list(reports)),
            lambda rows: [Reported(*row) for row in rows],
            repeatable=True,
        )

    def owned(self, worker: str) -> Call[list[Token]]:
        """What the database thinks the worker is running."""
        return Call(self._sql["owned"], (worker,), lambda rows: [Token(*row) for row in rows], repeatable=True)

    def sweep(self, limit: int = 1000) -> Call[int]:
        """Requeue expired leases."""
        return Call(self._sql["sweep"], (limit,), scalar, repeatable=True)

    def promote(self, limit: int = 1000) -> Call[int]:
        """Make due jobs runnable."""
        return Call(self._sql["promote"], (limit,), scalar, repeatable=True)

    def upkeep(self, worker: str, limit: int = 1000) -> Call[tuple[int, int, float | None]]:
        """Sweep and promote; gives how many of each, and the seconds until there may be more to do."""
        return Call(
            self._sql["upkeep"], (limit, worker), lambda rows: (rows[0][0], rows[0][1], rows[0][2]), repeatable=True
        )

    def next_due(self) -> Call[float | None]:
        """Seconds until there is something to promote or to sweep."""
        return Call(self._sql["next_due"], (), scalar, repeatable=True)

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
        return Call(self._sql["start_worker"], args, nothing, repeatable=True)

    def declare_tasks(self, tasks: str) -> Call[None]:
        """Say what tasks declare: a JSON array of objects with kind, lease_seconds, queue, priority, max_attempts."""
        return Call(self._sql["declare_tasks"], (tasks,), nothing, repeatable=True)

    def stop_worker(self, worker: str) -> Call[None]:
        """Say that a worker is gone."""
        return Call(self._sql["stop_worker"], (worker,), nothing, repeatable=True)


def _renewal(rows: Sequence[Row]) -> Renewal:
    answers: dict[str, set[str]] = {"renewed": set(), "busy": set(), "lost": set()}
    for id_, answer in rows:
        answers[answer].add(id_)
    return Renewal(answers["renewed"], answers["busy"])


def _columns(tokens: Sequence[Token]) -> tuple[str, str, str]:
    """Ids, attempts, claim ids, each as the text of an array: a driver's own way with lists takes ten times as long."""
    return (
        f"{{{','.join([t.id for t in tokens])}}}",
        f"{{{','.join([str(t.attempt) for t in tokens])}}}",
        f"{{{','.join([t.claim_id for t in tokens])}}}",
    )


def _successes(worker: str, tokens: Sequence[Token], results: Sequence[str | None]) -> tuple[object, ...]:
    ids, attempts, claim_ids = _columns(tokens)
    values = list(results) if any(result is not None for result in results) else None
    return worker, ids, attempts, values, claim_ids
