"""Workers and API servers that can be broken, and live on from cell to cell of the matrix of loops.

Several cells are tried at once, each at another place of the same process and each with another error, which its
message names: so the log shows of each whether it was said.
"""

import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from uuid import uuid4

from faults.fleet import Member
from faults.matrix.breaking import ERRORS
from faults.matrix.table import PASSED
from faults.matrix.world import APP, BOUND, LONG, Job, World
from faults.proxy import RAISE, Proxy
from faults.waiting import happens, until
from leasehold.errors import WorkerFailed

Cell = tuple[str, str]
Found = dict[Cell, str]
Fired = Callable[[], bool]

PROGRAM: Final = "faults.matrix.breaking"

KINDS: Final = ("quick", "chatty", "flaky")
"""What a seat is given to do: between them they come to every place of a worker."""

ENDING: Final = ("SystemExit", "KeyboardInterrupt")
"""What ends an API server, which runs no code of users: with an exit code and a line."""


DIED: Final = "has died, so the worker ends"


_numbers = itertools.count(1)


class Fuses:
    """A knife that raises an error in place of each of these functions, once each.

    Its words are new each time: what a worker has said of a schedule, it does not say again.
    """

    def __init__(self, states: dict[str, str]) -> None:
        self._states = states
        self._guard = threading.Lock()
        self.blown: set[str] = set()

    def __call__(self, function: str) -> tuple[str, str] | None:
        """Whether it is this one's turn."""
        with self._guard:
            if function not in self._states or function in self.blown:
                return None
            self.blown.add(function)
        return RAISE, f"{self._states[function]} {function} {next(_numbers)}"


@dataclass
class Seat:
    """A worker or an API server, with a proxy of its own before the database."""

    world: World
    member: Member
    proxy: Proxy
    name: str
    held: list[str] = field(default_factory=list)
    until: str = ""
    """What lets them go."""
    left: list[str] = field(default_factory=list)
    """Jobs that it released, or should have: the next in its place has to run them."""
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def strike(self, pack: Sequence[Cell]) -> dict[Cell, Fired]:
        """Have the process raise at failpoints, and the server in place of calls; returns how to find out whether they have."""
        fuses = Fuses({place(cell): cell[1] for cell in pack if cell[0].startswith("call ")})
        self.proxy.knife = fuses
        fired: dict[Cell, Fired] = {}
        lines = []
        for cell in pack:
            if cell[0].startswith("call "):
                fired[cell] = functools.partial(fuses.blown.__contains__, place(cell))
            else:
                number = next(self.numbers)
                lines.append(f"{number} {place(cell)} {cell[1]}\n")
                fired[cell] = (self.world.run.folder / f"arm-{self.name}.{number}").exists
        file = self.world.run.folder / f"arm-{self.name}"
        partial = file.with_suffix(".new")
        partial.write_text("".join(lines))
        partial.rename(file)
        return fired

    def has(self, job: Job) -> bool:
        """Whether this process, not one before it, has the job's lease."""
        return job["state"] == "running" and f":{self.member.pid}:" in str(job["lease_owner"])

    def heal(self) -> None:
        """Nothing more is raised."""
        self.strike([])

    def let_go(self) -> None:
        """Let the held jobs end."""
        if self.until:
            self.world.let_go(self.until)

    def said_since(self, mark: int) -> str:
        """What it has printed since it had printed so many characters."""
        return self.member.said()[mark:]


def place(cell: Cell) -> str:
    """The failpoint, the function or the loop."""
    return cell[0].partition(" ")[2]


def sit(world: World, kind: str, n: int, *options: str) -> Seat:
    """Make one that can be broken; it is not started."""
    proxy = Proxy(world.server.dsn)
    world.run.stack.callback(proxy.close)  # after the processes have ended
    name = f"{kind}-{n}-seat"
    env = {"FAULTS_ARM": str(world.run.folder / f"arm-{name}"), **world.env}
    fleet = world.run.fleet
    if kind == "api":
        return Seat(world, fleet.server(name, proxy.dsn, program=PROGRAM, **env), proxy, name)
    queues = f"{name},default"
    worker = fleet.worker(name, proxy.dsn, "--queues", queues, *options, app=APP, program=PROGRAM, **env)
    return Seat(world, worker, proxy, name)


# -- a worker that works


def hurt(seat: Seat, pack: Sequence[Cell]) -> Found:
    """The errors come while the worker has all kinds of work: nothing is lost or charged, and it is said."""
    world = seat.world
    hold(seat)
    mark = len(seat.member.said())
    fired = seat.strike(pack)
    jobs: list[str] = []
    deadline = time.monotonic() + LONG
    while not _all(fired) and seat.member.alive and time.monotonic() < deadline:
        jobs += [world.enqueue(kind, queue=seat.name) for kind in KINDS]
        happens(lambda: _all(fired) or not seat.member.alive, within=0.5)
    found = {
        cell: PASSED if reached() else "the place was not reached: nothing was tried" for cell, reached in fired.items()
    }
    seat.heal()
    heard(seat, mark, [cell for cell, reached in fired.items() if reached()])
    code, why = finish(seat, jobs)
    innocent = [job for job, row in world.jobs(jobs).items() if row["kind"] != "flaky"]
    if code is None:
        why = why or kept(seat) or world.charged(innocent)
    else:
        why = why or world.charged([*seat.held, *innocent])
    settled(seat, mark)
    said = seat.said_since(mark)
    for cell in pack:
        found[cell] = found[cell] or why or verdict_on_end(code, said, cell) or spoken(said, cell)
    return found


