"""Many sessions make all calls for the same jobs at once: none deadlocks, and the invariants hold."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement

import psycopg
import pytest

SECONDS = 4.0


class Chaos:
    """One session's share of the disorder."""

    def __init__(self, session, place, ids, broken: threading.Event) -> None:
        self.session = session
        self.broken = broken
        self.chance = random.Random(place)
        self.ids = ids
        # Workers share names, so that one's heartbeat meets another's finish of the same jobs.
        self.worker = f"w{place % 4}"
        self.acts = [self.claim, self.claim_job, self.heartbeat, self.complete, self.fail_many, self.release]
        self.acts += [self.sweep, self.cancel, self.retry, self.enqueue_again]

    def run(self, until: float) -> dict[str, int]:
        done: dict[str, int] = {}
        while time.monotonic() < until and not self.broken.is_set():
            act = self.chance.choice(self.acts)
            name = act.__name__
            try:
                act()
            except psycopg.Error as error:
                name = f"{name}: {error.sqlstate} {error}"
                self.broken.set()
            done[name] = done.get(name, 0) + 1
        return done

    def owned(self):
        """Some of what the worker owns, in any order."""
        rows = self.session.rows("owned", worker=self.worker)
        return self.chance.sample(rows, min(len(rows), self.chance.randint(1, 20)))

    def claim(self):
        claim_id = self.session.value("select gen_random_uuid()") if self.chance.random() < 0.5 else None
        self.session.rows("claim", worker=self.worker, count=self.chance.randint(1, 30), claim_id=claim_id)

    def claim_job(self):
        self.session.one("claim_job", job_id=self.chance.choice(self.ids), worker=self.worker)

    def report(self, function):
        if rows := self.owned():
            ids, attempts = [row.id for row in rows], [row.attempt for row in rows]
            self.session.rows(function, worker=self.worker, ids=ids, attempts=attempts)

    def heartbeat(self):
        self.report("heartbeat")

    def complete(self):
        if self.chance.random() < 0.3:
            self.report("complete")

    def release(self):
        self.report("release")

    def fail_many(self):
        failures = [{"id": str(row.id), "attempt": row.attempt, "retry_after": 0.01} for row in self.owned()]
        if failures:
            self.session.rows("fail_many", worker=self.worker, failures=failures)

    def sweep(self):
        self.session.one("sweep", max=self.chance.randint(1, 50))
        self.session.one("promote", max=self.chance.randint(1, 50))

    def cancel(self):
        self.session.one("cancel", id=self.chance.choice(self.ids))

    def retry(self):
        for job in self.chance.sample(self.ids, 5):
            self.session.one("retry", id=job)

    def enqueue_again(self):
        keys = self.chance.sample(range(30), 10)
        self.session.rows("enqueue_many", jobs=[{"kind": "a", "idempotency_key": str(key)} for key in keys])


def disorder(db, session) -> dict[str, int]:
    session.one("declare_kinds", kinds=["a", "b"], lease_seconds=[0.2, 0.5])
    ids = db.insert(session, 120, exclusive_key="'x' || n % 9", kind="(array['a', 'b'])[1 + n % 2]", priority="n % 3")
    ids += db.insert(session, 80, kind="(array['a', 'b'])[1 + n % 2]")
    until = time.monotonic() + SECONDS
    broken = threading.Event()
    done: dict[str, int] = {}
    for part in db.crowd(16, lambda s, place: Chaos(s, place, ids, broken).run(until)):
        for name, count in part.items():
            done[name] = done.get(name, 0) + count
    return done


def test_no_mix_of_calls_deadlocks_and_the_books_balance(db, session):
    done = disorder(db, session)
    assert [name for name in done if ":" in name] == []
    assert len(done) == 10
    db.assert_consistent(session)


def failures(ids):
    return [{"id": str(job), "attempt": 1} for job in ids]


REPORTS = {
    "complete_v1": lambda s, ids: s.rows("complete", worker="w", ids=ids, attempts=[1] * len(ids)),
    "release_v1": lambda s, ids: s.rows("release", worker="w", ids=ids, attempts=[1] * len(ids)),
    "fail_many_v1": lambda s, ids: s.rows("fail_many", worker="w", failures=failures(ids)),
}


def crossing_reports(db, session, first, second) -> list[BaseException | None]:
    """Two reports on the same two jobs in opposite orders; returns their errors.

    Both wait for the first job, the second report perhaps with the second job in its hand.
    """
    db.insert(session, 2)
    ids = sorted(session.column("claim", worker="w", count=2))
    reporters = [db.connect(), db.connect()]
    answers = []
    with ThreadPoolExecutor(2) as pool:
        with db.connect() as holder, holder.transaction():
            holder.execute("select from jobs where id = %s for update", [ids[0]])
            for reporter, report, order in zip(reporters, (first, second), (ids, ids[::-1]), strict=True):
                answers.append(pool.submit(report, reporter, order))
                db.until_blocked(session, [reporter.info.backend_pid])
        return [answer.exception() for answer in answers]


PAIRS = list(combinations_with_replacement(REPORTS, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_reports_on_the_same_jobs_in_opposite_orders_never_deadlock(shared, module_db, first, second):
    assert crossing_reports(module_db, shared, REPORTS[first], REPORTS[second]) == [None, None]
    module_db.assert_consistent(shared)


@pytest.mark.parametrize(("function", "report"), [("succeed", "complete_v1"), ("release_v1", "release_v1")])
def test_crossing_reports_catch_one_that_locks_in_any_order(db, session, function, report):
    session.mutate(function, " order by t.id)", ")")
    errors = crossing_reports(db, session, REPORTS[report], REPORTS[report])
    assert [type(error) for error in errors if error] == [psycopg.errors.DeadlockDetected]


BREAKAGES = {
    "parked with no job left that unparks it": "update jobs set parked = true where exclusive_key = 'x'",
    "attempts with a gap": "update jobs set attempt = 2 where exclusive_key is null",
    "an attempt of no job": "insert into attempts select gen_random_uuid(), 1, 'w', 'failed', now(), now()",
}


@pytest.mark.parametrize(("law", "breakage"), list(BREAKAGES.items()), ids=list(BREAKAGES))
def test_the_books_notice_what_is_broken(db, session, law, breakage):
    db.insert(session, 1)
    db.insert(session, 1, exclusive_key="'x'")
    db.assert_consistent(session)
    session.execute(breakage)
    with pytest.raises(AssertionError, match=law):
        db.assert_consistent(session)
