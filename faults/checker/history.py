"""A run's history as the rules read it: calls, notes, events, what is left."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]

OVER = ("success", "dead")


class Invalid(Exception):
    """The history says too little to be judged."""


@dataclass(slots=True)
class Call:
    """A call of a program, and its answer."""

    op: str
    asked: Line
    answer: Line | None = None

    @property
    def outcome(self) -> str:
        """`ok`, `fail` or `unknown`: no answer is an unknown one."""
        return str(self.answer["phase"]) if self.answer else "unknown"

    @property
    def accepted(self) -> bool:
        """Whether the answer says that the database took it."""
        return self.answer is not None and self.answer["phase"] == "ok" and bool(self.answer.get("accepted"))


@dataclass(frozen=True, slots=True)
class Event:
    """One transition, as the database recorded it."""

    seq: int
    at: float
    job: str
    kind: str
    queue: str
    before: str | None
    after: str
    attempt: int
    owner: str | None
    claim: str | None
    expires: float | None
    failures: int
    budget: int
    reason: str | None
    run_at: float
    key: str | None
    exclusive: str | None

    @classmethod
    def of(cls, line: Line) -> "Event":
        """Read a line of events.jsonl."""
        return cls(
            seq=line["seq"],
            at=line["at"],
            job=line["job_id"],
            kind=line["kind"],
            queue=line["queue"],
            before=line["from_state"],
            after=line["to_state"],
            attempt=line["attempt"],
            owner=line["owner"],
            claim=line["claim_id"],
            expires=line["lease_expires_at"],
            failures=line["retry_count"],
            budget=line["max_attempts"],
            reason=line["reason"],
            run_at=line["run_at"],
            key=line["idempotency_key"],
            exclusive=line["exclusive_key"],
        )

    @property
    def claims(self) -> bool:
        """Whether this event is a claim of the job."""
        return self.after == "running" and self.before != "running"

    @property
    def ends(self) -> bool:
        """Whether this event ends an attempt."""
        return self.before == "running" and self.after != "running"

    def swept(self, before: "Event") -> bool:
        """Whether the attempt ended because its lease had expired; `before` is the job's event before this one."""
        counted = self.failures > before.failures
        return self.ends and ((self.after == "queued" and counted) or self.reason in ("lease_expired", "set_aside"))

    @property
    def renews(self) -> bool:
        """Whether a lease was prolonged."""
        return self.before == self.after == "running"


@dataclass(frozen=True, kw_only=True)
class History:
    """Everything that is known about a run."""

    calls: list[Call] = field(default_factory=list)
    notes: list[Line] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """In the order of seq."""
    jobs: dict[str, Line] = field(default_factory=dict)
    attempts: list[Line] = field(default_factory=list)
    schedules: dict[str, Line] = field(default_factory=dict)
    end: Line | None = None

    @classmethod
    def load(cls, directory: str | Path) -> "History":
        """Read a run's directory."""
        home = Path(directory)
        if not home.is_dir():
            raise Invalid(f"{home} is no directory")
        logs = sorted(path for path in home.glob("*.jsonl") if path.name not in ("events.jsonl", "final.jsonl"))
        return cls.of(
            log=[line for path in logs for line in _lines(path, torn=True)],
            events=_lines(home / "events.jsonl"),
            final=_lines(home / "final.jsonl"),
        )

    @classmethod
    def of(cls, *, log: Iterable[Line], events: Iterable[Line], final: Iterable[Line]) -> "History":
        """Put the lines in order."""
        calls: dict[str, Call] = {}
        notes: list[Line] = []
        for line in sorted(log, key=lambda line: (line["mono"], line["phase"] != "invoke")):
            if line["phase"] == "note":
                notes.append(line)
            elif line["phase"] == "invoke":
                calls[line["call"]] = Call(line["op"], line)
            elif line["call"] in calls and calls[line["call"]].outcome == "unknown":
                calls[line["call"]].answer = line
        rows = list(final)
        return cls(
            calls=list(calls.values()),
            notes=notes,
            events=sorted(map(Event.of, events), key=lambda event: event.seq),
            jobs={row["id"]: row for row in rows if row["row"] == "job"},
            attempts=[row for row in rows if row["row"] == "attempt"],
            schedules={row["key"]: row for row in rows if row["row"] == "schedule"},
            end=next((row for row in rows if row["row"] == "end"), None),
        )

    @cached_property
    def by_job(self) -> dict[str, list[Event]]:
        """Each job's events."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            found[event.job].append(event)
        return dict(found)

    @cached_property
    def expected(self) -> dict[str, Any]:
        """What the run promised."""
        return {name: value for line in self.noted("expect") for name, value in line.items()}

    @cached_property
    def settled_at(self) -> float | None:
        """When faults had ended."""
        return max((line["at"] for line in self.noted("settle")), default=None)

    def asked(self, *ops: str) -> Iterator[Call]:
        """The calls of these ops."""
        return (call for call in self.calls if call.op in ops)

    def noted(self, *ops: str) -> Iterator[Line]:
        """The notes of these ops."""
        return (line for line in self.notes if line["op"] in ops)

    def pairs(self) -> Iterator[tuple[Event | None, Event]]:
        """Each event with the one before it of the same job."""
        for events in self.by_job.values():
            yield from zip([None, *events], events, strict=False)


def _lines(path: Path, *, torn: bool = False) -> list[Line]:
    if not path.exists():
        raise Invalid(f"{path.name} is missing")
    found: list[Line] = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            # The last words of a process that was killed while it wrote them. A dump must be whole.
            if torn:
                continue
            raise Invalid(f"{path.name} holds a line that is no JSON: {text[:80]!r}") from None
        if isinstance(line, dict):
            found.append(line)
    return found
