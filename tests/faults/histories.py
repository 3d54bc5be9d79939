"""Histories made by hand: a good one, and the means to spoil it."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from faults.checker import History, Verdict, judge

Line = dict[str, Any]

LEASE = 10.0


@dataclass
class Story:
    """A run, step by step. Time goes on by a second with each step unless it is said how far."""

    now: float = 1000.0
    log: list[Line] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)
    attempts: list[Line] = field(default_factory=list)
    schedules: list[Line] = field(default_factory=list)
    jobs: dict[str, Line] = field(default_factory=dict)
    calls: int = 0

    def write(self, op: str, phase: str, call: str | None = None, **fields: Any) -> Line:
        self.now += 0.001
        line = {"at": self.now, "mono": int(self.now * 1e9), "process": "p", "op": op, "phase": phase, "call": call}
        self.log.append(line | fields)
        return self.log[-1]

    def call(self, op: str, answer: Line | None, *, phase: str = "ok", **asked: Any) -> None:
        self.calls += 1
        self.write(op, "invoke", f"c{self.calls}", **asked)
        if answer is not None:
            self.write(op, phase, f"c{self.calls}", **answer)

    def note(self, op: str, **fields: Any) -> Self:
        self.write(op, "note", **fields)
        return self

    def enqueue(self, job: str, **more: Any) -> Self:
        """A job is recorded, and its client gets the answer."""
        row = {
            "row": "job", "id": job, "kind": "k", "queue": "q", "state": None, "attempt": 0, "retry_count": 0,
            "max_attempts": 3, "reason": None, "run_at": self.now, "created_at": self.now, "finished_at": None,
            "finished_by": None, "idempotency_key": f"key of {job}", "exclusive_key": None, "lease_owner": None,
            "lease_expires_at": None, "accepted": True, "claim_id": None,
        }  # fmt: skip
        self.jobs[job] = row | more
        self.event(job, "queued")
        self.call("enqueue", {"job": job}, key=self.jobs[job]["idempotency_key"], kind="k")
        return self

    def event(self, job: str, state: str, *, after: float = 1.0, **changed: Any) -> Self:
        """The job's row changes, and the database records it."""
        self.now += after
        row = self.jobs[job]
        before, owner = row["state"], changed.get("lease_owner") or row["lease_owner"]
        if state != "running":
            changed = {"lease_owner": None, "lease_expires_at": None} | changed
        row |= {"state": state, "finished_at": self.now if state in ("success", "dead") else None} | changed
        same = ("attempt", "claim_id", "lease_expires_at", "retry_count", "max_attempts", "reason", "run_at")
        event = {name: row[name] for name in (*same, "kind", "queue", "idempotency_key", "exclusive_key")}
        place = {"seq": len(self.events) + 1, "at": self.now, "job_id": job, "owner": owner}
        self.events.append(event | place | {"from_state": before, "to_state": state, "xid": "1"})
        return self

    def claim(self, job: str, worker: str = "w", *, after: float = 1.0, **changed: Any) -> Self:
        attempt = self.jobs[job]["attempt"] + 1
        claim = f"claim {len(self.events)}"
        lease = {"lease_owner": worker, "lease_expires_at": self.now + after + LEASE, "claim_id": claim}
        self.event(job, "running", after=after, **({"attempt": attempt} | lease | changed))
        told = {"jobs": [[job, self.jobs[job]["attempt"]]]}
        self.call("claim", told, worker=worker, claim_id=self.jobs[job]["claim_id"], count=1)
        return self

    def heartbeat(self, job: str, *, after: float = 1.0) -> Self:
        return self.event(job, "running", after=after, lease_expires_at=self.now + after + LEASE)

    def report(
        self, op: str, job: str, worker: str = "w", *, attempt: int | None = None, accepted: bool = True
    ) -> Self:
        attempt = self.jobs[job]["attempt"] if attempt is None else attempt
        self.call(op, {"accepted": accepted}, worker=worker, job=job, attempt=attempt)
        return self

    def complete(self, job: str, worker: str = "w") -> Self:
        return self.event(job, "success", finished_by=worker).report("complete", job, worker)

    def run(self, *jobs: str) -> Self:
        """Each is claimed and completed."""
        for job in jobs:
            self.claim(job).complete(job)
        return self

    def forget(self, forgotten: Callable[[Line], bool]) -> Self:
        """Lines are missing from the log."""
        self.log = [line for line in self.log if not forgotten(line)]
        return self

    def fail(self, job: str, worker: str = "w") -> Self:
        failures = self.jobs[job]["retry_count"] + 1
        dead = failures >= self.jobs[job]["max_attempts"]
        self.event(job, "dead" if dead else "retry", retry_count=failures, reason="exhausted" if dead else None)
        return self.record(job, "failed", worker).report("fail", job, worker)

    def sweep(self, job: str, worker: str = "w", *, after: float = LEASE + 1) -> Self:
        failures = self.jobs[job]["retry_count"] + 1
        dead = failures >= self.jobs[job]["max_attempts"]
        reason = "lease_expired" if dead else None
        self.event(job, "dead" if dead else "queued", after=after, retry_count=failures, reason=reason)
        return self.record(job, "lease_expired", worker)

    def release(self, job: str, worker: str = "w") -> Self:
        return self.event(job, "queued").record(job, "released", worker).report("release", job, worker)

    def record(self, job: str, outcome: str, worker: str = "w") -> Self:
        row = {"row": "attempt", "job_id": job, "attempt": self.jobs[job]["attempt"], "worker": worker}
        self.attempts.append(row | {"outcome": outcome})
        return self

    @property
    def final(self) -> list[Line]:
        end = {"row": "end", "at": self.now, "jobs": len(self.jobs)}
        return [*self.jobs.values(), *self.attempts, *self.schedules, end]

    def but(self, spoil: Callable[["Story"], object]) -> "Story":
        """The same story with something wrong in it."""
        other = deepcopy(self)
        spoil(other)
        return other

    def judged(self) -> Verdict:
        """Judge it, by way of JSON as files would be."""
        log, events, final = json.loads(json.dumps([self.log, self.events, self.final]))
        return judge(History.of(log=log, events=events, final=final))

    def save(self, home: Path) -> None:
        for name, lines in {"client": self.log, "events": self.events, "final": self.final}.items():
            (home / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def good() -> Story:
    """A bit of everything, all of it right."""
    story = Story()
    story.note("expect", leases={"k": LEASE}, reports=True, limits=[{"scope": "global", "name": "", "max": 2}])
    story.enqueue("a").enqueue("b").enqueue("c", exclusive_key="x").enqueue("d", exclusive_key="x")
    story.claim("a").heartbeat("a").complete("a")
    story.report("complete", "a")  # its answer was lost
    story.claim("b").fail("b").event("b", "queued").claim("b").sweep("b").claim("b").fail("b")
    story.claim("c").release("c")
    story.claim("d", "v").complete("d", "v").claim("c").complete("c")
    return story.note("settle")
