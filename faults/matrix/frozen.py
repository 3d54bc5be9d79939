"""A frozen network: each connection of a worker and of an API server, alone and together, for one to five leases.

Each cell has a worker, or an API server, behind a proxy of its own; several cells run beside each other. A worker that
reaches the server directly, and what it holds, are the innocents of all.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Final
from urllib.error import HTTPError, URLError
from uuid import uuid4

from faults.fleet import Member
from faults.matrix.table import PASSED, Result, Table, chosen, diagonal
from faults.matrix.world import APP, BOUND, World
from faults.proxy import Proxy
from faults.run import Run
from faults.waiting import until

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
SMALL: Final = [f"{way} for 1 leases" for way in ("mute", "freeze", "deaf", "slow", "reset", "close", "half-open")]
"""In CI: each row once, each way at least once, for as short as the matrix knows. In this order no cell holds up the
questions of a claimer: a claim that is delivered late, after its repetition, can take a job (README.md)."""
SEATS: Final = {False: {"worker": 5, "API": 2}, True: {"worker": 7, "API": 3}}
"""How many workers and API servers suffer at once, in the small run and in the full one."""
PATIENCE: Final = 300.0
"""Seconds within which the next cell ends, whatever happens in it."""


@dataclass
class Seat:
    """One worker or API server behind its own proxy; a cell at a time."""

    kind: str
    proxy: Proxy
    member: Member
    queue: str
    held: list[str] = field(default_factory=list)


def frozen(run: Run) -> None:
    """The matrix."""
    world = World(run, "--queues", "default", workers=1, every=None)
    rows, columns = list(ROWS), COLUMNS if run.full else SMALL
    wanted = chosen([(row, column) for row in rows for column in columns] if run.full else diagonal(rows, columns))
    table = Table(rows=len({row for row, _ in wanted}), columns=len({column for _, column in wanted}))
    with ExitStack() as stack:
        seats = [sit(world, stack, kind, n) for kind, n in places(wanted, SEATS[run.full])]
        for seat in seats:
            if seat.kind == "API":
                seat.member.ready(within=180)
        world.keep_held(4)
        for found in probe(world, seats, wanted):
            table.add(found, run.folder)
        world.let_go()
        run.check(not (why := world.ended(world.held, within=60)), f"innocents: {why}")
        run.check(not (why := world.charged(world.held)), why)
        world.settle()
    table.close(run)


def places(cells: Sequence[Cell], most: dict[str, int]) -> list[tuple[str, int]]:
    """Kind and number of each seat: no more than there are cells for."""
    counts = {kind: sum(kind_of(row) == kind for row, _ in cells) for kind in most}
    return [(kind, n) for kind, count in counts.items() for n in range(min(count, most[kind]))]


def kind_of(row: str) -> str:
    """Whose connections the row names."""
    return row.partition(":")[0]


def sit(world: World, stack: ExitStack, kind: str, n: int) -> Seat:
    """Start one behind a proxy."""
    proxy = Proxy(world.server.dsn, hole=world.run.lease * 6)
    stack.callback(proxy.close)
    queue = f"seat-{kind}-{n}"
    fleet = world.run.fleet
    if kind == "API":
        return Seat(kind, proxy, fleet.server(queue, proxy.dsn).start(), queue)
    worker = fleet.worker(queue, proxy.dsn, "--queues", queue, slots=20, app=APP).start()
    return Seat(kind, proxy, worker, queue)


def probe(world: World, seats: Sequence[Seat], cells: Sequence[Cell]) -> Iterator[dict[Cell, Result]]:
    """Each seat takes one cell after the other; the longest come first, so that all seats end at about the same time."""
    left: dict[str, Queue[Cell]] = {kind: Queue() for kind in SEATS[True]}
    for cell in sorted(cells, key=lambda cell: -leases_of(cell[1])):
        left[kind_of(cell[0])].put(cell)
    found: Queue[dict[Cell, Result]] = Queue()

    def work(seat: Seat) -> None:
        act = of_api if seat.kind == "API" else of_worker
        with suppress(Empty):
            while True:
                cell = left[seat.kind].get_nowait()
                found.put({cell: _reason(lambda cell=cell: act(world, seat, *cell))})  # type: ignore[misc]

    with ThreadPoolExecutor(len(seats)) as pool:
        working = [pool.submit(work, seat) for seat in seats]
        for _ in cells:
            yield found.get(timeout=PATIENCE)
        for worked in working:
            worked.result()


def leases_of(column: str) -> int:
    """How long the column lasts."""
    return int(column.split()[-2])


def _reason(act: Callable[[], str]) -> str:
    try:
        return act()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def suffer(world: World, seat: Seat, row: str, column: str) -> None:
    """Do it to the connections, for as long as the column says."""
    way, lasts = column.split(" for ", maxsplit=1)[0], leases_of(column) * world.run.lease
    new = row.endswith("that come")
    world.run.log.note("fault", row=row, column=column, seat=seat.queue)
    if way in CUTS:
        end = time.monotonic() + lasts
        assert seat.proxy.cut(way, ROWS[row]), "there is no such connection"
        while (left := end - time.monotonic()) > 0:
            # Once a lease what was opened anew is cut again; where the whole network is gone, none that comes lives.
            time.sleep(min(left, 0.05 if new else world.run.lease))
            seat.proxy.cut("reset" if new else way, ROWS[row])
        return
    stall = seat.proxy.stall(way, ROWS[row], new=new)
    assert new or stall.lines, "there is no such connection"
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
    printed = seat.member.printed
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
    if must_say(row, column) and " WARNING " not in seat.member.said(printed):
        return "the log does not say that the database was away"
    return PASSED


def must_say(row: str, column: str) -> bool:
    """Whether calls of the worker are hurt so surely that its log has to say so."""
    way, leases = column.split(" for ", maxsplit=1)[0], leases_of(column)
    if way == "slow":  # what is slow arrives
        return False
    if row.endswith("that come"):
        return leases > 1
    return way in ("freeze", "mute", "deaf") and row.removeprefix("worker: ") not in ("upkeep", "listener")


def hold(world: World, seat: Seat) -> list[str]:
    """Jobs that the worker runs until the file appears, which has the name of the first."""
    name = str(uuid4())
    first = world.enqueue("hold", {"until": name}, queue=seat.queue, id=name)
    rest = [world.enqueue("hold", {"until": name}, queue=seat.queue) for _ in range(2)]
    jobs = [first, *rest]
    until(lambda: all(job["state"] == "running" for job in world.jobs(jobs).values()), "the seat holds jobs")
    warm = [world.enqueue(queue=seat.queue)]  # its end is reported, by a connection which is made when it is needed
    until(lambda: not world.ended(warm), "the seat reports")
    return jobs


def of_api(world: World, seat: Seat, row: str, column: str) -> str:
    """Every request is answered in time, with a job or with 503, and afterwards with a job."""
    # Hints have a connection of their own, which is made when there is one to give.
    until(lambda: post(world, seat) == "", "the server takes jobs before the fault")
    until(lambda: seat.proxy.reaches(ROWS[row]), "there is such a connection")
    printed = seat.member.printed
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
    if "503" in answers and " WARNING " not in seat.member.said(printed):
        return "the log does not say why 503 was answered"
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
