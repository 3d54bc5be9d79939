"""Random calls of the whole SQL API; after each of them the database and the model must agree."""

import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from tests.model.database import START, Database, Snapshot
from tests.model.job import Job, Refused, Token
from tests.model.model import Model

QUEUES = ["default", "mail"]
KINDS = ["a", "b"]
WORKERS = ["w1", "w2"]
UNKNOWN = UUID(int=0xDEAD)

# Every draw has a fixed shape and none depends on what the database answered: an id that it makes up must not
# change how an example is replayed. A number picks from whatever there is at that moment.
pick = st.integers(0, 63)
limit = st.sampled_from([1000, 1000, 2, 1])
intents = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from([0, 0, 1, -1]),
        "payload": st.sampled_from([{}, {"n": 1}]),
        "idempotency_key": st.sampled_from([None, None, None, None, "i1", "i2", "i3"]),
        "exclusive_key": st.sampled_from([None, None, "x1", "x2"]),
        "max_attempts": st.sampled_from([1, 2, 2, 3, 3, 5]),
        "when": st.sampled_from([None] * 6 + ["past", "future", "after"]),
        "flaw": st.sampled_from([None] * 24 + ["kind", "queue", "max_attempts", "both"]),
    }
)
ids = st.sampled_from(["none", "none", "none", "new", "old"])
flaws = st.sampled_from(["right"] * 5 + ["no claim_id"] * 5 + ["worker"] * 2 + ["attempt", "claim_id", "unknown"])
stale = st.sampled_from([False, False, True])
tokens = st.lists(st.tuples(pick, stale, flaws), min_size=1, max_size=3)
reports = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from(["failed"] * 5 + ["snoozed", "snoozed", "cancelled"]),
        "retry_after": st.sampled_from([None, 0.0, 0.5, 4.0]),
        "fatal": st.sampled_from([False, False, False, True]),
        "error": st.sampled_from([None, {"class": "ValueError", "message": "no"}]),
    }
)
wrong_reports = st.sampled_from(
    [{}] * 20 + [{"outcome": "lost"}, {"retry_after": -1.0}, {"outcome": "snoozed", "retry_after": None}]
)


ENDS = ["complete", "fail", "fail", "release", "nothing", "nothing"]
PLAIN: dict[str, Any] = {
    "kind": "a",
    "queue": "default",
    "priority": 0,
    "payload": {},
    "idempotency_key": None,
    "exclusive_key": None,
    "max_attempts": 3,
    "when": None,
    "flaw": None,
}


class Divergence(AssertionError):
    """The database did not do what the model says."""


