"""Sleeping sessions: every function of the SQL API is called in a transaction that then idles, and the fleet goes on.

A row is a call; what it works on is its own, made for it: jobs of a kind that no worker knows (`queued`, `created`, `dead`,
`ghost`: running, of a worker that is not there), a job that the fleet runs (`fleet`), a schedule, a token, a limit, a queue.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import HTTPError
from uuid import uuid4

import psycopg

from faults.matrix.sleepers import KEEPS, KEEPS_WORKER, LIMITS, NEW, NOT, ROWS
from faults.matrix.table import PASSED, NotApplicable, Result, Table, chosen, groups, together
from faults.matrix.world import BOUND, World
from faults.run import Run
from faults.waiting import happens, until
from leasehold.db.migrations.migrate import Limits, migrate
from leasehold.errors import LeaseholdError

COLUMNS: Final = ("post", "enqueue", "claim", "renew", "report", "sweep", "schedule", "limits", "migrate")


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A session with an open transaction."""

    row: str
    connection: psycopg.Connection[Any]
    things: dict[str, Any]


def sleeping(run: Run) -> None:
    """The matrix."""
    world = awake(run)
    table = Table(rows=len(ROWS), columns=len(COLUMNS))
    rows = chosen([row for row in ROWS if row not in NOT])
    for found in together(groups(rows, 1 if run.full else 37), lambda part: probe(world, part)):
        table.add(found, run.folder)
        if dead := world.dead_workers():
            run.problems.append(dead)
            break
    table.add({(row, column): NotApplicable(why) for row, why in NOT.items() for column in COLUMNS})
    world.rows("select schedule_disable('tick')")
    world.let_go()
    run.check(not (why := world.ended(sorted(world.innocents), within=60)), why)
    run.check(not (why := world.charged()), why)
    world.rows("select cancel(id) from jobs where kind = 'victim' and state in ('queued', 'retry')")
    world.settle()
    run.check(not (why := world.untold()), why)
    table.close(run)


def awake(run: Run) -> World:
    """A fleet, with what the calls and the columns need."""
    world = World(run)
    world.serve()
    world.rows("select declare_kinds(array['victim'], array[600]::double precision[])")
    for scope, name in LIMITS.items():
        world.rows("select set_limit(%s, %s, 50)", scope, name)
    world.enqueue("hold", {"until": "held"}, exclusive_key="busy")
    return world


def probe(world: World, rows: Sequence[str], columns: Sequence[str] = COLUMNS) -> dict[tuple[str, str], Result]:
    """Let these calls sleep, all at once, and see whether everything goes on."""
    world.keep_held(6, everywhere=True)
    with ExitStack() as stack:
        made_for = {row: make(world, row) for row in rows}  # before the first sleeps, which may be in the way
        sleepers = list(asleep(world, made_for, stack))
        before = set(world.innocents)
        why = dict.fromkeys(COLUMNS, PASSED)
        futures = {column: world.pool.submit(ACTS[column], world, sleepers) for column in columns}
        for column, future in futures.items():
            why[column] = _reason(future)
        made = world.innocents - before
        world.run.log.note("wake", rows=list(rows))
        slept = [sleeper.row for sleeper in sleepers]
    for sleeper in sleepers:
        clear(world, sleeper.things)
    if charged := world.charged():
        why["renew"] = why["renew"] or charged
        world.forgive()
    if late := world.ended(sorted(made)):
        why["report"] = why["report"] or f"and not after the session had ended either: {late}"
    return {(row, column): why[column] for row in slept for column in columns}


def _reason(future: "Future[str]") -> str:
    try:
        return future.result(120)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# -- the sessions


def asleep(world: World, made_for: Mapping[str, dict[str, Any]], stack: ExitStack) -> Iterator[Sleeper]:
    """Let these calls sleep, as far as they can beside each other."""
    kept = ""  # the worker whose row is kept
    for row, things in made_for.items():
        if row in KEEPS_WORKER and kept not in ("", things["worker"]):
            clear(world, things)
        elif found := sleep(world, row, things, stack, alone=len(made_for) == 1):
            kept = things["worker"] if row in KEEPS_WORKER else kept
            yield found


