"""What the SQL functions promise, in plain Python: the rules of the headers of sql/functions, nothing of their code.

Where a header leaves a choice (which of several expired leases a sweep of one takes, where inside its range a
backoff falls), the model takes over what the database did after it has checked that the choice was allowed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from tests.model.job import Ended, Job, Refused, Token

DEFAULT_LEASE = 15.0
OVER = ("success", "dead")


@dataclass
class Model:
    now: datetime
    jobs: dict[UUID, Job] = field(default_factory=dict)
    ended: dict[tuple[UUID, int], Ended] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    last_claim: dict[str, UUID] = field(default_factory=dict)

    # Intents

    def enqueue(self, intent: dict[str, Any], answer: UUID | None, *, accepted: bool = True) -> UUID:
        """`answer` is the id that the database made up, if the intent brings none."""
        self._check_intent(intent)
        found = self._intended(intent)
        if found is None:
            return self._record(intent, intent.get("id") or answer, accepted=accepted)
        names = [name for name in ("kind", "payload", "queue", "priority") if intent.get(name) is not None]
        if intent.get("strict") and any(getattr(found, name) != intent[name] for name in names):
            raise Refused("LH004")
        return found.id

    def enqueue_many(self, intents: Sequence[dict[str, Any]], answer: Sequence[UUID] | None) -> list[UUID]:
        for intent in intents:
            self._check_intent(intent)
        before = dict(self.jobs)
        # Which comes first of those that share a key or an id is not promised: keys before none, ids before none.
        bare = [(intent["idempotency_key"] is None, "id" not in intent) for intent in intents]
        for place in sorted(range(len(intents)), key=bare.__getitem__):
            key, id_ = intents[place]["idempotency_key"], intents[place].get("id")
            if id_ not in self.jobs and (key is None or key not in {job.idempotency_key for job in self.jobs.values()}):
                new = self._record(intents[place], id_ or (answer[place] if answer else uuid4()), accepted=True)
                intents[place].setdefault("id", new)
        try:
            return [self._intended(intent).id for intent in intents]
        except Refused:
            self.jobs = before
            raise

    def _check_intent(self, intent: dict[str, Any]) -> None:
        twice_timed = intent["run_at"] is not None and intent["run_after"] is not None
        if not intent["kind"] or not intent["queue"] or not 1 <= intent["max_attempts"] <= 32767 or twice_timed:
            raise Refused("LH003")

    def _intended(self, intent: dict[str, Any]) -> Job | None:
        key, id_ = intent["idempotency_key"], intent.get("id")
        if key is None:
            return self.jobs.get(id_) if id_ else None
        found = next((job for job in self.jobs.values() if job.idempotency_key == key), None)
        if found is None and id_ in self.jobs:
            raise Refused("LH004")
        return found

    def _record(self, intent: dict[str, Any], id_: UUID | None, *, accepted: bool) -> UUID:
        assert id_ is not None, "a new job was promised"
        assert id_ not in self.jobs, "a new job was promised, an old one was given"
        due = intent["run_at"] or self.now + (intent["run_after"] or timedelta())
        columns = ("kind", "queue", "priority", "max_attempts", "payload", "idempotency_key", "exclusive_key")
        self.jobs[id_] = Job(
            id=id_,
            **{name: intent[name] for name in columns},
            created_at=self.now,
            updated_at=self.now,
            run_at=due,
            accepted=accepted,
            state="queued" if accepted and due <= self.now else "created",
        )
        return id_

    def accept(self, id_: UUID) -> str:
        job = self.known(id_)
        if job.state == "created" and not job.accepted:
            job.accepted, job.updated_at = True, self.now
            if job.run_at <= self.now:
                job.state = "queued"
        return job.state

    def known(self, id_: UUID) -> Job:
        if id_ not in self.jobs:
            raise Refused("LH002")
        return self.jobs[id_]

    # Claims

    def claim(
        self,
        worker: str,
        *,
        queues: Collection[str] | None,
        kinds: Collection[str] | None,
        count: int,
        claim_id: UUID,
        after: dict[tuple[str, str], tuple[int, UUID] | None] | None,
        answer: Collection[UUID],
    ) -> list[Job]:
        if not worker or count < 1:
            raise Refused("LH003")
        if self.last_claim.get(worker) == claim_id:
            return self._in_order(
                job
                for job in self.running()
                if job.lease_owner == worker and job.claim_id == claim_id and job.lease_expires_at > self.now
            )
        taken: list[Job] = []
        met: set[str] = set()
        for job in self._in_order(self.jobs.values()):
            if len(taken) == count:
                break
            asked = (queues is None or job.queue in queues) and (kinds is None or job.kind in kinds)
            if after is not None:
                start = after.get(job.lane)
                asked = job.lane in after and (start is None or job.place > start)
            if asked and self._runnable(job) and self._may_take(job, answer, met):
                self._take(job, worker, claim_id)
                taken.append(job)
        self._pass_over(met)
        if taken:
            self.last_claim[worker] = claim_id
        return self._in_order(taken)

    def claim_job(self, id_: UUID, worker: str, claim_id: UUID) -> bool:
        if not worker:
            raise Refused("LH003")
        job = self.known(id_)
        if not self._runnable(job):
            return False
        met: set[str] = set()
        free = self._may_take(job, [id_], met)
        if free:
            self._take(job, worker, claim_id)
        self._pass_over(met)
        return free

    def _runnable(self, job: Job) -> bool:
        return job.state == "queued" and job.run_at <= self.now and job.retry_count < job.max_attempts

    def _may_take(self, job: Job, answer: Collection[UUID], met: set[str]) -> bool:
        """Whether its key is free. A holder whose lease has expired is swept on the way."""
        if job.exclusive_key is None:
            return True
        met.add(job.exclusive_key)
        holder = self.holder(job.exclusive_key)
        if holder is None:
            return True
        if holder.lease_expires_at > self.now:
            return False
        if job.passed_over and job.id not in answer:
            return False
        self._expire(holder)
        return True

    def _take(self, job: Job, worker: str, claim_id: UUID) -> None:
        job.is_current = job.exclusive_key is not None
        job.state, job.attempt, job.claim_id, job.passed_over = "running", job.attempt + 1, claim_id, False
        job.claimed_at = job.updated_at = self.now
        job.lease_owner, job.lease_expires_at = worker, self._lease_end(job)
        job.progress = job.progress_note = None

    def _pass_over(self, keys: Iterable[str]) -> None:
        for key in keys:
            for job in self._siblings(key) if self.holder(key) else ():
                job.passed_over = job.passed_over or job.state == "queued"

    def holder(self, key: str) -> Job | None:
        return next((job for job in self._siblings(key) if job.state == "running"), None)

    def _siblings(self, key: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.exclusive_key == key]

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "running"]

    @staticmethod
    def _in_order(jobs: Iterable[Job]) -> list[Job]:
        return sorted(jobs, key=lambda job: job.place)

    def lease_seconds(self, kind: str) -> float:
        return self.leases.get(kind, DEFAULT_LEASE)

    def _lease_end(self, job: Job) -> datetime:
        return self.now + timedelta(seconds=self.lease_seconds(job.kind))

    def declare_kinds(self, kinds: Sequence[str], seconds: Sequence[float]) -> None:
        if not all(kinds) or not all(0.1 <= lease <= 86400 for lease in seconds):
            raise Refused("LH003")
        self.leases.update(zip(kinds, seconds, strict=True))

    # What the owner of an attempt reports

    def _held(self, worker: str, token: Token) -> Job | None:
        """The job, if this attempt owns it: ownership ends with the lease, swept or not."""
        job = self.jobs.get(token.id)
        if job is None or job.state != "running" or job.lease_owner != worker or job.attempt != token.attempt:
            return None
        if job.lease_expires_at <= self.now:
            return None
        return job if token.claim_id in (None, job.claim_id) else None

    def heartbeat(self, worker: str, tokens: Iterable[Token], progress: float | None) -> set[UUID]:
        held = self._all_held(worker, tokens)
        for job in held:
            job.lease_expires_at = self._lease_end(job)
            if progress is not None:
                job.progress, job.progress_note = progress, f"at {progress}"
        return {job.id for job in held}

    def add_logs(self, worker: str, tokens: Iterable[Token], line: list[Any]) -> set[UUID]:
        held = self._all_held(worker, tokens)
        for job in held:
            job.lines.setdefault(job.attempt, []).append(line)
        return {job.id for job in held}

    def _all_held(self, worker: str, tokens: Iterable[Token]) -> list[Job]:
        return [job for job in (self._held(worker, token) for token in tokens) if job is not None]

    def complete(self, worker: str, tokens: Iterable[Token], results: Iterable[Any]) -> set[UUID]:
        done = set()
        for token, result in zip(tokens, results, strict=True):
            job = self._held(worker, token)
            if job is not None:
                self._stop(job, "success")
                job.result, job.finished_by = result, worker
            job = self.jobs.get(token.id)
            if job is None or (job.state, job.finished_by, job.attempt) != ("success", worker, token.attempt):
                continue
            if token.claim_id in (None, job.claim_id):
                done.add(job.id)
        return done

    def release(self, worker: str, tokens: Iterable[Token]) -> set[UUID]:
        given = self._all_held(worker, tokens)
        for job in given:
            self._end(job, "released")
            self._stop(job, "queued")
        return {job.id for job in given}

    def fail_many(self, worker: str, reports: Sequence[dict[str, Any]]) -> dict[UUID, str]:
        for report in reports:
            delay, outcome = report["retry_after"], report["outcome"]
            snoozed_for_ever = outcome == "snoozed" and delay is None
            if outcome not in ("failed", "snoozed", "cancelled") or snoozed_for_ever or (delay or 0) < 0:
                raise Refused("LH003")
        for report in reports:
            job = self._held(worker, report["token"])
            if job is not None:
                self._fail(job, report)
        return {r["token"].id: self.jobs[r["token"].id].state for r in reports if self._counted(worker, r)}

    def _fail(self, job: Job, report: dict[str, Any]) -> None:
        error = report["error"] or {}
        self._end(job, report["outcome"], error.get("class"), error.get("message"))
        reason = None
        if report["outcome"] == "cancelled":
            reason = "cancelled"
        elif report["outcome"] == "failed":
            job.retry_count += 1
            if report["fatal"]:
                reason = "fatal"
            elif job.retry_count >= job.max_attempts:
                reason = "exhausted"
        self._stop(job, "dead" if reason else "retry", reason)
        delay = report["retry_after"]
        job.run_at = self.now + timedelta(seconds=delay or 0)
        if delay is None:
            longest = timedelta(seconds=min(3600, 4 * 2 ** (job.retry_count - 1)))
            job.run_at, job.run_at_until = self.now + 0.8 * longest, self.now + longest

    def _counted(self, worker: str, report: dict[str, Any]) -> bool:
        """Now or before; of attempts that are over, no claim_id is on record."""
        token: Token = report["token"]
        ended = self.ended.get((token.id, token.attempt))
        if ended is None or (ended.worker, ended.outcome) != (worker, report["outcome"]):
            return False
        job = self.jobs[token.id]
        return token.claim_id in (None, job.claim_id) or job.attempt > token.attempt

    def _end(self, job: Job, outcome: str, error_class: str | None = None, message: str | None = None) -> None:
        ended = Ended(job.lease_owner or "", outcome, job.claimed_at, self.now, error_class, message)
        self.ended[job.id, job.attempt] = ended

    def _move(self, job: Job, state: str, reason: str | None = None) -> None:
        job.state, job.reason, job.updated_at = state, reason, self.now
        job.lease_owner = job.lease_expires_at = None
        job.is_current = False
        job.finished_at = self.now if state in OVER else None
        job.passed_over = False

    def _stop(self, job: Job, state: str, reason: str | None = None) -> None:
        """It runs, or waits for its turn, no longer: others of its key may."""
        self._move(job, state, reason)
        served: set[tuple[str, str]] = set()
        for sibling in self._in_order(s for s in self._siblings(job.exclusive_key or "") if s.passed_over):
            if (sibling.queue, sibling.kind) not in served:
                served.add((sibling.queue, sibling.kind))
                sibling.passed_over = False

    # What time and people do

    def sweep(self, limit: int, states: dict[UUID, str]) -> int:
        expired = [job for job in self.running() if job.lease_expires_at <= self.now]
        chosen = expired if len(expired) <= limit else [job for job in expired if states[job.id] != "running"]
        for job in chosen:
            self._expire(job)
        return min(limit, len(expired))

    def _expire(self, job: Job) -> None:
        job.retry_count += 1
        self._end(job, "lease_expired", "LeaseExpired")
        last = job.retry_count >= job.max_attempts
        self._stop(job, "dead" if last else "queued", "lease_expired" if last else None)

    def promote(self, limit: int, states: dict[UUID, str]) -> int:
        waiting = [j for j in self.jobs.values() if j.state in ("created", "retry") and j.accepted]
        due = sorted((job for job in waiting if job.run_at <= self.now), key=lambda job: job.run_at)
        chosen = due if len(due) <= limit else [job for job in due if states[job.id] != job.state]
        assert [job.run_at for job in chosen] == [job.run_at for job in due[:limit]], "the longest due come first"
        for job in chosen:
            exhausted = job.retry_count >= job.max_attempts
            self._move(job, "dead" if exhausted else "queued", "exhausted" if exhausted else None)
        return len(chosen)

    def next_due(self) -> float | None:
        times = [job.lease_expires_at for job in self.running()]
        times += [job.run_at for job in self.jobs.values() if job.state in ("created", "retry") and job.accepted]
        return max(0.0, (min(times) - self.now).total_seconds()) if times else None

    def cancel(self, id_: UUID, why: str | None) -> bool:
        job = self.known(id_)
        if job.state in OVER:
            return job.reason == "cancelled"
        if job.state == "running":
            self._end(job, "cancelled", None, why)
        could_run = job.state == "queued" and not job.passed_over and self.holder(job.exclusive_key or "") is None
        (self._stop if job.state == "running" or could_run else self._move)(job, "dead", "cancelled")
        return True

    def retry(self, id_: UUID) -> bool:
        job = self.known(id_)
        if job.state != "dead":
            return False
        self._move(job, "queued")
        job.retry_count, job.accepted, job.finished_by = 0, True, None
        job.run_at, job.run_at_until = self.now, None
        return True