def heard(seat: Seat, mark: int, pack: Sequence[Cell]) -> None:
    """Wait until the log names each error; where it says that the worker ends, until it has."""

    def all_said() -> bool:
        said = seat.said_since(mark)
        return DIED not in said and not any(spoken(said, cell) for cell in pack)

    happens(lambda: not seat.member.alive or all_said(), within=BOUND)


def settled(seat: Seat, mark: int) -> None:
    """Wait until the log says that the database is back: an outage that begins before that has no line of its own."""
    lines = ("waits for the database", "the database is back")
    until(
        lambda: seat.said_since(mark).count(lines[0]) <= seat.said_since(mark).count(lines[1]),
        "the log says that the database is back", within=LONG,
    )  # fmt: skip


def finish(seat: Seat, jobs: Sequence[str]) -> tuple[int | None, str]:
    """Wait until these have succeeded, by the next worker if this one ends; its exit code, and what has not ended."""
    world, code = seat.world, None
    deadline = time.monotonic() + LONG
    while True:
        if not seat.member.alive:
            if code is not None:
                return code, f"the worker ended a second time: {seat.member.said()[-200:]}"
            code = seat.member.returncode
            seat.member.start()
        if not (why := world.ended(jobs, within=0)):
            return code, PASSED
        if time.monotonic() > deadline:
            return code, f"its jobs: {why}"
        time.sleep(0.03)


def hold(seat: Seat) -> None:
    """See to it that the worker lives and has leases to renew."""
    world = seat.world
    if not seat.member.alive:
        if seat.member.returncode not in (None, WorkerFailed.exit_code):
            raise RuntimeError(f"after the cell before, the worker ended with {seat.member.returncode}")
        seat.member.start()
    running = world.jobs(seat.held)
    if not running or any(not seat.has(job) or job["attempt"] != 1 for job in running.values()):
        seat.let_go()  # those that a worker before it left would take its slots
        seat.until = uuid4().hex
        seat.held = [world.enqueue("hold", {"until": seat.until}, queue=seat.name) for _ in range(2)]
    held = seat.held
    until(lambda: all(map(seat.has, world.jobs(held).values())), "the seat holds jobs", within=LONG)


def kept(seat: Seat) -> str:
    """Whether a worker that lives on has lost a lease."""
    lost = [row for row in seat.world.jobs(seat.held).values() if not seat.has(row) or row["attempt"] != 1]
    return f"a live lease was lost: {lost}" if lost else PASSED


def verdict_on_end(code: int | None, said: str, cell: Cell) -> str:
    """A worker may end of what is no answer to a call, with its own code and a line that names the loop."""
    if code is None:
        return PASSED
    if code != WorkerFailed.exit_code or not (cell[1] in ERRORS or place(cell) == "after-claim"):
        return f"the worker ended with {code}: {said[-300:]}"
    return PASSED if DIED in said else f"it ended without a word: {said[-300:]}"


def spoken(said: str, cell: Cell) -> str:
    """Whether the log names the error; of a cancelled loop it names the loop."""
    cancelled = ("has died", "this server is stopping")  # an API server cancels what is under way when it stops
    if f"{cell[1]} on purpose" in said or (cell[1] == "CancelledError" and any(words in said for words in cancelled)):
        return PASSED
    return f"the log does not say it: {said[-300:]}"


# -- an API server


def hurt_api(seat: Seat, pack: Sequence[Cell]) -> Found:
    """The errors come while clients submit and look: each is answered, and afterwards all is well."""
    if not seat.member.alive:
        seat.member.start().ready()
    mark = len(seat.member.said())
    fired = seat.strike(pack)
    answers = []
    deadline = time.monotonic() + LONG
    while not _all(fired) and seat.member.alive and time.monotonic() < deadline:
        answers.append(ask(seat))
    found = {
        cell: PASSED if reached() else "the place was not reached: nothing was tried" for cell, reached in fired.items()
    }
    seat.heal()
    may_end = all(cell[1] in ENDING for cell in pack)
    well = "the API works again"
    until(lambda: ask(seat) == "" or (may_end and not seat.member.alive), well, within=LONG)
    if ended := may_end and not seat.member.alive:
        code = seat.member.returncode
        seat.member.start().ready()
        until(lambda: ask(seat) == "", well, within=LONG)
    why = "" if seat.member.alive else f"the server ended with {seat.member.returncode}"
    if ended:
        why = why or ("" if code else "the server ended as if all were well")
    elif bad := [answer for answer in answers if answer.startswith("nothing")]:
        why = why or f"a client got no answer: {bad[0]}"
    said = seat.said_since(mark) + "".join(answers)
    for cell in pack:
        silent = cell[0] in ("at before-answer", "at half-answer")  # the answer is what is broken
        found[cell] = found[cell] or (PASSED if silent else why or spoken(said, cell))
    return found


def ask(seat: Seat) -> str:
    """Submit and look, with a token that is new to the server: nothing, or what went wrong."""
    world, token = seat.world, seat.world.new_token()
    try:
        job = world.post(url=seat.member.url, token=token, within=15)
        world.get(f"{seat.member.url}/jobs/{job}", token=token)
    except HTTPError as error:
        return f"{error.code}: {error.read().decode(errors='replace')}"
    except (URLError, OSError, HTTPException) as error:
        return f"nothing: {error}"
    return ""


def _all(fired: dict[Cell, Fired]) -> bool:
    return all(reached() for reached in fired.values())
