"""Workers that start, end or die in a cell of the matrix of loops: each needs a process of its own."""

import subprocess
import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from faults.matrix.breaking import ERRORS, SIGNALS, THREADS
from faults.matrix.seats import PROGRAM, Cell, Found, Seat, finish, place, spoken
from faults.matrix.table import PASSED
from faults.matrix.world import APP, LONG, World
from faults.waiting import happens, until
from leasehold.errors import WorkerFailed

STARTS: Final = ("start_worker", "declare_tasks", "schedule_sync")
"""What a worker calls when it starts."""

ENDS: Final = ("release", "stop_worker", "before-release", "after-release")
"""What it calls and comes to when it is asked to end and its jobs do not."""

DEATHS_AT_ONCE: Final = 8

DIES_WITHIN: Final = LONG
"""Seconds for a process one of whose loops has ended."""


def start(seat: Seat, pack: Sequence[Cell]) -> Found:
    """Errors come while a worker starts: it tries again, or ends and says why; the next one starts and works."""
    world = seat.world
    if seat.member.alive:
        seat.member.end()
    mark = len(seat.member.said())
    fired = seat.strike(pack)
    job = world.enqueue(queue=seat.name)
    codes: list[int | None] = []
    seat.member.start()
    deadline = time.monotonic() + LONG
    why = PASSED
    while left := world.ended([job], within=0):
        if not seat.member.alive:
            codes.append(seat.member.returncode)
            seat.member.start()
        if time.monotonic() > deadline or len(codes) > len(pack):
            why = f"it does not start: {left}; ended with {codes}: {seat.member.said()[-200:]}"
            break
        time.sleep(0.03)
    said = seat.said_since(mark)
    if any(code is None or code <= 0 for code in codes):
        why = why or f"ended with {codes}"
    if "Traceback" in said:
        why = why or f"a traceback: {said[-300:]}"
    reached = "the place was not reached: nothing was tried"
    return {cell: (PASSED if fired[cell]() else reached) or why or spoken(said, cell) for cell in pack}


def end(seat: Seat, pack: Sequence[Cell]) -> Found:
    """Errors come while a worker releases its jobs and stops: it ends, and the next one runs them."""
    world = seat.world
    if not seat.member.alive:
        seat.member.start()
    name = uuid4().hex
    seat.left = [world.enqueue("hold", {"until": name}, queue=seat.name) for _ in range(2)]
    held = seat.left
    until(lambda: all(job["state"] == "running" for job in world.jobs(held).values()), "it holds jobs", within=LONG)
    mark = len(seat.member.said())
    fired = seat.strike(pack)
    try:
        code = seat.member.end(LONG)
    except subprocess.TimeoutExpired:
        seat.member.kill()
        return dict.fromkeys(pack, "it does not end")
    found = {cell: PASSED if fired[cell]() else "the place was not reached: nothing was tried" for cell in pack}
    seat.heal()
    world.let_go(name)
    seat.member.start()
    _, why = finish(seat, held)
    why = why or world.charged(held)
    said = seat.said_since(mark)
    for cell in pack:
        allowed = (0, WorkerFailed.exit_code) if cell[1] in ERRORS else (0,)
        ended = PASSED if code in allowed else f"ended with {code}: {said[-300:]}"
        found[cell] = found[cell] or why or ended or spoken(said, cell)
    return found


def die(world: World, cells: Sequence[Cell]) -> Found:
    """Loops end, each in a process of its own: so do the processes, and another worker runs what they had."""
    corpses = {cell: _Corpse(world, cell) for cell in cells}
    happens(lambda: not any(corpse.member.alive for corpse in corpses.values()), within=DIES_WITHIN)
    for corpse in corpses.values():
        corpse.bury()
    heirs = ",".join(corpse.name for corpse in corpses.values())
    heir = world.run.fleet.worker(f"heir-{uuid4().hex[:8]}", world.server.dsn, "--queues", heirs, app=APP).start()
    found = {cell: corpse.judge() for cell, corpse in corpses.items()}
    heir.end()
    world.run.fleet.members.remove(heir)
    return found


class _Corpse:
    """A worker one of whose loops or threads ends a second after it began."""

    def __init__(self, world: World, cell: Cell) -> None:
        self._world, self._cell = world, cell
        self.name = f"{place(cell)} {cell[1]}".replace(" ", "-").replace("'", "")
        self.member = world.run.fleet.worker(
            self.name, world.server.dsn, "--queues", self.name, app=APP, program=PROGRAM,
            FAULTS_BREAK=f"{place(cell)}:{cell[1]}", **world.env,
        )  # fmt: skip
        self._jobs = [world.enqueue("hold", {"until": self.name}, queue=self.name) for _ in range(2)]
        self.member.start()

    def bury(self) -> None:
        """Note how it ended; end it if it has not. The jobs may end from now on."""
        self._ending = self._judge_end()
        if self.member.alive:
            self.member.kill()
        self._world.let_go(self.name)

    def _judge_end(self) -> str:
        """Whether it ended with its own code and a line that names the loop."""
        member = self.member
        if member.alive:
            return "the process lives on, with a dead loop"
        if member.returncode != WorkerFailed.exit_code:
            return f"ended with {member.returncode}, not {WorkerFailed.exit_code}: {member.said()[-200:]}"
        part = place(self._cell)
        words = f"its {'LeaseKeeper' if part in THREADS else part} has died, so the worker ends"
        if part == SIGNALS:
            words = "the thread that handles signals has died, so this process ends"
        if words not in member.said():
            return f"without a word: {member.said()[-200:]}"
        return PASSED

    def judge(self) -> str:
        """Whether it ended as it should, and its jobs were run by another."""
        why = self._world.ended(self._jobs, within=LONG)
        self._world.run.fleet.members.remove(self.member)
        if self._ending or why:
            return self._ending or f"what it had was not run by another: {why}"
        return self._world.charged(self._jobs)
