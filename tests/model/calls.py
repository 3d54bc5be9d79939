"""The rules of producers and workers, one for each function that they call."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.job import Token
from tests.model.machine import (
    ENDS,
    KINDS,
    PLAIN,
    QUEUES,
    WORKERS,
    Machine,
    as_json,
    columns,
    ids,
    intents,
    lane_json,
    many,
    nothing,
    one,
    pick,
    renewed,
    reports,
    several,
    stale,
    status_of,
    tokens,
    wrong_reports,
)

some_queues = st.sampled_from([None, None, None, ["default"], ["mail"], QUEUES])
some_kinds = st.sampled_from([None, None, None, ["a"], ["b"], KINDS])
workers = st.sampled_from(WORKERS)
LOOKS = ["status", "owned", "lease_seconds", "next_due", "counts", "notify", "start_worker", "stop_worker"]
TOLD = ("id", "kind", "queue", "payload", "attempt", "retry_count", "max_attempts", "priority")
claim_ids = st.sampled_from(["new"] * 6 + ["last", "last", "old"])


class WorkCalls(Machine):
    """What producers and workers ask of the database."""

    # Producers

    @initialize(drawn=st.lists(intents, min_size=2, max_size=5))
    def begin_with_some_jobs(self, drawn: list[dict[str, Any]]) -> None:
        self.enqueue_many(drawn, "none", 0)

    @rule(drawn=intents, id_=ids, number=pick, strict=st.booleans())
    def enqueue(self, drawn: dict[str, Any], id_: str, number: int, strict: bool) -> None:
        intent = self.intent(drawn, id_, number) | {"strict": strict}
        args = intent | {"payload": as_json(intent["payload"])}
        self.step("enqueue", lambda answer, _: self.model.enqueue(intent, answer), one, **args)

    @rule(drawn=intents, exclusive=st.sampled_from(["x1", "x1", "x2"]))
    def enqueue_exclusive(self, drawn: dict[str, Any], exclusive: str) -> None:
        self.enqueue(drawn | {"exclusive_key": exclusive, "idempotency_key": None}, "none", 0, strict=False)

    @rule(drawn=intents, id_=ids, number=pick, strict=st.booleans())
    def submit(self, drawn: dict[str, Any], id_: str, number: int, strict: bool) -> None:
        intent = self.intent(drawn, id_, number) | {"strict": strict}
        args = intent | {"payload": as_json(intent["payload"])}
        self.step("submit", lambda answer, _: self.model.enqueue(intent, answer, accepted=False), one, **args)

    @rule(drawn=st.lists(intents, max_size=4), last_id=ids, number=pick)
    def enqueue_many(self, drawn: list[dict[str, Any]], last_id: str, number: int) -> None:
        # Only the last one brings an id: whether another of the batch has it first is not promised.
        last = len(drawn) - 1
        batch = [self.intent(one, last_id if place == last else "none", number) for place, one in enumerate(drawn)]
        self.step(
            "enqueue_many",
            lambda answer, _: self.model.enqueue_many(batch, answer),
            many,
            jobs=as_json([{name: value for name, value in one.items() if value is not None} for one in batch]),
        )

    @rule(number=pick)
    def accept(self, number: int) -> None:
        id_ = self.job(number, "created")
        self.step("accept", lambda *_: self.model.accept(id_), one, id=id_)

    def status(self, number: int) -> None:
        id_ = self.job(number)

        def promised(*_: Any) -> list[Any]:
            job = self.model.jobs.get(id_)
            if job is None:
                return []
            return [(job.id, job.kind, job.queue, job.state, status_of(job.state, job.reason), job.result)]

        self.step("status", promised, lambda rows: [row[:6] for row in rows], job_id=id_)

    # Workers

    def claim_id(self, worker: str, choice: str, number: int) -> UUID:
        if choice == "last" and worker in self.model.last_claim:
            return self.model.last_claim[worker]
        if choice == "old" and self.claim_ids:
            return self.claim_ids[number % len(self.claim_ids)]
        self.claim_ids.append(self.new_id())
        return self.claim_ids[-1]

    @rule(
        worker=workers,
        queues=some_queues,
        kinds=some_kinds,
        count=st.sampled_from([1, 1, 2, 3, 5, 20] * 3 + [0]),
        choice=claim_ids,
        number=pick,
        with_lanes=st.sampled_from([False, False, False, True]),
    )
    def claim(
        self,
        worker: str,
        queues: list[str] | None,
        kinds: list[str] | None,
        count: int,
        choice: str,
        number: int,
        with_lanes: bool,
    ) -> None:
        claim_id = self.claim_id(worker, choice, number)
        after = self.lanes(queues or QUEUES, kinds or KINDS, number) if with_lanes else None

        def promised(answer: list[tuple[Any, ...]] | None, _: Any) -> list[tuple[Any, ...]]:
            jobs = self.model.claim(
                worker,
                queues=queues,
                kinds=kinds,
                count=count,
                claim_id=claim_id,
                after=after,
                answer=many(answer or []),
            )
            # The lease that is returned is the kind's present one, in a repeated answer too.
            return [
                (*(getattr(j, n) for n in TOLD), self.model.lease_seconds(j.kind), j.run_at, j.claimed_at) for j in jobs
            ]

        args: dict[str, Any] = {"worker": worker, "queues": queues, "kinds": kinds, "count": count}
        if after is not None:
            args["lanes"] = as_json([lane_json(lane, start) for lane, start in after.items()])
        answer = self.step("claim", promised, list, claim_id=claim_id, **args)
        if isinstance(answer, list):
            self.remember(worker, many(answer))

    @rule(worker=workers, ends=st.lists(st.sampled_from(ENDS), min_size=3, max_size=3), given=reports)
    def a_worker_works(self, worker: str, ends: list[str], given: dict[str, Any]) -> None:
        """As workers do: claim some jobs and bring most of them to an end."""
        self.claim_anything(worker, 3)
        live = [token for owner, token in self.issued if owner == worker and self.runs(token)]
        for token, end in zip(live, ends, strict=False):
            if end == "complete":
                self.report_success(worker, [token], [{"ok": True}])
            elif end == "fail":
                self.report_failures(worker, [given | {"token": token}])
            elif end == "release":
                self.give_back(worker, [token])

    @rule(worker=workers, count=st.sampled_from([1, 2, 20]))
    def claim_anything(self, worker: str, count: int) -> None:
        if not any(job.state == "queued" for job in self.model.jobs.values()):
            self.enqueue_many([PLAIN, PLAIN | {"priority": 1}, PLAIN | {"exclusive_key": "x1"}], "none", 0)
        self.claim(worker, None, None, count, "new", 0, with_lanes=False)

    @rule(worker=workers, queue=st.sampled_from(QUEUES), kind=st.sampled_from(KINDS))
    def claim_from_one_lane(self, worker: str, queue: str, kind: str) -> None:
        self.claim(worker, [queue], [kind], 1, "new", 0, with_lanes=False)

    def lanes(self, queues: list[str], kinds: list[str], number: int) -> dict[tuple[str, str], Any]:
        """Each pair from its beginning, or after one of its jobs."""
        pairs = [(queue, kind) for queue in queues for kind in kinds][: 1 + number % 4]
        found: dict[tuple[str, str], Any] = {}
        for pair in pairs:
            places = sorted(job.place for job in self.model.jobs.values() if job.lane == pair)
            found[pair] = places[number % len(places)] if places and number % 2 else None
        return found

    @rule(number=pick, worker=st.sampled_from([*WORKERS, *WORKERS, ""]))
    def claim_job(self, number: int, worker: str) -> None:
        id_, claim_id = self.job(number, "queued"), self.new_id()
        answer = self.step(
            "claim_job",
            lambda *_: self.model.claim_job(id_, worker, claim_id),
            one,
            job_id=id_,
            worker=worker,
            claim_id=claim_id,
        )
        if answer is True:
            self.remember(worker, [id_])

    def batch_of(self, drawn: list[tuple[int, bool, str]]) -> tuple[str, list[Token]] | None:
        """The batch; where nothing runs that could be reported on, something is claimed first."""
        if not drawn[0][1] and not self.model.running():
            self.claim_anything(WORKERS[drawn[0][0] % len(WORKERS)], 2)
        return self.batch(drawn)

    @rule(drawn=tokens, progress=st.sampled_from([None, None, 0.25, 0.5]), call=st.sampled_from(["heartbeat", "renew"]))
    def heartbeat(self, drawn: list[tuple[int, bool, str]], progress: float | None, call: str) -> None:
        if batch := self.batch_of(drawn):
            worker, held = batch
            given: dict[str, Any] = {}
            if progress is not None:
                given = {"progress": [progress] * len(held), "progress_notes": [f"at {progress}"] * len(held)}
            promised = lambda *_: self.model.heartbeat(worker, held, progress)  # noqa: E731
            self.step(
                call, promised, several if call == "heartbeat" else renewed, worker=worker, **columns(held), **given
            )

    @rule(number=pick, outcome=st.sampled_from(["none", "success", "failed", "released", "said"]))
    def a_report_comes_too_late(self, number: int, outcome: str) -> None:
        """At the very moment when the lease ends, and no sweep has run yet: it is refused like any other."""
        if batch := self.batch_of([(number, False, "right")]):
            worker, held = batch
            self.model.now = max(self.model.now, self.model.jobs[held[0].id].lease_expires_at or self.model.now)
            self.database.set_clock(self.model.now)
            if outcome == "none":
                promised = lambda *_: self.model.heartbeat(worker, held, None)  # noqa: E731
                self.step("heartbeat", promised, several, worker=worker, **columns(held))
            elif outcome == "success":
                self.report_success(worker, held, None)
            elif outcome == "released":
                self.give_back(worker, held)
            elif outcome == "failed":
                self.report_failures(
                    worker, [{"outcome": "failed", "retry_after": 0.5, "fatal": False, "error": None, "token": held[0]}]
                )
            else:
                self.say(worker, held, number)

    @rule(drawn=tokens, number=pick)
    def add_logs(self, drawn: list[tuple[int, bool, str]], number: int) -> None:
        if batch := self.batch_of(drawn):
            self.say(*batch, number)

    def say(self, worker: str, held: list[Token], number: int) -> None:
        line = ["2030-01-01", "info", f"line {number}"]
        promised = lambda *_: self.model.add_logs(worker, held, line)  # noqa: E731
        lines = [as_json([line])] * len(held)
        self.step("add_logs", promised, several, worker=worker, **columns(held), lines=lines)
        id_ = held[0].id
        said = sorted(self.model.jobs[id_].lines.items()) if id_ in self.model.jobs else []
        self.step("logs", lambda *_: said, list, job_id=id_)

    @rule(
        flaw=st.sampled_from(["worker", "attempt", "claim_id"]),
        number=pick,
        call=st.sampled_from(["complete", "release"]),
    )
    def a_stranger_reports(self, flaw: str, number: int, call: str) -> None:
        """On an attempt that runs, with one thing wrong."""
        if batch := self.batch_of([(number, False, flaw)]):
            if call == "end":
                self.report_success(*batch, None)
            else:
                self.give_back(*batch)

    @rule(drawn=tokens, result=st.sampled_from([None, {"ok": True}, [1], "text"]), with_results=st.booleans())
    def complete(self, drawn: list[tuple[int, bool, str]], result: Any, with_results: bool) -> None:
        if batch := self.batch_of(drawn):
            worker, held = batch
            self.report_success(worker, held, [result] * len(held) if with_results else None)

    def report_success(self, worker: str, held: list[Token], results: list[Any] | None) -> None:
        values = results or [None] * len(held)
        self.step(
            "complete",
            lambda *_: self.model.complete(worker, held, values),
            several,
            worker=worker,
            results=results and [None if value is None else as_json(value) for value in results],
            **columns(held),
        )

    @rule(drawn=tokens)
    def release(self, drawn: list[tuple[int, bool, str]]) -> None:
        if batch := self.batch_of(drawn):
            self.give_back(*batch)

    def give_back(self, worker: str, held: list[Token]) -> None:
        promised = lambda *_: self.model.release(worker, held)  # noqa: E731
        self.step("release", promised, several, worker=worker, **columns(held))

    @rule(drawn=tokens, given=st.lists(reports, min_size=3, max_size=3), wrong=wrong_reports)
    def fail_many(self, drawn: list[tuple[int, bool, str]], given: list[dict[str, Any]], wrong: dict[str, Any]) -> None:
        if batch := self.batch_of(drawn):
            worker, held = batch
            given = [given[0] | wrong, *given[1:]]
            failures = [report | {"token": token} for token, report in zip(held, given, strict=False)]
            self.report_failures(worker, failures)

    def report_failures(self, worker: str, failures: list[dict[str, Any]]) -> None:
        reports = [vars(f["token"]) | {name: value for name, value in f.items() if name != "token"} for f in failures]
        promised = lambda *_: self.model.fail_many(worker, failures)  # noqa: E731
        self.step("fail_many", promised, dict, worker=worker, failures=as_json(reports))

    @rule(drawn=st.tuples(pick, stale, st.just("right")), given=reports)
    def fail(self, drawn: tuple[int, bool, str], given: dict[str, Any]) -> None:
        if batch := self.batch_of([drawn]):
            worker, (token,) = batch
            self.step(
                "fail",
                lambda *_: self.model.fail_many(worker, [given | {"token": token}]).get(token.id),
                one,
                worker=worker,
                **vars(token),
                **given | {"error": given["error"] and as_json(given["error"])},
            )

    def owned(self, worker: str) -> None:
        def promised(*_: Any) -> list[tuple[Any, ...]]:
            jobs = sorted((job for job in self.model.running() if job.lease_owner == worker), key=lambda job: job.id)
            return [(job.id, job.attempt, job.claim_id, job.kind, job.lease_expires_at) for job in jobs]

        self.step("owned", promised, list, worker=worker)

    @rule(
        kinds=st.sampled_from([["a"], ["a", "b"], ["b"], [""]]), lease=st.sampled_from([0.5, 2.0, 6.0, 6.0, 2.0, 0.01])
    )
    def declare_kinds(self, kinds: list[str], lease: float) -> None:
        seconds = [lease] * len(kinds)
        promised = lambda *_: self.model.declare_kinds(kinds, seconds)  # noqa: E731
        self.step("declare_kinds", promised, nothing, kinds=kinds, lease_seconds=seconds)

    def lease_seconds(self, kind: str) -> None:
        self.step("lease_seconds", lambda *_: self.model.lease_seconds(kind), one, kind=kind)

    def start_worker(self, worker: str, lease: float) -> None:
        promised = lambda *_: self.model.declare_kinds(["b"], [lease])  # noqa: E731
        self.step("start_worker", promised, nothing, worker=worker, kinds=["b"], lease_seconds=[lease], slots=4)

    def counts(self) -> None:
        def promised(*_: Any) -> dict[str, int]:
            jobs = self.model.jobs.values()
            found = {
                state: sum(job.state == state for job in jobs) for state in ("running", "retry", "success", "dead")
            }
            # No client waits yet for a job that is not accepted.
            found["created"] = sum(job.state == "created" and job.accepted for job in jobs)
            return found | {"queued": sum(job.state == "queued" for job in jobs)}

        def read(rows: list[tuple[Any, ...]]) -> dict[str, int]:
            found = {state: jobs for state, jobs, _ in rows if state != "success in 10 s"}
            found["queued"] += found.pop("parked")
            return found

        self.step("counts", promised, read)

    def notify(self) -> None:
        self.step("notify", lambda *_: None, nothing, names=QUEUES)

    def stop_worker(self, worker: str) -> None:
        self.step("stop_worker", lambda *_: None, nothing, worker=worker)

    @rule(
        what=st.sampled_from(
            ["start_worker", "owned", "lease_seconds", "next_due", "counts", "notify", "status", "stop_worker"]
        ),
        number=pick,
        worker=workers,
    )
    def look(self, what: str, number: int, worker: str) -> None:
        """What changes little or nothing shares one rule, so that the others get more of the steps."""
        calls: dict[str, Callable[[], None]] = {
            "status": lambda: self.status(number),
            "owned": lambda: self.owned(worker),
            "lease_seconds": lambda: self.lease_seconds(KINDS[number % len(KINDS)]),
            "start_worker": lambda: self.start_worker(worker, 2.0 if number % 2 else 6.0),
            "stop_worker": lambda: self.stop_worker(worker),
        }
        calls.get(what, getattr(self, what))()
