"""The parts of the workload: the situations in which functions of this kind go wrong, brought about on purpose.

Each part has kinds and queues of its own, so that all of them run at the same time. Where something must happen between
two steps of another session, that is forced (a lock that is held, a lease that is waited for), never left to chance.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import psycopg

from faults.waiting import happens
from faults.workload import Caller, Crew, Part

GATE: Final = "hashtext(current_setting('application_name'))"
"""The advisory lock at which a mutant waits, if its session is called `slow …`."""

PATIENCE: Final = 20.0
"""Seconds to wait for what a mutant may prevent: the run goes on then, and its history is judged."""

WAITS: Final = (
    "select exists (select from pg_stat_activity"
    " where datname = current_database() and pid = %s and wait_event_type = 'Lock')"
)


def stale(crew: Crew) -> None:
    """A worker claims a job, loses it, claims it again, and its first run wakes up and reports with the old token."""
    caller = crew.caller()
    for op in ("heartbeat", "complete", "fail", "release"):
        caller.lease("stale", 0.1)
        caller.enqueue("stale", f"stale {op}")
        for old in caller.claim("w1", "stale"):
            caller.wait_until_swept(old[0])
            caller.lease("stale", 60)
            for new in caller.claim("w1", "stale"):
                getattr(caller, op)("w1", old)
                caller.complete("w1", new)


def late(crew: Crew) -> None:
    """A worker reports and renews after its lease has expired, before and after it was swept."""
    caller = crew.caller()
    for op in ("heartbeat", "complete"):
        caller.enqueue("brief", f"late {op}")
        for token in caller.claim("w2", "brief"):
            caller.wait_until_swept(token[0])
            getattr(caller, op)("w2", token)
        caller.enqueue("brief", f"later {op}")
        for token in caller.claim("w2", "brief"):
            # The worker's own transaction has the row: sweepers, of whom there are some in other parts, pass it over.
            with caller.connection.transaction():
                caller.rows("select from jobs where id = %s::uuid for update", token[0])
                caller.wait_for_expiry(token[0])
                getattr(caller, op)("w2", token)


def pinned(crew: Crew) -> None:
    """A worker renews while another session has the row of its job."""
    caller, other = crew.caller(), crew.caller()
    caller.enqueue("pinned", "pinned")
    for token in caller.claim("w3", "pinned"):
        with other.connection.transaction():
            other.rows("select from jobs where id = %s::uuid for update", token[0])
            caller.heartbeat("w3", token)
            time.sleep(0.3)  # so that the next renewal is not taken for this one
        caller.heartbeat("w3", token)
        caller.complete("w3", token)


def crowd(crew: Crew) -> None:
    """Many workers, whatever can happen to a job, and answers that get lost."""
    chief = crew.caller()
    chance = crew.chance("crowd")
    jobs = [chief.enqueue("crowd", f"crowd {n}", max_attempts=chance.randint(1, 3)) for n in range(40)]
    known = [job for job in jobs if job]

    def work(caller: Caller, place: int) -> None:
        chance = crew.chance(f"crowd {place}")
        worker = f"crowd {place}"
        for _ in range(15):
            claim_id = str(uuid4())
            tokens = caller.claim(worker, "crowd", 2, claim_id=claim_id)
            if chance.random() < 0.3:
                tokens = caller.claim(worker, "crowd", 2, claim_id=claim_id)  # the answer was lost
            for token in tokens:
                _something(caller, worker, token, chance.random())
            if place == 0:
                caller.upkeep()
                caller.change(chance.choice(["cancel", "retry", "retry"]), chance.choice(known))

    crew.together(4, work)


def _something(caller: Caller, worker: str, token: tuple[str, int], fate: float) -> None:
    """One of the things that may become of a job."""
    if fate < 0.2:
        caller.heartbeat(worker, token)
    if fate < 0.55:
        caller.complete(worker, token)
        if fate < 0.3:
            caller.complete(worker, token)  # the answer was lost
    elif fate < 0.75:
        caller.fail(worker, token)
        if fate < 0.65:
            caller.fail(worker, token)
    elif fate < 0.8:
        caller.fail(worker, token, fatal=True)
    elif fate < 0.9:
        caller.release(worker, token)
    # Else it dies with its worker.


def keys(crew: Crew) -> None:
    """Several clients send the same intents at the same moment."""

    def send(caller: Caller, place: int) -> None:
        for n in range(place, place + 5):
            caller.enqueue("few", f"key {n % 5}")

    crew.together(4, send)


def greedy(crew: Crew) -> None:
    """A claim that asks for one job while there are many; then the same claim again, because its answer was lost."""
    caller = crew.caller()
    for n in range(6):
        caller.enqueue("few", f"few {n}")
    for _ in range(3):
        claim_id = str(uuid4())
        for _ in range(2):
            tokens = caller.claim("w3", "few", 1, claim_id=claim_id)
        for token in tokens:
            caller.complete("w3", token)


def limited(crew: Crew) -> None:
    """More claimers at once than a limit has room for; what they take runs until all have claimed."""
    chief = crew.caller()
    for n in range(6):
        chief.enqueue("limited", f"limited {n}")

    claimers = [crew.caller("slow claimer") for _ in range(4)]
    with _gate(chief, "slow claimer"), ThreadPoolExecutor(len(claimers)) as pool:
        claims = [pool.submit(claimer.claim, f"limited {n}", "limited") for n, claimer in enumerate(claimers)]
        for claimer, claim in zip(claimers, claims, strict=True):
            _until_blocked(chief, claimer, claim)
        _open(chief)
        taken = [(f"limited {n}", token) for n, claim in enumerate(claims) for token in claim.result()]
    for worker, token in taken:
        chief.complete(worker, token)


def exclusive(crew: Crew) -> None:
    """Several claimers, and jobs that must not run together."""
    chief = crew.caller()
    for n in range(6):
        chief.enqueue("exclusive", f"exclusive {n}", exclusive_key="the one")

    def work(caller: Caller, place: int) -> None:
        for _ in range(3):
            for token in caller.claim(f"exclusive {place}", "exclusive", 2):
                caller.complete(f"exclusive {place}", token)

    crew.together(3, work)


def parked(crew: Crew) -> None:
    """A job is parked behind another one of its key, which then ends."""
    caller = crew.caller()
    for n in range(2):
        caller.enqueue("parked", f"parked {n}", exclusive_key="behind")
    for token in caller.claim("w4", "parked"):
        caller.claim("w5", "parked")
        caller.complete("w4", token)


def later(crew: Crew) -> None:
    """Jobs whose time has not come, and workers who look for them all the while."""
    caller = crew.caller()
    for n in range(3):
        caller.enqueue("later", f"later {n}", run_after="0.4 seconds")
    deadline = time.monotonic() + 0.6
    while time.monotonic() < deadline:
        caller.upkeep()
        for token in caller.claim("w6", "later"):
            caller.complete("w6", token)
        time.sleep(0.05)


def waiting(crew: Crew) -> None:
    """A claim has to wait for a lock, and one of the jobs that it takes is recorded meanwhile."""
    caller, holder, chief = crew.caller(), crew.caller(), crew.caller()
    chief.rows("select start_worker('w7')")
    chief.enqueue("wait", "wait 0")  # a claim that finds nothing does not wait
    let_go = [0.0]
    with ThreadPoolExecutor(1) as pool:
        with holder.connection.transaction():
            holder.rows("select begin_claim('w7', gen_random_uuid())")  # claims of one worker wait for each other
            claim = pool.submit(caller.claim, "w7", "wait", 2, after=lambda: let_go[0])
            happens(lambda: bool(chief.rows(WAITS, caller.connection.info.backend_pid)[0][0]), within=PATIENCE)
            chief.enqueue("wait", "wait 1")
            time.sleep(0.2)
            let_go[0] = time.time()
        for token in claim.result():
            caller.complete("w7", token)


def taken(crew: Crew) -> None:
    """A worker asks for one particular job that another one is running."""
    caller = crew.caller()
    caller.enqueue("held", "held")
    for token in caller.claim("w8", "held"):
        caller.claim_job("w9", token[0])
        caller.sweep()
        caller.complete("w8", token)


def slow_sweeper(crew: Crew) -> None:
    """A sweeper is slow; meanwhile another one sweeps, and a worker claims the job again."""
    caller, gate, slow = crew.caller(), crew.caller(), crew.caller("slow sweeper")
    caller.lease("stale sweep", 0.1)
    caller.enqueue("stale sweep", "stale sweep")
    for token in caller.claim("w10", "stale sweep"):
        caller.wait_for_expiry(token[0])
        with _gate(gate, "slow sweeper"), ThreadPoolExecutor(1) as pool:
            sweeping = pool.submit(slow.sweep)
            _until_blocked(gate, slow, sweeping)
            caller.lease("stale sweep", 60)
            caller.sweep()
            again = caller.claim("w11", "stale sweep")
            _open(gate)
            sweeping.result()
        for newer in again:
            caller.complete("w11", newer)


def doomed(crew: Crew) -> None:
    """Jobs that fail until they are dead, one that a person cancels, one that a person retries."""
    caller = crew.caller()
    caller.enqueue("doomed", "doomed", max_attempts=2)
    for _ in range(4):
        for token in caller.claim("w12", "doomed"):
            caller.fail("w12", token)
        caller.upkeep()
    cancelled = caller.enqueue("doomed", "cancelled")
    finished = caller.enqueue("doomed", "finished")
    if cancelled is not None:
        caller.change("cancel", cancelled)
    for token in caller.claim("w12", "doomed"):
        caller.complete("w12", token)
    for job in (cancelled, finished):
        if job is not None:
            caller.change("retry", job)


def ticking(crew: Crew) -> None:
    """A schedule is due; one scheduler dies after its claim, comes back late, and all calls are repeated."""
    first, second = crew.caller(), crew.caller()
    first.rows("select schedule_put('tick', 'tick', every => '1 hour', queue => 'tick')")
    first.rows("update schedules set next_run_at = date_trunc('hour', clock()) - interval '5 hours' returning key")
    for _ in range(2):
        late_claim = _claim_schedule(first, "s1")
        happens(
            lambda: (
                first.rows("select coalesce(locked_until <= clock(), true) from schedules where key = 'tick'")
                == [(True,)]
            ),
            within=PATIENCE,
        )
        claim = _claim_schedule(second, "s2")
        _fire(second, "s2", claim)
        _fire(second, "s2", claim)  # the answer was lost
        _fire(first, "s1", late_claim)


def _claim_schedule(caller: Caller, worker: str) -> tuple[str, str] | None:
    query = "select token::text, next_run_at::text from schedule_claim('tick', %s)"
    try:
        token, due = caller.rows(query, worker)[0]
    except psycopg.Error:
        return None
    return str(token), str(due)


def _fire(caller: Caller, worker: str, claim: tuple[str, str] | None) -> None:
    if claim is None:
        return
    token, due = claim
    call = caller.log.invoke("fire", schedule="tick", due=[due])
    query = (
        "select due_at::text, job_id::text from schedule_fire('tick', %s, %s::uuid, %s::timestamptz,"
        " array[%s::timestamptz], %s::timestamptz + interval '1 hour')"
    )
    try:
        jobs = caller.rows(query, worker, token, due, due, due)
    except psycopg.Error as error:
        caller.log.fail(call, error=error.sqlstate)
    else:
        caller.log.ok(call, jobs=jobs)


@contextmanager
def _gate(keeper: Caller, name: str) -> Iterator[None]:
    """Keep the gate shut for sessions of that name."""
    keeper.rows("select pg_advisory_lock(hashtext(%s))", name)
    try:
        yield
    finally:
        _open(keeper)


def _open(keeper: Caller) -> None:
    keeper.rows("select pg_advisory_unlock_all()")


def _until_blocked(observer: Caller, waiting: Caller, doing: Future[Any]) -> None:
    """Wait until the other one waits for a lock, or has nothing to wait for."""
    pid = waiting.connection.info.backend_pid
    happens(lambda: doing.done() or bool(observer.rows(WAITS, pid)[0][0]), within=PATIENCE)


PARTS: Final[tuple[tuple[Part, ...], ...]] = (
    (slow_sweeper, keys, greedy, limited, exclusive, parked, waiting, ticking),
    (stale, late, pinned, crowd, later, taken, doomed),
)
"""What runs at the same time; then the next. The slow sweeper wants no other one beside it."""