def sleep(world: World, row: str, things: dict[str, Any], stack: ExitStack, *, alone: bool) -> Sleeper | None:
    """Call, and leave the transaction open. None: it waits for others of its group."""
    connection = world.connect(application_name=f"sleeping {row}"[:60])
    connection.autocommit = False
    stack.callback(connection.close)
    connection.execute(f"set local statement_timeout = '{20 if alone else 1}s'")
    call = ROWS[row].partition(" from (select %(")
    query = f"select * from {call[0]}"
    try:
        connection.execute(query, things)  # type: ignore[arg-type]
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        if alone:
            raise
        connection.close()
        clear(world, things)
        return None
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith("LH"):
            raise
        # Refused: the transaction has failed and still sleeps, with whatever it had locked.
    world.run.log.note("sleep", row=row)
    return Sleeper(row, connection, things)


def make(world: World, row: str) -> dict[str, Any]:
    """What the call names."""
    name = f"{row} {uuid4().hex[:6]}"
    things: dict[str, Any] = {
        "name": name,
        "queue": name,
        "lease": world.run.lease,
        "claim": str(uuid4()),
        "owner": name,
    }
    wanted = ROWS[row]
    for thing, query in NEW.items():
        if f"%({thing})s" in wanted:
            with world.connect() as connection:
                things[thing] = connection.execute(query, things).fetchone()[0]  # type: ignore[arg-type, index]
            if "'victim'" in query and "schedule" not in query:
                world.made(things[thing])
    if "%(ghost)s" in wanted or "%(dead)s" in wanted:
        things["ghost"] = things["dead"] = _ghost(world, things)
        if "%(dead)s" in wanted:
            world.rows("select fail(%s, %s::uuid, 1, fatal => true)", name, things["dead"])
    if "%(fleet)s" in wanted:
        things["fleet"] = job = world.enqueue("hold", {"until": name})
        until(lambda: world.jobs([job])[job]["state"] == "running", "the fleet runs the victim")
        things["worker"] = world.jobs([job])[job]["lease_owner"]
        things["fleet_claim"] = world.value("select claim_id::text from jobs where id = %s::uuid", job)
    return things


def _ghost(world: World, things: dict[str, Any]) -> str:
    """A job that a worker which does not exist runs."""
    query = "select id::text from claim(%s, queues => array[%s], count => 1, claim_id => %s::uuid)"
    world.enqueue("victim", queue=things["queue"])
    return str(world.value(query, things["owner"], things["queue"], things["claim"]))


def clear(world: World, things: dict[str, Any]) -> None:
    """The session has ended: bring its things to an end too."""
    world.let_go(things["name"])
    world.rows(
        "select cancel(id) from jobs where kind = 'victim' and state in ('created', 'queued', 'retry')"
        " and (queue in (%s, 'limited') or idempotency_key = %s)",
        things["queue"], things["name"],
    )  # fmt: skip
    if "ghost" in things:
        world.rows("select complete(%s, array[%s::uuid], array[1])", things["owner"], things["ghost"])
    if "token" in things:  # as long as there is one the API wants one
        world.rows("delete from tokens where name <> 'matrix'")
    if "paused" in things:
        world.rows("select resume(%s)", things["paused"])


# -- what the fleet does meanwhile


def post(world: World, sleepers: Sequence[Sleeper]) -> str:
    """Jobs arrive over HTTP, and are answered; also beside such as have the key of a job that is not committed yet."""
    blocked = [sleeper.things["name"] for sleeper in sleepers if "idempotency" in ROWS[sleeper.row]]
    same = [world.pool.submit(world.post, "victim", key=key) for key in blocked for _ in range(3)]
    for future in [world.pool.submit(world.post) for _ in range(3)]:
        future.result()
    for future in same:  # may be refused, and must be answered
        if isinstance(error := future.exception(), TimeoutError | OSError) and not isinstance(error, HTTPError):
            return f"a post of the key that the session holds was not answered: {error}"
    return PASSED