class Machine(RuleBasedStateMachine):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.model = Model(START)
        self.issued: list[tuple[str, Token]] = []
        self.claim_ids: list[UUID] = []
        self.chance = random.Random(0)
        database.reset()

    # How a step is checked

    def step(self, function: str, promised: Callable[..., Any], read: Callable[..., Any], **args: Any) -> Any:
        """Call the function, ask the model what it should have answered and done, compare both."""
        try:
            answer = read(self.database.call(function, **args))
        except psycopg.Error as error:
            answer = error
        after = self.database.snapshot()
        try:
            expected = promised(None if isinstance(answer, psycopg.Error) else answer, after)
        except Refused as refused:
            if getattr(answer, "sqlstate", None) != refused.sqlstate:
                raise Divergence(f"{function}{args}: {answer!r}, should be refused: {refused}") from None
        except AssertionError as error:
            raise Divergence(f"{function}{args}: {answer!r}, but {error}") from error
        else:
            if answer != expected:
                raise Divergence(f"{function}{args}: {answer!r} instead of {expected!r}")
        self.compare(f"{function}{args}", after)
        return answer

    def compare(self, what: str, found: Snapshot) -> None:
        wrong = [f"key {key} is broken" for key in found.broken_keys]
        if found.jobs.keys() != self.model.jobs.keys():
            wrong.append(f"jobs {found.jobs.keys() ^ self.model.jobs.keys()}")
        if found.ended.keys() != self.model.ended.keys():
            wrong.append(f"attempts {found.ended.keys() ^ self.model.ended.keys()}")
        for id_ in found.jobs.keys() & self.model.jobs.keys():
            wrong += self.differences(self.model.jobs[id_], found.jobs[id_])
        for id_ in found.ended.keys() & self.model.ended.keys():
            row = found.ended[id_]
            for name, value in vars(self.model.ended[id_]).items():
                told_freely = name == "error_message" and row["outcome"] == "lease_expired"
                if row[name] != value and not told_freely:
                    wrong.append(f"attempt {id_} {name}: {row[name]!r} instead of {value!r}")
        if wrong:
            raise Divergence(f"after {what}: " + "; ".join(wrong))

    @staticmethod
    def differences(job: Job, row: dict[str, Any]) -> list[str]:
        if job.run_at_until is not None and job.run_at <= row["run_at"] <= job.run_at_until:
            job.run_at = row["run_at"]
        job.run_at_until = None
        free = {"run_at"} if job.state == "dead" else set()
        if job.state != "success":
            free.add("finished_by")
        return [
            f"job {job.id} {name}: {value!r} instead of {getattr(job, name)!r}"
            for name, value in row.items()
            if name not in free and value != getattr(job, name)
        ]

    # How numbers become arguments

    def new_id(self) -> UUID:
        """Chosen by no chance that a replay would not have too."""
        return UUID(int=self.chance.getrandbits(128), version=4)

    def job(self, number: int, *states: str) -> UUID:
        """A job in one of the states if there is one, else any job, else one that does not exist."""
        jobs = [job for job in self.model.jobs.values() if job.state in states] or list(self.model.jobs.values())
        return jobs[number % len(jobs)].id if jobs and number < 62 else UNKNOWN

    def intent(self, drawn: dict[str, Any], id_: str, number: int) -> dict[str, Any]:
        intent = dict(drawn)
        when, flaw = intent.pop("when"), intent.pop("flaw")
        early, late = self.model.now - timedelta(seconds=5), self.model.now + timedelta(seconds=5)
        intent["run_at"] = {"past": early, "future": late}.get(when)
        intent["run_after"] = timedelta(seconds=3) if when == "after" else None
        flawed = {
            "kind": {"kind": ""},
            "queue": {"queue": ""},
            "max_attempts": {"max_attempts": 0},
            "both": {"run_at": late, "run_after": timedelta()},
        }
        intent |= flawed.get(flaw, {})
        if id_ != "none":
            intent["id"] = self.job(number) if id_ == "old" else self.new_id()
        return intent

    def token(self, number: int, stale: bool, flaw: str, worker: str | None) -> tuple[str, Token] | None:
        """A token that was issued: of an attempt that runs, or of any; with one thing wrong, if a flaw is asked for."""
        issued = [(w, t) for w, t in self.issued if worker is None or w == worker]
        live = [(w, t) for w, t in issued if self.runs(t)]
        choice = issued[-12:] if stale or not live else live
        if not choice:
            return None
        owner, token = choice[number % len(choice)]
        changes: dict[str, dict[str, Any]] = {
            "attempt": {"attempt": token.attempt + (1 if number % 2 else -1), "claim_id": None},
            "claim_id": {"claim_id": self.new_id()},
            "no claim_id": {"claim_id": None},
            "unknown": {"id": UNKNOWN},
        }
        return owner, Token(**vars(token) | changes.get(flaw, {}))

    def runs(self, token: Token) -> bool:
        job = self.model.jobs[token.id]
        return job.state == "running" and job.attempt == token.attempt

    def batch(self, drawn: list[tuple[int, bool, str]]) -> tuple[str, list[Token]] | None:
        """Some tokens of one worker, no job twice."""
        first = self.token(*drawn[0], None)
        if first is None:
            return None
        worker, found = first[0], {first[1].id: first[1]}
        for one in drawn[1:]:
            another = self.token(*one, worker)
            if another is not None:
                found.setdefault(another[1].id, another[1])
        if drawn[0][2] == "worker":
            worker = WORKERS[(WORKERS.index(worker) + 1) % len(WORKERS)]
        return worker, list(found.values())

    def remember(self, worker: str, claimed: list[UUID]) -> None:
        for id_ in claimed:
            job = self.model.jobs[id_]
            token = Token(id_, job.attempt, job.claim_id)
            if (worker, token) not in self.issued:
                self.issued.append((worker, token))


def one(rows: list[tuple[Any, ...]]) -> Any:
    (row,) = rows
    return row[0]


def many(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [row[0] for row in rows]


def several(rows: list[tuple[Any, ...]]) -> set[Any]:
    return set(many(rows))


def renewed(rows: list[tuple[Any, ...]]) -> set[Any]:
    """Nothing else is at work here, so no answer is `busy`."""
    assert {answer for _, answer in rows} <= {"renewed", "lost"}
    return {id_ for id_, answer in rows if answer == "renewed"}


def nothing(_: list[tuple[Any, ...]]) -> None:
    return None


def columns(batch: list[Token]) -> dict[str, list[Any]]:
    return {
        "ids": [token.id for token in batch],
        "attempts": [token.attempt for token in batch],
        "claim_ids": [token.claim_id for token in batch],
    }


def as_json(value: Any) -> str:
    return json.dumps(value, default=str)


def status_of(state: str, reason: str | None) -> str:
    over = {"running": "RUNNING", "success": "COMPLETED", "dead": "CANCELLED" if reason == "cancelled" else "FAILED"}
    return over.get(state, "PENDING")


def lane_json(lane: tuple[str, str], start: tuple[int, UUID] | None) -> dict[str, Any]:
    place = {} if start is None else {"priority": -start[0], "id": start[1]}
    return {"queue": lane[0], "kind": lane[1], **place}
