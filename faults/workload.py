"""A small, fast workload straight at the SQL functions, to try mutants of them; logged as FORMAT.md says.

It knows what to ask for and nothing of what is right: whether the answers are is for the checker.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from faults.dump import dump
from faults.log import Log

LEASES: Final = {
    "crowd": 1.0, "limited": 30.0, "exclusive": 30.0, "later": 30.0, "wait": 30.0, "few": 30.0, "brief": 0.1,
    "held": 30.0, "tick": 0.1, "doomed": 30.0, "parked": 30.0,
}  # fmt: skip
"""Seconds by kind. Those of kind `stale` change on the way."""

LIMITS: Final = [{"scope": "kind", "name": "limited", "max": 2}]
SCHEDULES: Final = {"tick": "tick"}

Token = tuple[str, int]
"""A job's id and the attempt."""


_RENEW = "select id from renew(%s, %s::uuid[], %s) where answer = 'renewed'"


PATIENCE: Final = 20.0
"""Seconds that a caller waits for an expiry or a sweep. Only with a mutant does it not come."""


class Caller:
    """One connection that calls functions, and logs the calls and their answers."""

    def __init__(self, connection: psycopg.Connection[Any], log: Log, patience: float) -> None:
        self.connection = connection
        self.log = log
        self.patience = patience

    def rows(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """Run something that is not logged."""
        return self.connection.execute(query, args or None).fetchall()

    def enqueue(self, kind: str, key: str, **options: object) -> str | None:
        """Record an intent."""
        call = self.log.invoke("enqueue", kind=kind, key=key)
        named = "".join(f", {name} => %s" for name in options)
        query = f"select enqueue(%s, queue => %s, idempotency_key => %s{named})"
        found = self._ask(call, query, kind, kind, key, *options.values())
        if found is None:
            return None
        job = str(found[0][0])
        self.log.ok(call, job=job)
        return job

    def claim(
        self, worker: str, kind: str, count: int = 1, *, claim_id: str | None = None, **known: object
    ) -> list[Token]:
        """Take jobs of one kind."""
        claim_id = claim_id or str(uuid4())
        call = self.log.invoke("claim", worker=worker, claim_id=claim_id, count=count)
        query = "select id::text, attempt from claim(%s, queues => %s, count => %s, claim_id => %s::uuid)"
        found = self._ask(call, query, worker, [kind], count, claim_id)
        if found is None:
            return []
        self.log.ok(call, jobs=found, **{name: value() if callable(value) else value for name, value in known.items()})
        return [(job, attempt) for job, attempt in found]

    def claim_job(self, worker: str, job: str) -> bool:
        """Take one particular job."""
        claim_id = str(uuid4())
        call = self.log.invoke("claim", worker=worker, claim_id=claim_id, count=1)
        found = self._ask(call, "select claim_job(%s::uuid, %s, %s::uuid)", job, worker, claim_id)
        if found is None:
            return False
        self.log.ok(call)
        return bool(found[0][0])

    def heartbeat(self, worker: str, token: Token) -> bool:
        """Renew a lease."""
        return self._report("heartbeat", worker, token, _RENEW, [token[0]], [token[1]])

    def complete(self, worker: str, token: Token) -> bool:
        """Report success."""
        return self._report("complete", worker, token, "select complete(%s, %s::uuid[], %s)", [token[0]], [token[1]])

    def release(self, worker: str, token: Token) -> bool:
        """Give a job back."""
        return self._report("release", worker, token, "select release(%s, %s::uuid[], %s)", [token[0]], [token[1]])

    def fail(self, worker: str, token: Token, *, fatal: bool = False) -> bool:
        """Report a failure; the job may run again at once."""
        query = "select fail(%s, %s::uuid, %s, retry_after => 0, fatal => %s)"
        return self._report("fail", worker, token, query, *token, fatal)

    def change(self, op: str, job: str) -> bool:
        """Cancel or retry, as a person does."""
        call = self.log.invoke(op, job=job)
        found = self._ask(call, {"cancel": "select cancel(%s::uuid)", "retry": "select retry(%s::uuid)"}[op], job)
        if found is not None:
            self.log.ok(call, accepted=found[0][0])
        return found is not None and bool(found[0][0])

    def upkeep(self) -> None:
        """Sweep and promote."""
        self._quietly("select * from upkeep()")

    def sweep(self) -> bool:
        """Sweep only; False: the database refused, as mutants do."""
        return self._quietly("select sweep()")

    def lease(self, kind: str, seconds: float) -> None:
        """Let leases of a kind last so long from now on."""
        self._quietly("select declare_kinds(%s, %s)", [kind], [seconds])

    def wait_for_expiry(self, job: str) -> None:
        """Wait until the job's lease has expired by the database's clock, or it has none."""
        query = "select lease_expires_at <= clock() from jobs where id = %s::uuid and state = 'running'"
        deadline = time.monotonic() + self.patience
        while self.rows(query, job) == [(False,)] and time.monotonic() < deadline:
            time.sleep(0.02)

    def wait_until_swept(self, job: str) -> None:
        """Sweep until the job is no longer running; another session may do the same."""
        deadline = time.monotonic() + self.patience
        self.wait_for_expiry(job)
        while self.rows("select from jobs where id = %s::uuid and state = 'running'", job):
            if not self.sweep() or time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def _report(self, op: str, worker: str, token: Token, query: str, *args: object) -> bool:
        call = self.log.invoke(op, worker=worker, job=token[0], attempt=token[1])
        found = self._ask(call, query, worker, *args)
        accepted = bool(found and found[0][0] is not None)
        if found is not None:
            self.log.ok(call, accepted=accepted)
        return accepted

    def _ask(self, call: str, query: str, *args: object) -> list[tuple[Any, ...]] | None:
        """The answer; None, and logged, if the database refused. Mutants do raise errors."""
        try:
            return self.connection.execute(query, args).fetchall()
        except psycopg.Error as error:
            self.log.fail(call, error=error.sqlstate)
            return None

    def _quietly(self, query: str, *args: object) -> bool:
        try:
            self.connection.execute(query, args or None)
        except psycopg.Error as error:
            self.log.note("refused", query=query, error=error.sqlstate)
            return False
        return True


class Crew:
    """The callers of one run, and its chance."""

    def __init__(self, dsn: str, log: Log, seed: int, patience: float) -> None:
        self._dsn = dsn
        self.log = log
        self.seed = seed
        self.patience = patience
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def caller(self, name: str = "") -> Caller:
        """A new connection."""
        options = "-c search_path=leasehold -c deadlock_timeout=100ms -c lock_timeout=20s"
        connection = psycopg.connect(self._dsn, autocommit=True, options=options, application_name=name or "workload")
        with self._lock:
            self._stack.enter_context(connection)
        return Caller(connection, self.log, self.patience)

    def chance(self, name: str) -> random.Random:
        """A source of chance of one's own: the same in every run with the same seed."""
        return random.Random(f"{self.seed} {name}")  # noqa: S311 (to be repeated, not to be secret)

    def together(self, size: int, act: Callable[[Caller, int], None]) -> None:
        """Let several callers act at the same time."""
        callers = [self.caller() for _ in range(size)]
        barrier = threading.Barrier(size)

        def one(place: int) -> None:
            barrier.wait(30)
            act(callers[place], place)

        with ThreadPoolExecutor(size) as pool:
            for future in [pool.submit(one, place) for place in range(size)]:
                future.result()

    def close(self) -> None:
        """Close all connections."""
        self._stack.close()


Part = Callable[[Crew], None]


def run(
    dsn: str, directory: str | Path, waves: Sequence[Sequence[Part]], *, seed: int = 1, patience: float = PATIENCE
) -> None:
    """Run the parts of each wave at the same time, wave after wave; bring everything to its end; dump it."""
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    with Log(home / "workload.jsonl", "workload") as log:
        crew = Crew(dsn, log, seed, patience)
        try:
            chief = crew.caller()
            chief.rows("select history(true)")
            chief.rows("select declare_kinds(%s, %s)", list(LEASES), list(LEASES.values()))
            for limit in LIMITS:
                chief.rows("select set_limit(%s, %s, %s)", limit["scope"], limit["name"], limit["max"])
            log.note("expect", leases=LEASES, limits=LIMITS, schedules=SCHEDULES, reports=True)
            for parts in waves:
                with ThreadPoolExecutor(len(parts)) as pool:
                    for future in [pool.submit(part, crew) for part in parts]:
                        future.result()
            log.note("settle")
            drain(chief)
            dump(chief.connection, home)
        finally:
            crew.close()


def drain(caller: Caller) -> None:
    """Complete whatever can be claimed, until nothing moves: what then has not ended never would."""
    deadline = time.monotonic() + 30
    seen: list[tuple[Any, ...]] = []
    still = 0
    while still < 3 and time.monotonic() < deadline:
        caller.upkeep()
        for (kind,) in caller.rows("select distinct kind from jobs where state = 'queued'"):
            for token in caller.claim("drain", kind, 10):
                caller.complete("drain", token)
        _let_go(caller)
        # Only what waits for a time that is near is worth waiting for.
        (waits,) = caller.rows(
            "select exists (select from jobs where state in ('created', 'retry') and run_at between clock() and clock()"
            " + interval '5 seconds' or state = 'running' and lease_expires_at between clock() and clock() + interval"
            " '2 seconds')"
        )[0]
        now = caller.rows("select state, count(*), sum(attempt) from jobs group by state order by state")
        still = 0 if waits or now != seen else still + 1
        seen = now
        if waits:
            time.sleep(0.02)


def _let_go(caller: Caller) -> None:
    """Those who hold leases give back what they hold: the run is over."""
    query = "select id::text, attempt, lease_owner from jobs where state = 'running' and lease_expires_at > clock()"
    for job, attempt, owner in caller.rows(query):
        caller.release(owner, (job, attempt))