def enqueue(world: World, _: Sequence[Sleeper]) -> str:
    """Jobs arrive by SQL."""
    with world.connect(connect_timeout=10) as connection:
        connection.execute("set statement_timeout = '20s'")
        for options in ({}, {"exclusive_key": str(uuid4())}, {"queue": str(uuid4())}):
            world.innocent(connection=connection, **options)
    return PASSED


def claim(world: World, _: Sequence[Sleeper]) -> str:
    """What is queued is started."""
    jobs = [world.innocent(), world.innocent(queue=str(uuid4()))]
    if happens(lambda: all(job["attempt"] for job in world.jobs(jobs).values()), within=BOUND):
        return PASSED
    return f"not claimed: {world.ended(jobs, within=0)}"


def renew(world: World, _: Sequence[Sleeper]) -> str:
    """Every lease that is held is renewed in time."""
    query = (
        "select id::text, lease_expires_at from jobs where kind = 'hold' and state = 'running' and id = any(%s::uuid[])"
    )
    innocents = world.held
    first = dict(world.rows(query, innocents))
    deadline = time.monotonic() + world.run.lease * 1.5
    left = dict(first)
    while left and time.monotonic() < deadline:
        now = dict(world.rows(query, innocents))
        left = {job: at for job, at in left.items() if job in now and now[job] <= at} | {
            job: at for job, at in left.items() if job not in now
        }
        time.sleep(0.03)
    return f"{len(left)} of {len(first)} leases were not renewed" if left else PASSED


def report(world: World, _: Sequence[Sleeper]) -> str:
    """What was started ends."""
    return world.ended([world.innocent(), world.innocent("hold", {"until": "."})])


def sweep(world: World, _: Sequence[Sleeper]) -> str:
    """What a dead worker left is found and run."""
    return world.ended([world.orphan()])


def schedule(world: World, _: Sequence[Sleeper]) -> str:
    """The schedule fires."""
    query = "select fired from schedules where key = 'tick'"
    first = world.value(query)
    until(lambda: world.value(query) > first, "the schedule fires", within=BOUND)
    return PASSED


def limits(world: World, sleepers: Sequence[Sleeper]) -> str:
    """What is under limits runs; under one that a session keeps, when that has ended."""
    kept = {KEEPS[sleeper.row] for sleeper in sleepers if sleeper.row in KEEPS}
    jobs = {
        "queue": world.innocent(queue=LIMITS["queue"]),
        "kind": world.innocent(LIMITS["kind"]),
        "key": world.innocent(exclusive_key=f"{LIMITS['key']}{uuid4()}"),
    }
    return world.ended([job for scope, job in jobs.items() if scope not in kept])


def migrate_again(world: World, _: Sequence[Sleeper]) -> str:
    """All functions are made again, or the migration says who is in its way."""
    world.rows("update function_files set checksum = 'changed'")
    began = time.monotonic()
    try:
        migrate(world.server.dsn, limits=Limits(lock_timeout=0.5, attempts=2, first_pause=0.1))
    except LeaseholdError as error:
        if "sleeping" not in str(error) and "pid" not in str(error):
            return f"does not name the session that it waits for: {error}"
    took = time.monotonic() - began
    return f"took {took:.1f} s" if took > 30 else PASSED


ACTS: Final[dict[str, Callable[[World, Sequence[Sleeper]], str]]] = {
    "post": post, "enqueue": enqueue, "claim": claim, "renew": renew, "report": report, "sweep": sweep,
    "schedule": schedule, "limits": limits, "migrate": migrate_again,
}  # fmt: skip
