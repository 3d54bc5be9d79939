"""Dying loops: an exception out of each loop and thread, and each SQLSTATE class out of each call, at each failpoint.

A call fails in earnest: the proxy has the server raise the error in place of it. At a failpoint the process itself raises.
Where a loop or a thread ends, its process has to end, with a code and a line of its own, and its jobs are run by another.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError

from faults.fleet import Member
from faults.matrix.breaking import ERRORS, LOOPS, THREADS
from faults.matrix.table import PASSED, NotApplicable, Result, Table, chosen, diagonal
from faults.matrix.world import APP, BOUND, World
from faults.proxy import RAISE, Proxy
from faults.run import Run
from leasehold.errors import WorkerFailed
from leasehold.failpoints import SUBMISSION, WORK

Cell = tuple[str, str]

PROGRAM: Final = "faults.matrix.breaking"

STATES: Final = (
    "03000", "08000", "08006", "09000", "0A000", "0B000", "0F000", "0L000", "0P000", "0Z000", "20000", "21000", "22000", "22P05",
    "23000", "23505", "24000", "25000", "25P02", "25P04", "26000", "27000", "28000", "2B000", "2D000", "2F000", "34000", "38000",
    "39000", "3B000", "3D000", "3F000", "40001", "40P01", "42000", "42501", "42883", "42P05", "44000", "53100", "53200", "53300",
    "54000", "55000", "55P03", "57014", "57P01", "58030", "72000", "F0000", "HV000", "P0001", "XX000", "XX001", "LH001", "LH003", "ZZ999",
)  # fmt: skip
"""Each class of PostgreSQL's, where it matters several of one, ours, and one that there is not."""

CALLS: Final = (
    "claim", "renew", "complete", "fail_many", "add_logs", "upkeep", "schedule_due", "schedule_claim", "schedule_fire",
    "statistics_add",
)  # fmt: skip
"""What a worker calls while it works, by the names of the functions without their versions."""

API_CALLS: Final = ("submit_many", "accept_many", "statuses", "token")
"""What an API server calls."""

SHARED: Final = {"upkeep", "schedule_due", "schedule_claim", "schedule_fire", "statistics_add"} | {
    "after-schedule-claim", "after-schedule-fire",
}  # fmt: skip
"""What any worker of the fleet may come to next: they are all armed."""

ENDS: Final = {"before-release", "after-release"}
"""Failpoints that only a worker which ends comes to: `faults failpoints` has them."""

EVERY: Final = [*ERRORS, *STATES]
ROWS: Final[dict[str, Sequence[str]]] = {
    **{f"loop {name}": list(ERRORS) for name in [*LOOPS, *THREADS]},
    **{f"at {point}": EVERY for point in (*WORK, *SUBMISSION)},
    **{f"call {name}": STATES for name in (*CALLS, *API_CALLS)},
}
"""Each row with its columns."""


@dataclass
class Seat:
    """A worker or an API server that can be broken, and lives on from cell to cell."""

    world: World
    member: Member
    proxy: Proxy
    name: str
    held: list[str] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def arm(self, point: str, error: str) -> Callable[[], bool]:
        """Have it raise at a failpoint; gives how to learn whether it has."""
        number = next(self.numbers)
        file = self.world.run.folder / f"arm-{self.name}"
        partial = file.with_suffix(".new")
        partial.write_text(f"{number} {point} {error}")
        partial.rename(file)
        return (self.world.run.folder / f"arm-{self.name}.{number}").exists

    def fail(self, function: str, state: str) -> Callable[[], bool]:
        """Have the server answer the next call of a function with an error."""
        fuse = Fuse(function, state)
        self.proxy.knife = fuse
        return fuse.blown.is_set


class Fuse:
    """A knife that raises once."""

    def __init__(self, function: str, state: str) -> None:
        self._function = function
        self._state = state
        self._guard = threading.Lock()
        self.blown = threading.Event()

    def __call__(self, function: str) -> tuple[str, str] | None:
        """Whether it is this one's turn."""
        with self._guard:
            if function != self._function or self.blown.is_set():
                return None
            self.blown.set()
        return RAISE, self._state


def cells(*, full: bool) -> list[Cell]:
    """All, or each row and each column once."""
    if full:
        return [(row, column) for row, columns in ROWS.items() for column in columns]
    parts = {kind: [row for row in ROWS if row.startswith(kind)] for kind in ("loop", "at", "call")}
    shared = [row for row in parts["call"] if _place((row, "")) in SHARED]
    parts["call"] = [row for row in parts["call"] if row not in shared]
    alone = [(row, STATES[n]) for n, row in enumerate(shared)]
    alone += [(row, list(ERRORS)[n % len(ERRORS)]) for n, row in enumerate(parts["loop"])]
    return alone + diagonal(parts["at"], list(ERRORS)) + diagonal(parts["call"], STATES)


