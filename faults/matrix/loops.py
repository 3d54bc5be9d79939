"""Dying loops: an exception out of each loop and thread, and each SQLSTATE class out of each call, at each failpoint.

A call fails in earnest: the proxy has the server raise the error in place of it. At a failpoint the process itself raises,
an exception of Python or what a call raises for a SQLSTATE: before the call, or after it was carried out. Where a loop or
a thread ends, its process has to end, with a code and a line of its own, and its jobs are run by another.
"""

import functools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from faults.matrix.breaking import ERRORS, LOOPS, THREADS, error_of
from faults.matrix.mortal import DEATHS_AT_ONCE, ENDS, STARTS, die, end, start
from faults.matrix.seats import Cell, Found, Seat, hurt, hurt_api, place, sit
from faults.matrix.table import Table, chosen, diagonal, groups, halving
from faults.matrix.world import World
from faults.places import SUBMISSION, WORK
from faults.run import Run
from leasehold.errors import DatabaseUnavailable

Act = Callable[[Seat, Sequence[Cell]], Found]

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

EVERY: Final = (*ERRORS, *STATES)
ROWS: Final[dict[str, Sequence[str]]] = {
    **{f"loop {name}": tuple(ERRORS) for name in [*LOOPS, *THREADS]},
    **{f"at {point}": EVERY for point in (*WORK, *SUBMISSION)},
    **{f"call {name}": STATES for name in (*CALLS, *API_CALLS, *STARTS, *(name for name in ENDS if name not in WORK))},
}
"""Each row with its columns."""

TICKS: Final = 12
"""Schedules: each worker is to come to one of them often."""


def cells(*, full: bool) -> list[Cell]:
    """All, or each row and each column once."""
    if full:
        return [(row, column) for row, columns in ROWS.items() for column in columns]
    parts = {kind: [row for row in ROWS if row.startswith(kind)] for kind in ("loop", "at", "call")}
    found = [(row, tuple(ERRORS)[n % len(ERRORS)]) for n, row in enumerate(parts["loop"])]
    return found + diagonal(parts["at"], tuple(ERRORS)) + diagonal(parts["call"], STATES)


def loops(run: Run) -> None:
    """The matrix."""
    run.fleet.fork()
    world = World(run, "--queues", "default", workers=1, ticks=TICKS)
    table = Table(rows=len(ROWS), columns=len(EVERY))
    parts = divided(chosen(cells(full=run.full)))
    world.keep_held(4)
    seats = {
        name: [sit(world, name, n, *CREWS[name].options) for n in range(CREWS[name].seats)]
        for name in CREWS
        if parts[name]
    }
    with ThreadPoolExecutor(16) as pool:
        lanes = [pool.submit(dying, world, parts["loop"], table)]
        for name, crew in seats.items():
            waiting: queue.SimpleQueue[list[Cell]] = queue.SimpleQueue()
            for pack in packs(parts[name], CREWS[name].size):
                waiting.put(pack)
            lanes += [pool.submit(drive, seat, waiting, CREWS[name].act, table) for seat in crew]
        for lane in lanes:
            lane.result()
    world.rows("select schedule_disable(key) from schedules")
    world.let_go()
    for crew in seats.values():
        for seat in crew:
            seat.let_go()
    run.check(not (why := world.ended(world.held, within=60) or world.charged(world.held)), f"innocents: {why}")
    world.settle()
    table.close(run)


@dataclass(frozen=True)
class Crew:
    """Processes that take the cells of one kind in turn."""

    act: Act
    seats: int
    size: int
    """Cells at once."""
    options: Sequence[str] = ()


CREWS: Final = {
    "worker": Crew(hurt, 3, len(CALLS)),
    "api": Crew(hurt_api, 1, len(API_CALLS)),
    "start": Crew(start, 1, len(STARTS)),
    "end": Crew(end, 2, 2, ["--grace", "0.2"]),
}


def divided(wanted: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells by who takes them."""
    found: dict[str, list[Cell]] = {"loop": [], **{name: [] for name in CREWS}}
    for cell in wanted:
        name = place(cell)
        if cell[0].startswith("loop "):
            found["loop"].append(cell)
        elif name in (*SUBMISSION, *API_CALLS):
            found["api"].append(cell)
        else:
            found["start" if name in STARTS else "end" if name in ENDS else "worker"].append(cell)
    return found


def packs(wanted: Sequence[Cell], size: int) -> list[list[Cell]]:
    """Cells that are tried at once: at other places, with other errors, and none keeps another from being reached."""
    found: list[list[Cell]] = []
    for cell in wanted:
        for pack in found:
            if len(pack) < size and all(beside(cell, other) for other in pack):
                pack.append(cell)
                break
        else:
            found.append([cell])
    return found


def beside(cell: Cell, other: Cell) -> bool:
    """Whether both can be tried at once."""
    if cell[0].split()[0] != other[0].split()[0] or cell[0] == other[0] or cell[1] == other[1]:
        return False
    if any(error in ERRORS or place((row, error)) in ALONE for row, error in (cell, other)):
        return False
    return not (is_away(cell[1]) and is_away(other[1]))  # of an outage there is one line, whichever part noticed it


ALONE: Final = {"after-claim", "before-release", "after-release", "before-answer", "half-answer"}
"""The process, or what it was about to do, ends there."""


@functools.cache
def is_away(state: str) -> bool:
    """Whether this SQLSTATE means that the database is away."""
    return isinstance(error_of(state), DatabaseUnavailable)


def drive(seat: Seat, waiting: "queue.SimpleQueue[list[Cell]]", act: Act, table: Table) -> None:
    """One pack after the other; where some cells of it fail, halves of it, until those that fail alone are known."""

    def probe(pack: Sequence[Cell]) -> Found:
        try:
            return act(seat, pack)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
            seat.heal()
            return dict.fromkeys(pack, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    while True:
        try:
            pack = waiting.get_nowait()
        except queue.Empty:
            return
        for found in halving(pack, len(pack), probe):
            table.add(found, seat.world.run.folder)


def dying(world: World, wanted: Sequence[Cell], table: Table) -> None:
    """The loops that end, several at a time."""
    for group in groups(wanted, DEATHS_AT_ONCE):
        table.add(die(world, group), world.run.folder)
