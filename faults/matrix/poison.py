"""Poison: values and behaviours, times every place where a producer or a task can say something.

A cell passes when the value is refused where it enters, with an error that is ours, or the job comes to its end; and
in both cases the innocents beside it succeed at their first attempt, the workers live, and the job can be looked at.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from faults.matrix.behaviours import DEADLY, EVERYWHERE, ON_THE_LOOP
from faults.matrix.corpus import VALUES
from faults.matrix.producers import PRODUCERS, Producers, Unfit
from faults.matrix.says import PLACES
from faults.matrix.table import PASSED, Found, NotApplicable, Result, Table, chosen, diagonal, halving
from faults.matrix.world import Job, World
from faults.run import Run

Cell = tuple[str, str]

IN: Final = {"": "", "in a thread: ": " in a thread", "in a process: ": " in a process"}
"""How tasks run: the beginning of the column, the end of the kind."""

SAID: Final = [f"{way}{place}" for way in IN for place in PLACES]
BEHAVED: Final = [f"{way}behave" for way in IN]
LOOKS: Final = 30.0
"""Seconds that a job gets: most are over in a few milliseconds, together with the others of their batch."""


ACTS: Final = [*EVERYWHERE, *ON_THE_LOOP, *DEADLY]
BATCH: Final = 120
"""So many cells are tried at once; where one of them fails, halves of them, until it is known which."""


def cells(*, full: bool) -> list[Cell]:
    """The whole matrix, or the sample in which every row and every column occurs."""
    values, acts = list(VALUES), ACTS
    places = [*PRODUCERS, *SAID]
    if full:
        # By column: what shares a batch differs in the value only.
        return [(row, column) for column in [*places, *BEHAVED] for row in [*values, *acts]]
    behaved = [(act, column) for act in acts for column in BEHAVED if not unfit(act, column)]
    # Each behaviour once, its ways of running in turns.
    chosen = {act: [cell for cell in behaved if cell[0] == act] for act in acts}
    return diagonal(values, places) + [found[n % len(found)] for n, found in enumerate(chosen.values())]


def unfit(row: str, column: str) -> str:
    """Why the cell makes no sense, or nothing."""
    if column not in BEHAVED:
        return "a behaviour is not a value that could be said" if row in ACTS else ""
    if row in VALUES:
        return "a value is said, it does not behave"
    if row in ON_THE_LOOP and column != "behave":
        return "only a coroutine can do it"
    if row in DEADLY and column != "in a process: behave":
        return "it would end the worker itself, which tests/worker/test_bystanders.py does"
    return ""


def poison(run: Run) -> None:
    """The matrix."""
    world = World(run, every=None, slots=30, app="faults.matrix.says:app")
    world.serve()
    wanted = chosen(cells(full=run.full))
    table = Table(rows=len({row for row, _ in wanted}), columns=len({column for _, column in wanted}))
    producers = Producers(world)
    run.stack.callback(producers.close)
    table.add({cell: NotApplicable(why) for cell in wanted if (why := unfit(*cell))}, run.folder)
    fit = [cell for cell in wanted if cell not in table.results]
    said_by_producers = [cell for cell in fit if cell[1] in PRODUCERS]
    said_by_tasks = [cell for cell in fit if cell[1] not in PRODUCERS]
    for found in halving(said_by_producers, BATCH, lambda part: produce(world, producers, part)):
        table.add(found, run.folder)
    for found in halving(said_by_tasks, BATCH, lambda part: speak(world, part)):
        table.add(found, run.folder)
    run.check(not (why := world.charged()), why)
    world.settle()
    table.close(run)


def produce(world: World, producers: Producers, part: Sequence[Cell]) -> Found:
    """A producer says each value in its place; what was taken has to come to its end, and can be looked at."""
    found: dict[Cell, Result] = {}
    jobs: dict[Cell, str] = {}
    printed = [worker.printed for worker in world.workers]
    innocents = [world.innocent() for _ in range(5)]
    for row, column in part:
        try:
            job = producers.say(column, VALUES[row])
        except Unfit as reason:
            found[row, column] = NotApplicable(str(reason))
        except AssertionError as reason:
            found[row, column] = str(reason)
        else:
            found[row, column] = PASSED
            if job is not None:
                jobs[row, column] = job
    innocents += [world.innocent() for _ in range(5)]
    producers.withdraw()
    return found | judged(world, jobs, innocents, printed, producers)


def speak(world: World, part: Sequence[Cell]) -> Found:
    """Tasks say each value in its place, beside innocents."""
    jobs: dict[Cell, str] = {}
    printed = [worker.printed for worker in world.workers]
    innocents = [world.innocent() for _ in range(5)] + [world.innocent("hold", {"until": "."})]
    for row, column in part:
        way = next(way for way in sorted(IN, reverse=True) if column.startswith(way))
        place = column.removeprefix(way)
        what = {"what": row} if place == "behave" else {"place": place, "value": row}
        kind = ("behave" if place == "behave" else "say") + IN[way]
        jobs[row, column] = world.enqueue(kind, what, queue="poison", max_attempts=2)
    innocents += [world.innocent() for _ in range(5)] + [world.innocent("chatty")]
    return judged(world, jobs, innocents, printed)


def judged(
    world: World, jobs: dict[Cell, str], innocents: list[str], printed: list[int], producers: Producers | None = None
) -> Found:
    """Wait until all have ended, and see what became of them and of the others."""
    deadline = time.monotonic() + LOOKS + len(jobs) / 20
    left = dict(jobs)
    while left and time.monotonic() < deadline:
        states = world.jobs(left.values())
        left = {c: j for c, j in left.items() if j in states and states[j]["state"] not in ("success", "dead")}
        # What waits for a time that is far is not to be waited for.
        world.rows("select run_now(id) from jobs where id = any(%s::uuid[]) and state = 'retry'", list(left.values()))
        time.sleep(0.05)
    reasons: dict[Cell, Result] = dict.fromkeys(jobs, PASSED)
    states = world.jobs(jobs.values())
    for cell in left:
        state = states[jobs[cell]]
        reasons[cell] = f"has not ended: {state['state']}, attempt {state['attempt']}, failures {state['retry_count']}"
    unlogged = silent(world, states.values(), printed)
    reasons |= {cell: "the log does not say what happened to it" for cell, job in jobs.items() if job in unlogged}
    harm = world.ended(innocents, within=60) or world.charged(innocents) or world.dead_workers()
    if harm:
        reasons = {cell: why or f"harm to others: {harm}" for cell, why in reasons.items()}
        heal(world, left.values())
    for cell, job in jobs.items():
        if not reasons[cell] and producers is not None and (why := producers.look(job)):
            reasons[cell] = why
    return reasons


def silent(world: World, jobs: Iterable[Job], printed: list[int]) -> set[str]:
    """Those that failed or died in a worker, and of which no line of the workers' logs says so."""
    left = {str(job["id"]) for job in jobs if job["attempt"] and (job["retry_count"] > 0 or job["state"] == "dead")}
    deadline = time.monotonic() + LOOKS
    while left:
        said = "".join(worker.said(after) for worker, after in zip(world.workers, printed, strict=True))
        logged = {job for line in said.splitlines() if " leasehold.worker: " in line for job in left if job in line}
        left -= logged
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def heal(world: World, jobs: Any) -> None:
    """After a failure: new workers, and nothing of what stopped the old ones."""
    for worker in world.workers:
        worker.kill()
    world.rows("update jobs set lease_expires_at = clock() - interval '1 s' where state = 'running'")
    world.rows("select sweep()")
    world.rows("select cancel(id) from jobs where id = any(%s::uuid[])", list(jobs))
    for worker in world.workers:
        worker.start()
