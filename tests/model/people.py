"""The rules of upkeep, of operators, of time, and of people with a plain UPDATE."""

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.calls import WorkCalls, workers
from tests.model.machine import limit, one, pick


class Calls(WorkCalls):
    """Everything that can be asked of the database."""

    @rule(limit=limit)
    def sweep(self, limit: int) -> None:
        self.step("sweep", lambda _, after: self.model.sweep(limit, after.states), one, max=limit)

    @rule(limit=limit)
    def promote(self, limit: int) -> None:
        self.step("promote", lambda _, after: self.model.promote(limit, after.states), one, max=limit)

    def next_due(self) -> None:
        self.step("next_due", lambda *_: self.model.next_due(), one)

    @rule(number=pick, why=st.sampled_from([None, "because"]))
    def cancel(self, number: int, why: str | None) -> None:
        id_ = self.job(number, "running", "queued", "retry") if number % 3 else self.job(number)
        self.step("cancel", lambda *_: self.model.cancel(id_, why), one, id=id_, why=why)
        self.step("promote", lambda *_: 0, one, max=0)  # upkeep, which the cancel wakes, puts parked jobs back

    @rule(number=pick)
    def retry(self, number: int) -> None:
        id_ = self.job(number, "dead")
        self.step("retry", lambda *_: self.model.retry(id_), one, id=id_)

    @rule(
        choice=st.sampled_from(["a little", "until something is due", "until something is due", "until everything is"])
    )
    def time_passes(self, choice: str) -> None:
        due = sorted(
            at
            for job in self.model.jobs.values()
            for at in [job.lease_expires_at, job.run_at if job.state in ("created", "retry", "queued") else None]
            if at is not None and at > self.model.now
        )
        little = self.model.now + timedelta(seconds=0.5)
        self.model.now = little if choice == "a little" or not due else due[0 if "something" in choice else -1]
        self.database.set_clock(self.model.now)

    @rule(choice=st.sampled_from(["until something is due", "until everything is"]))
    def time_passes_and_upkeep_follows(self, choice: str) -> None:
        self.time_passes(choice)

        def promised(*_: Any) -> list[tuple[Any, ...]]:
            return [(self.model.sweep(1000, {}), self.model.promote(1000, {}), self.model.next_due())]

        self.step("upkeep", promised, list, max=1000)

    @rule(number=pick)
    def somebody_lowers_max_attempts(self, number: int) -> None:
        """Of a job that waits to be tried again; promote has to find it exhausted."""
        waiting = [job for job in self.model.jobs.values() if job.state == "retry"]
        if waiting:
            job = waiting[number % len(waiting)]
            job.max_attempts = 1
            self.database.connection.execute("update leasehold.jobs set max_attempts = 1 where id = %s", [job.id])

    @rule(number=pick, worker=workers)
    def somebody_postpones(self, number: int, worker: str) -> None:
        """A job that is queued already; no claim may take it before its time."""
        waiting = [job for job in self.model.jobs.values() if job.state == "queued" and not job.exclusive_key]
        if waiting:
            job = waiting[number % len(waiting)]
            job.run_at = self.model.now + timedelta(seconds=4)
            postpone = "update leasehold.jobs set run_at = %s where id = %s"
            self.database.connection.execute(postpone, [job.run_at, job.id])
            self.claim(worker, [job.queue], [job.kind], 1, "new", 0, with_lanes=False)
