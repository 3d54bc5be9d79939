"""A frozen network: each connection of a worker and of an API server, alone and together, for one to five leases.

Each cell has a worker, or an API server, behind a proxy of its own; several cells run beside each other. A worker that
reaches the server directly, and what it holds, are the innocents of all.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final
from urllib.error import HTTPError, URLError
from uuid import uuid4

from faults.fleet import Member
from faults.matrix.table import PASSED, Result, Table, chosen, diagonal, groups
from faults.matrix.world import APP, BOUND, World
from faults.proxy import Proxy
from faults.run import Run

Cell = tuple[str, str]

WORKER: Final = {
    "worker: claimer": "leasehold claimer",
    "worker: finisher": "leasehold finisher",
    "worker: keeper": "leasehold keeper",
    "worker: upkeep": "leasehold upkeep",
    "worker: listener": "leasehold listener",
    "worker: claimer and finisher": "leasehold (claimer|finisher)",
    "worker: keeper and listener": "leasehold (keeper|listener)",
    "worker: all that are open": "",
    "worker: all, and all that come": "",
}
"""Rows with the names of the connections."""

API: Final = {
    "API: connections for calls": "^leasehold$",
    "API: the others": "^leasehold .+",
    "API: all that are open": "",
    "API: all, and all that come": "",
}

ROWS: Final = WORKER | API
WAYS: Final = ("freeze", "mute", "deaf", "slow", "reset", "close", "half-open")
CUTS: Final = ("reset", "close", "half-open")
LEASES: Final = (1, 2, 3, 5)
COLUMNS: Final = [f"{way} for {leases} leases" for way in WAYS for leases in LEASES]
SMALL: Final = [f"{way} for {leases} leases" for way, leases in zip(WAYS, (2, 1, 2, 1, 1, 1, 2), strict=True)]
"""In CI: each way once."""


@dataclass
class Seat:
    """One worker or API server behind its own proxy; a cell at a time."""

    proxy: Proxy
    member: Member
    queue: str
    held: list[str] = field(default_factory=list)


def frozen(run: Run) -> None:
    """The matrix."""
    world = World(run, "--queues", "default", workers=1, every=None)
    world.keep_held(4)
    rows, columns = list(ROWS), COLUMNS if run.full else SMALL
    wanted = chosen([(row, column) for row in rows for column in columns] if run.full else diagonal(rows, columns))
    table = Table(rows=len(rows), columns=len(columns))
    with ExitStack() as stack:
        seats = {
            kind: [sit(world, stack, kind, n) for n in range(4 if kind == "worker" else 2)]
            for kind in ("worker", "API")
            if any(row.startswith(kind) for row, _ in wanted)
        }
        for cells in rounds(wanted, {kind: len(found) for kind, found in seats.items()}):
            table.add(probe(world, seats, cells), run.folder)
        world.let_go()
        run.check(not (why := world.ended(world.held, within=60)), f"innocents: {why}")
        run.check(not (why := world.charged(world.held)), why)
        world.settle()
    table.close(run)


def sit(world: World, stack: ExitStack, kind: str, n: int) -> Seat:
    """Start one behind a proxy."""
    proxy = Proxy(world.server.dsn, hole=world.run.lease * 6)
    stack.callback(proxy.close)
    queue = f"seat-{kind}-{n}"
    fleet = world.run.fleet
    if kind == "API":
        return Seat(proxy, fleet.server(queue, proxy.dsn).start().ready(), queue)
    worker = fleet.worker(queue, proxy.dsn, "--queues", queue, slots=20, app=APP).start()
    return Seat(proxy, worker, queue)


def rounds(cells: Sequence[Cell], seats: dict[str, int]) -> Iterator[list[Cell]]:
    """As many cells at once as there are seats for."""
    by_kind = {kind: [cell for cell in cells if cell[0].startswith(kind)] for kind in seats}
    parts = {kind: list(groups(found, seats[kind])) for kind, found in by_kind.items()}
    for n in range(max(map(len, parts.values()))):
        yield [cell for found in parts.values() if n < len(found) for cell in found[n]]


def probe(world: World, seats: dict[str, list[Seat]], cells: Sequence[Cell]) -> dict[Cell, Result]:
    """These cells at once, each on a seat of its own."""
    free = {kind: list(found) for kind, found in seats.items()}
    with ThreadPoolExecutor(len(cells)) as pool:
        futures = {}
        for cell in cells:
            kind = "API" if cell[0] in API else "worker"
            act = of_api if kind == "API" else of_worker
            futures[cell] = pool.submit(act, world, free[kind].pop(), *cell)
        return {cell: _reason(future) for cell, future in futures.items()}


def _reason(future: "object") -> str:
    try:
        return str(future.result(200))  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def suffer(world: World, seat: Seat, row: str, column: str) -> None:
    """Do it to the connections, for as long as the column says."""
    way, leases = column.removesuffix(" leases").split(" for ")
    lasts = float(leases) * world.run.lease
    new = row.endswith("that come")
    world.run.log.note("fault", row=row, column=column, seat=seat.queue)
    if way in CUTS:
        seat.proxy.cut(way, ROWS[row])
        if new:  # and none that comes lives
            end = time.monotonic() + lasts
            while time.monotonic() < end:
                seat.proxy.cut("reset")
                time.sleep(0.05)
            return
        time.sleep(lasts)
        return
    stall = seat.proxy.stall(way, ROWS[row], new=new)
    time.sleep(lasts)
    seat.proxy.heal(stall)


def of_worker(world: World, seat: Seat, row: str, column: str) -> str:
    """Jobs that run keep their leases, unless the whole network is gone; new ones end; the worker lives on."""
    seat.held = hold(world, seat)
    try:
        return endured(world, seat, row, column)
    finally:
        world.let_go(seat.held[0])


def endured(world: World, seat: Seat, row: str, column: str) -> str:
    """Why the worker did not get over it."""
    before = len(seat.member.said())
    quick: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        suffering = pool.submit(suffer, world, seat, row, column)
        while not suffering.done():
            quick.append(world.enqueue(queue=seat.queue))
            time.sleep(world.run.lease / 4)
        suffering.result()
    if not seat.member.alive:
        code = seat.member.returncode
        seat.member.start()
        return f"the worker ended with {code}"
    if why := world.ended(quick, within=BOUND):
        return f"not run: {why}"
    gone = row.endswith("that come")
    if not gone and (why := world.charged([*seat.held, *quick])):
        return why
    world.let_go(seat.held[0])
    if why := world.ended(seat.held, within=BOUND):
        return f"what it held: {why}"
    if gone and "for 1 " not in column and not any(word in seat.member.said()[before:] for word in ("WARN", "ERROR")):
        return "the log does not say that the database was away"
    return PASSED


def hold(world: World, seat: Seat) -> list[str]:
    """Jobs that the worker runs until the file appears, which has the name of the first."""
    name = str(uuid4())
    first = world.enqueue("hold", {"until": name}, queue=seat.queue, id=name)
    rest = [world.enqueue("hold", {"until": name}, queue=seat.queue) for _ in range(2)]
    jobs = [first, *rest]
    world.until(lambda: all(job["state"] == "running" for job in world.jobs(jobs).values()), "the seat holds jobs")
    return jobs


def of_api(world: World, seat: Seat, row: str, column: str) -> str:
    """Every request is answered in time, with a job or with 503, and afterwards with a job."""
    with ThreadPoolExecutor(8) as pool:
        suffering = pool.submit(suffer, world, seat, row, column)
        asked = []
        while not suffering.done():
            asked.append(pool.submit(post, world, seat))
            time.sleep(world.run.lease / 2)
        suffering.result()
        answers = [future.result() for future in asked]
    if not seat.member.alive:
        code = seat.member.returncode
        seat.member.start().ready()
        return f"the server ended with {code}"
    if bad := [answer for answer in answers if answer not in ("", "503")]:
        return f"answered {bad[:3]}"
    deadline = time.monotonic() + BOUND
    while (answer := post(world, seat)) != "":
        if time.monotonic() > deadline:
            return f"still answers {answer} when the network is whole again"
        time.sleep(0.2)
    return PASSED


def post(world: World, seat: Seat) -> str:
    """Nothing where a job was recorded, else what came instead."""
    try:
        world.post(url=seat.member.url, within=15)
    except HTTPError as error:
        return str(error.code)
    except (URLError, OSError) as error:
        return f"nothing: {error}"
    return ""
