"""One run of a scenario: its folder, its chance, its processes, what it wrote down, and the verdict on that."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg

from faults.dump import dump
from faults.fleet import ROOT, Fleet, Member
from faults.log import Log
from faults.servers import Server
from faults.waiting import until

UNFINISHED = "select exists (select from leasehold.jobs where state not in ('success', 'dead'))"
DONE = "select count(*) from leasehold.jobs where state in ('success', 'dead')"


class Skip(Exception):
    """The scenario cannot run here; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a run."""

    code: int
    """0: no violation; 1: violations; 2: the history says too little to judge."""
    text: str
    """What the checker said."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Counts and times that the scenario measured."""
    problems: list[str] = field(default_factory=list)
    """What the scenario itself found wrong; the checker sees histories only."""


class Run:
    """A scenario's hands. Everything that it leaves to chance comes from the seed alone."""

    def __init__(self, scenario: str, *, seed: int, full: bool, folder: Path, lease: float = 2.0) -> None:
        self.scenario = scenario
        self.seed = seed
        self.full = full
        self.folder = folder
        self.lease = lease
        self.chance = random.Random(f"{scenario} {seed}")  # noqa: S311 (to be repeated, not to be secret)
        self.history = folder / "history"
        self.history.mkdir(parents=True, exist_ok=True)
        self.log = Log(self.history / "nemesis.jsonl", "nemesis")
        self.fleet = Fleet(folder, {"FAULTS_FOLDER": str(self.history), "FAULTS_LEASE": str(lease)})
        self.facts: dict[str, Any] = {}
        self.problems: list[str] = []
        self.stack = ExitStack()
        self._settled = 0.0
        self._plan: list[dict[str, Any]] = []
        self._sql: psycopg.Connection[Any] | None = None
        self.where: Callable[[], psycopg.Connection[Any]] = self._connect
        """Whom to ask; another one after a failover."""
        self.judges: Callable[[Run], tuple[int, str]] = lambda run: judge(run.history)
        """What judges the run; a control has to fail."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()
        if self._sql is not None:
            self._sql.close()
        self.stack.close()
        self.log.close()

    def size(self, ci: int, full: int) -> int:
        """How many: a few in CI, as many as promised in the full run."""
        return full if self.full else ci

    # -- the cast

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """Of PostgreSQL. Killed processes lose nothing that was written, synced or not: CI saves the time."""
        return {} if self.full else {"fsync": False, "full_page_writes": False}

    def serve(self, *, tcp: bool = False, home: Path | None = None, **settings: str | float | bool) -> Server:
        """A PostgreSQL of its own, with our schema and the history switched on."""
        self.server = Server(home or self.folder / "server", {**self.settings, **settings}, tcp=tcp)
        self.stack.callback(self.server.close)
        self.server.start().prepare()
        return self.server

    def workers(self, count: int, dsn: str, *options: str, slots: int = 10, **env: str) -> list[Member]:
        """So many workers, started."""
        return [self.fleet.worker(f"worker-{n}", dsn, *options, slots=slots, **env).start() for n in range(count)]

    def clients(self, count: int, dsn: str, *options: str, name: str = "client") -> list[Member]:
        """So many clients, started."""
        return [self.fleet.client(f"{name}-{n}", dsn, *options).start() for n in range(count)]

    def enqueue(self, kind: str, payload: dict[str, Any], *, key: str, queue: str = "default", attempts: int) -> str:
        """One job, by the SQL function, as any language would."""
        call = self.log.invoke("enqueue", key=key, kind=kind)
        job = self.ask(
            "select leasehold.enqueue(%s, %s::text::jsonb, queue => %s, idempotency_key => %s, max_attempts => %s)",
            kind, json.dumps(payload), queue, key, attempts,
        )  # fmt: skip
        self.log.ok(call, job=str(job))
        return str(job)

    # -- chance

    def plan(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Record what will be done. It must come from `chance` and from nothing that was seen during the run."""
        self._plan += steps
        document = {"scenario": self.scenario, "seed": self.seed, "full": self.full, "steps": self._plan}
        (self.folder / "plan.json").write_text(json.dumps(document, indent=1))
        return steps

    # -- looking

    def _connect(self) -> psycopg.Connection[Any]:
        return self.server.connect()

    def ask(self, query: str, *args: object) -> Any:
        """The first value of the first row; asked again where the connection was lost."""
        deadline = time.monotonic() + 60
        while True:
            try:
                if self._sql is None or self._sql.closed:
                    self._sql = self.where()
                row = self._sql.execute(query, args).fetchone()  # type: ignore[arg-type]
                return row and row[0]
            except psycopg.Error:
                if self._sql is not None:
                    self._sql.close()
                self._sql = None
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def done(self) -> int:
        """How many jobs have ended."""
        return int(self.ask(DONE))

    def until_done(self, count: int, *, within: float = 120) -> None:
        """Wait until so many jobs have ended."""
        pause = 0.02 if count < 5000 else 0.2  # counting many takes a while, and they are counted while work goes on
        until(lambda: self.done() >= count, f"{count} jobs have ended", within=within, pause=pause)

    def until_claims(self, *, within: float = 60) -> None:
        """Wait until some worker has claimed something."""
        query = "select exists (select from leasehold.jobs where attempt > 0)"
        until(lambda: self.ask(query), "something was claimed", within=within)

    # -- the end

    def expect(self, **facts: Any) -> None:
        """Tell the checker what this run promises."""
        self.log.note("expect", **facts)

    def check(self, holds: bool, problem: str) -> None:
        """Note a problem that histories do not show."""
        if not holds:
            self.problems.append(problem)

    def finish_clients(self, clients: list[Member], *, stop: bool = True, within: float = 180) -> None:
        """Let the clients end, now or when they have enqueued all; each must end well."""
        for client in clients:
            code = client.end(within) if stop else client.wait(within)
            self.check(code == 0, f"{client.name} ended with {code}")

    def settle(self, *, within: float) -> None:
        """Faults have ended: wait until every job has."""
        self.log.note("settle")
        self._settled = time.monotonic()
        try:
            until(lambda: not self.ask(UNFINISHED), "all jobs have ended", within=within)
        except TimeoutError as error:
            self.problems.append(str(error))  # the checker names the jobs
        self.facts["settled in s"] = round(time.monotonic() - self._settled, 2)

    def verdict(self) -> Verdict:
        """Write down what the database has to say, and let the checker judge."""
        with self.where() as connection:
            dump(connection, self.history)
            counts = connection.execute(
                "select count(*), count(*) filter (where state = 'success'), count(*) filter (where state = 'dead'),"
                " coalesce(sum(attempt), 0), (select count(*) from leasehold.events) from leasehold.jobs"
            ).fetchone()
            deadlocks = connection.execute("select sum(deadlocks)::int from pg_stat_database").fetchone()
        names = ("jobs", "success", "dead", "attempts", "events")
        self.facts |= dict(zip(names, map(int, counts or ()), strict=True))
        self.check(not deadlocks or not deadlocks[0], f"{deadlocks and deadlocks[0]} deadlocks")
        code, text = self.judges(self)
        return Verdict(code=max(code, 1 if self.problems else 0), text=text, facts=self.facts, problems=self.problems)


def judge(history: Path) -> tuple[int, str]:
    """What the checker says of a history: a process of its own, which knows nothing of us."""
    judged = subprocess.run(
        [sys.executable, "-m", "faults.checker", str(history)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    code = judged.returncode if judged.returncode in {0, 1, 2} else 2
    return code, (judged.stdout + judged.stderr).strip()


@contextmanager
def timed(facts: dict[str, Any], name: str) -> Iterator[None]:
    """Write down how long a block takes."""
    began = time.monotonic()
    yield
    facts[name] = round(time.monotonic() - began, 2)


def sentence(facts: Mapping[str, Any]) -> str:
    """Facts in one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())