def loops(run: Run) -> None:
    """The matrix."""
    world = World(run, "--queues", "default", workers=1)
    wanted = chosen(cells(full=run.full))
    table = Table(rows=len({row for row, _ in wanted}), columns=len({column for _, column in wanted}))
    world.keep_held(4)
    dying = [cell for cell in wanted if cell[0].startswith("loop ")]
    with ThreadPoolExecutor(4) as pool:
        futures = {cell: pool.submit(die, world, *cell) for cell in dying}
        table.add({cell: _reason(future) for cell, future in futures.items()}, run.folder)
    rest = [cell for cell in wanted if cell not in dying]
    of_api = [cell for cell in rest if _place(cell) in (*SUBMISSION, *API_CALLS)]
    shared = [cell for cell in rest if _place(cell) in SHARED]
    of_worker = [cell for cell in rest if cell not in of_api and cell not in shared]
    seats = [sit(world, "worker", n) for n in range(4)] if of_worker or shared else []
    servers = [sit(world, "api", n) for n in range(2)] if of_api else []
    with ThreadPoolExecutor(8) as pool:
        lanes = [pool.submit(work, seat, of_worker[n :: len(seats)], hurt) for n, seat in enumerate(seats)]
        lanes += [pool.submit(work, seat, of_api[n :: len(servers)], hurt_api) for n, seat in enumerate(servers)]
        for lane in lanes:
            table.add(lane.result(), run.folder)
    for cell in shared:
        try:
            table.add({cell: hurt_any(seats, *cell)}, run.folder)
        except TimeoutError as error:
            table.add({cell: str(error)}, run.folder)
    world.rows("select schedule_disable('tick')")
    for name in ["held", *(seat.name for seat in seats)]:
        world.let_go(name)
    run.check(not (why := world.ended(world.held, within=60) or world.charged(world.held)), f"innocents: {why}")
    world.settle()
    table.close(run)


def sit(world: World, kind: str, n: int) -> Seat:
    """Start one that can be broken."""
    proxy = Proxy(world.server.dsn)
    world.run.stack.callback(proxy.close)  # after the processes have ended
    name = f"{kind}-{n}-seat"
    env = {"FAULTS_ARM": str(world.run.folder / f"arm-{name}")}
    fleet = world.run.fleet
    if kind == "api":
        return Seat(world, fleet.server(name, proxy.dsn, program=PROGRAM, **env).start().ready(), proxy, name)
    env["FAULTS_EVERY"] = "1"
    worker = fleet.worker(name, proxy.dsn, "--queues", f"{name},default", app=APP, program=PROGRAM, **env)
    return Seat(world, worker.start(), proxy, name)


def work(seat: Seat, wanted: Sequence[Cell], act: Callable[[Seat, str, str], Result]) -> dict[Cell, Result]:
    """One cell after the other; a process that ended is started again."""
    found: dict[Cell, Result] = {}
    for row, column in wanted:
        try:
            found[row, column] = act(seat, row, column)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
            found[row, column] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        seat.proxy.knife = None
        if not seat.member.alive:
            seat.member.start()
            if seat.member.url:
                seat.member.ready()
    return found


def _place(cell: Cell) -> str:
    return cell[0].partition(" ")[2]


def _strike(seat: Seat, row: str, column: str) -> Callable[[], bool]:
    where, _, name = row.partition(" ")
    return seat.arm(name, column) if where == "at" else seat.fail(name, column)


def hurt(seat: Seat, row: str, column: str) -> Result:
    """The error comes while the worker has all kinds of work: nothing is lost, nothing is charged, and it lives on."""
    if row.removeprefix("at ") in ENDS:
        return NotApplicable("only a worker that ends comes there")
    world = seat.world
    hold(seat)
    fired = _strike(seat, row, column)
    jobs = [world.enqueue(kind, queue=seat.name) for kind in ("quick", "chatty", "flaky")]
    deadline = time.monotonic() + BOUND
    while not fired() and seat.member.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    if not fired():
        return "the place was not reached: nothing was tried"
    deadline = time.monotonic() + BOUND
    while (why := world.ended(jobs, within=0)) and seat.member.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    if not seat.member.alive:
        why = verdict_on_end(seat, column)
        seat.member.start()
        return why or ((late := world.ended(jobs, within=60)) and f"not run by the next worker: {late}")
    if why:
        return f"its jobs: {why}"
    if why := world.charged([*seat.held, *jobs[:2]]):
        return why
    return PASSED


