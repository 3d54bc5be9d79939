"""What the cells of a matrix share: one PostgreSQL, real workers, an API server, innocents, and hands for what they do."""

import functools
import json
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import Composable

from faults.fleet import Member
from faults.run import Run
from faults.waiting import until
from leasehold.tokens import SCOPES, make_token

APP: Final = "faults.matrix.tasks:app"
BOUND: Final = 20.0
"""Seconds within which everything that is not to be disturbed has happened, on a busy machine."""

LONG: Final = 120.0
"""Seconds after which what hangs is seen to hang, on a machine that has much else to do."""

Job = Mapping[str, Any]


class World:
    """One server and its fleet, for many cells."""

    def __init__(
        self,
        run: Run,
        *options: str,
        workers: int = 2,
        slots: int = 20,
        every: float | None = 1.0,
        ticks: int = 1,
        app: str = APP,
    ) -> None:
        self.run = run
        self.server = run.serve()
        env = {"FAULTS_EVERY": str(every), "FAULTS_TICKS": str(ticks)} if every else {}
        self.env = env
        self.workers = [
            run.fleet.worker(f"worker-{n}", self.server.dsn, *options, slots=slots, app=app, **env).start()
            for n in range(workers)
        ]
        self.sql = self.connect()
        self.pool = ThreadPoolExecutor(24, thread_name_prefix="matrix")
        self.innocents: set[str] = set()
        """Jobs that nothing may disturb: at the end each has succeeded, at its first attempt."""
        self.held: list[str] = []
        """Innocents whose leases have to be renewed all the while."""
        self._guard = threading.Lock()
        run.stack.callback(self.close)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A superuser's connection whose search_path is our schema."""
        return psycopg.connect(
            self.server.embedded.dsn("faults"),
            autocommit=True,
            options="-c search_path=leasehold -c statement_timeout=20s",
            **options,
        )

    def close(self) -> None:
        """Let go of the connections; the processes are the run's."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.sql.close()

    def serve(self, dsn: str | None = None, name: str = "api") -> Member:
        """An API server that answers."""
        self.api = self.run.fleet.server(name, dsn or self.server.dsn).start().ready()
        return self.api

    @functools.cached_property
    def token(self) -> str:
        """For the API: with one it is the same to it whether a cell makes others."""
        return self.new_token()

    def new_token(self) -> str:
        """One that no API server has seen yet."""
        made = make_token(uuid4())
        self.rows("select create_token(%s, 'matrix', %s, %s)", made.id, made.hash(), list(SCOPES))
        return made.reveal()

    # -- asking

    def rows(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """The rows of a query; from any thread."""
        with self._guard:
            cursor = self.sql.execute(query, args or None)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def change(self, statement: Composable) -> None:
        """Run a statement that was put together; from any thread."""
        with self._guard:
            self.sql.execute(statement)

    def value(self, query: str, *args: object) -> Any:
        """The first value of the first row."""
        found = self.rows(query, *args)
        return found[0][0] if found else None

    def jobs(self, ids: Iterable[str]) -> dict[str, Job]:
        """These jobs, as they are."""
        with self._guard, self.sql.cursor(row_factory=dict_row) as cursor:
            cursor.execute(
                "select id::text, kind, queue, state::text, attempt, retry_count, lease_owner, reason, parked,"
                " extract(epoch from lease_expires_at)::float8 as expires from jobs where id = any(%s::uuid[])",
                [list(ids)],
            )
            return {row["id"]: row for row in cursor}

    # -- jobs

    def enqueue(
        self, kind: str = "quick", payload: Mapping[str, Any] | None = None, *, connection: Any = None, **options: Any
    ) -> str:
        """One job, by the SQL function, with a key of its own."""
        key = str(options.pop("idempotency_key", uuid4()))
        call = self.run.log.invoke("enqueue", key=key, kind=kind)
        named = "".join(f", {name} => %s" for name in options)
        query = f"select enqueue(%s, %s::text::jsonb, idempotency_key => %s{named})::text"
        args = (kind, json.dumps(payload or {}), key, *options.values())
        row = connection.execute(query, args).fetchone() if connection is not None else self.rows(query, *args)[0]
        self.run.log.ok(call, job=row[0])
        return str(row[0])

    def made(self, job: str, kind: str = "victim") -> None:
        """Another program has made this job: the checker has to know."""
        self.run.log.ok(self.run.log.invoke("enqueue", job=job, kind=kind), job=job)

    def innocent(self, kind: str = "quick", payload: Mapping[str, Any] | None = None, **options: Any) -> str:
        """A job that nothing may disturb."""
        job = self.enqueue(kind, payload, **options)
        self.innocents.add(job)
        return job

    def post(
        self, kind: str = "quick", *, key: str | None = None, url: str = "", token: str = "", within: float = BOUND
    ) -> str:
        """One job over HTTP, an innocent unless it has a given key; raises what the server or the network says."""
        chosen, key = key, key or str(uuid4())
        call = self.run.log.invoke("enqueue", key=key, kind=kind)
        request = urllib.request.Request(  # noqa: S310 (our own server)
            f"{url or self.api.url}/jobs", json.dumps({"jobType": kind, "payload": {}}).encode(), method="POST",
            headers={"Content-Type": "application/json", "Idempotency-Key": key, "Authorization": f"Bearer {token or self.token}"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=within) as answer:  # noqa: S310 (our own server)
            job = str(json.load(answer)["jobId"])
        self.run.log.ok(call, job=job)
        if chosen is None:
            self.innocents.add(job)
        return job

    def get(self, url: str, *, token: str = "", within: float = BOUND) -> bytes:
        """What the API answers; raises what it refuses."""
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token or self.token}"})  # noqa: S310 (our own server)
        with urllib.request.urlopen(request, timeout=within) as answer:  # noqa: S310 (our own server)
            return bytes(answer.read())

    def keep_held(self, count: int, *, everywhere: bool = False) -> None:
        """See to it that so many innocents run until `let_go`: their leases have to be renewed all the while.

        `everywhere` adds jobs until each worker runs one: that a worker renews no lease is seen only at its own.
        """
        running = self.jobs(self.held)
        self.held = [job for job in self.held if running[job]["state"] == "running"]
        owners = self._hold(count - len(self.held))
        while everywhere and len(owners) < len(self.workers):
            owners = self._hold(1)

    def _hold(self, more: int) -> set[str]:
        """Add so many innocents that run until `let_go`, and return the workers that run all of them."""
        self.held += [self.innocent("hold", {"until": "held"}) for _ in range(more)]
        held = self.held
        until(lambda: all(job["state"] == "running" for job in self.jobs(held).values()), "these jobs are held")
        return {job["lease_owner"] for job in self.jobs(held).values()}

    def forgive(self) -> None:
        """Those that were charged have been reported once: that is enough."""
        found = self.jobs(self.innocents)
        self.innocents -= {job for job, row in found.items() if row["retry_count"] > 0}

    def let_go(self, name: str = "held") -> None:
        """Let the held jobs end."""
        (self.run.history / name).touch()

    def orphan(self, kind: str = "quick") -> str:
        """A job whose worker is gone and whose lease has expired: to be swept and run again."""
        owner = f"gone:{uuid4().hex[:8]}"
        job = self.enqueue(kind, queue=f"{owner}", max_attempts=5)
        if self.rows("select id from claim(%s, queues => %s, count => 1, claim_id => %s)", owner, [owner], uuid4()):
            self.rows("update jobs set lease_expires_at = clock() - interval '1 ms' where id = %s::uuid", job)
        return job

    def settle(self) -> None:
        """Wait until every job has ended. What was submitted and never answered is cancelled."""
        self.rows("select cancel(id) from jobs where state = 'created' and not accepted")
        self.run.settle(within=60)
        left = self.rows("select distinct kind, state::text from jobs where state not in ('success', 'dead')")
        self.run.check(not left, f"left: {left[:5]}")

    # -- waiting

    def ended(self, jobs: Sequence[str], *, within: float = BOUND) -> str:
        """Wait until these have succeeded; else which have not, and how they are."""
        deadline = time.monotonic() + within
        while True:
            left = [job for job in self.jobs(jobs).values() if job["state"] != "success"]
            if not left:
                return ""
            if time.monotonic() > deadline or any(job["state"] == "dead" for job in left):
                return describe(left)
            time.sleep(0.03)

    def charged(self, jobs: Iterable[str] | None = None) -> str:
        """Which innocents were charged an attempt. To be given back unfinished and claimed again costs none."""
        found = self.jobs(self.innocents if jobs is None else jobs).values()
        guilty = [job for job in found if job["retry_count"] > 0]
        return f"innocents were charged: {describe(guilty)}" if guilty else ""

    def untold(self) -> str:
        """Which leases a living worker lost without a line in its log. That of a job which a session kept locked may be."""
        lost = self.rows(
            "select a.job_id::text from attempts a join workers w on w.id = a.worker"
            " where a.outcome = 'lease_expired' and w.host is not null and w.stopped_at is null"
        )
        said = "".join(member.said() for member in self.workers)
        silent = [job for (job,) in lost if job not in said]
        return f"no log says that a lease was lost: {', '.join(silent)}" if silent else ""

    def dead_workers(self) -> str:
        """Which processes have ended."""
        ended = [member for member in self.run.fleet.members if not member.alive]
        return ", ".join(f"{member.name} ended with {member.returncode}" for member in ended)


def describe(jobs: Iterable[Job]) -> str:
    """Jobs in a few words."""
    listed = [
        f"{job['kind']} {job['id'][-8:]} {job['state']}{' parked' if job['parked'] else ''}"
        f" attempt {job['attempt']} failures {job['retry_count']}{' ' + job['reason'] if job['reason'] else ''}"
        for job in jobs
    ]
    return f"{len(listed)} jobs: " + "; ".join(listed[:4])