def hurt_any(seats: list[Seat], row: str, column: str) -> Result:
    """The error comes to whichever worker is first: none ends, the schedule fires on, no lease is lost."""
    world = seats[0].world
    for seat in seats:
        hold(seat)
    struck = [_strike(seat, row, column) for seat in seats]
    deadline = time.monotonic() + 2 * BOUND
    jobs = []
    while not any(fired() for fired in struck) and time.monotonic() < deadline:
        jobs += [world.enqueue("flaky", queue=seat.name) for seat in seats]  # what is to be retried, and counted
        time.sleep(0.5)
    fired = any(fired() for fired in struck)
    for seat in seats:
        seat.proxy.knife = None
    if not fired:
        return "the place was not reached: nothing was tried"
    query = "select fired from schedules where key = 'tick'"
    before = world.value(query)
    reasons = []
    try:
        world.until(lambda: world.value(query) > before, "the schedule fires again")
    except TimeoutError as error:
        reasons.append(str(error))
    for seat in seats:
        if not seat.member.alive:
            reasons.append(verdict_on_end(seat, column))
            seat.member.start()
        elif why := world.charged(seat.held):
            reasons.append(why)
    reasons.append(world.ended(jobs, within=60))
    return "; ".join(filter(None, reasons)) or PASSED


def verdict_on_end(seat: Seat, column: str) -> str:
    """A worker may end of what is no error of the database, if it does so with its code; else it has to live on."""
    code = seat.member.returncode
    return PASSED if column in ERRORS and code == WorkerFailed.exit_code else f"the worker ended with {code}"


def hold(seat: Seat) -> None:
    """See to it that the worker lives and has leases to renew."""
    world = seat.world
    if not seat.member.alive:
        seat.member.start()
    running = world.jobs(seat.held)
    seat.held = [job for job in seat.held if running[job]["state"] == "running" and running[job]["attempt"] == 1]
    seat.held += [world.enqueue("hold", {"until": seat.name}, queue=seat.name) for _ in range(2 - len(seat.held))]
    held = seat.held
    world.until(lambda: all(job["state"] == "running" for job in world.jobs(held).values()), "the seat holds jobs")


def hurt_api(seat: Seat, row: str, column: str) -> Result:
    """The error comes while clients submit and look: each is answered, and afterwards all is well."""
    world = seat.world
    fired = _strike(seat, row, column)
    answers = []
    deadline = time.monotonic() + BOUND
    while not fired() and time.monotonic() < deadline:
        answers.append(ask(seat))
    if not fired():
        return NotApplicable("it is asked now and then only") if "token" in row else "the place was not reached"
    world.until(lambda: ask(seat) == "", "the API works again")
    if not seat.member.alive:
        return f"the server ended with {seat.member.returncode}"
    if bad := [answer for answer in answers if answer.startswith("nothing") and "answer" not in row]:
        return f"a client got no answer: {bad[0]}"
    return PASSED


def ask(seat: Seat) -> str:
    """Submit and look: nothing, or what went wrong."""
    world = seat.world
    try:
        job = world.post(url=seat.member.url, within=15)
        world.get(f"{seat.member.url}/jobs/{job}")
    except HTTPError as error:
        return str(error.code)
    except (URLError, OSError, HTTPException) as error:
        return f"nothing: {error}"
    return ""


def die(world: World, row: str, column: str) -> Result:
    """A loop ends: so does the process, with its code and a line that names it, and another runs what it had."""
    place = row.removeprefix("loop ")
    name = f"{place} {column}".replace(" ", "-").replace("'", "")
    member = world.run.fleet.worker(
        name,
        world.server.dsn,
        "--queues",
        name,
        app=APP,
        program=PROGRAM,
        FAULTS_BREAK=f"{place}:{column}",
        FAULTS_EVERY="1",
    )
    jobs = [world.enqueue("hold", {"until": name}, queue=name, max_attempts=5) for _ in range(2)]
    member.start()
    deadline = time.monotonic() + 60
    while member.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        if member.alive:
            return "the process lives on, with a dead loop"
        if member.returncode != WorkerFailed.exit_code:
            return f"ended with {member.returncode}, not {WorkerFailed.exit_code}: {member.said()[-200:]}"
        said = member.said()
        if "ERROR" not in said and "error" not in said and "CRITICAL" not in said:
            return f"without a word: {said[-200:]}"
        world.let_go(name)
        successor = world.run.fleet.worker(name + "-next", world.server.dsn, "--queues", name, app=APP).start()
        why = world.ended(jobs, within=60)
        successor.end()
        world.run.fleet.members.remove(successor)
        return why and f"what it had was not run by another: {why}"
    finally:
        world.let_go(name)
        if member.alive:
            member.kill()
        world.run.fleet.members.remove(member)


def _reason(future: "Future[Result]") -> Result:
    try:
        return future.result(200)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
