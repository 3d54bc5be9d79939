"""`python -m faults.matrix.breaking worker …`: the command line of Leasehold in a process that can be broken on purpose.

FAULTS_BREAK=place:error: a loop or thread of the process ends with this error a second after it began. FAULTS_ARM=file: at
each failpoint that a line of the file names (`number point error`), the error it names is raised, once for each number. What
else happens every ten seconds only, is done three times a second. FAULTS_BUG: one of `careless.py`.
"""

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from faults.matrix.careless import BUGS
from leasehold import _failpoints as failpoints
from leasehold.cli import main
from leasehold.db.notify import Listener, Prober
from leasehold.db.sqlstates import trouble_of
from leasehold.supervise.signals import Signals
from leasehold.upkeep.scheduler import Scheduler
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker.claimer import Claimer
from leasehold.worker.crash_recovery import CrashRecovery
from leasehold.worker.finisher import Finisher
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.statistics import Statistician

ERRORS: Final[dict[str, type[BaseException]]] = {
    "RuntimeError": RuntimeError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError, "CancelledError": asyncio.CancelledError, "TimeoutError": TimeoutError,
    "UnicodeError": UnicodeError, "OSError": OSError,
}  # fmt: skip
"""What may come out of anything."""

LOOPS: Final[dict[str, Any]] = {
    part.__name__: part
    for part in (Claimer, Finisher, Sweeper, Scheduler, Listener, Prober, Statistician, CrashRecovery)
}
"""Each has a coroutine `run` that never ends by itself."""

SIGNALS: Final = "the thread of signals"
THREADS: Final[dict[str, tuple[Any, str]]] = {
    "the keeper's thread": (LeaseKeeper, "_pause"), "the thread that gives up": (LeaseKeeper, "_give_up"),
    SIGNALS: (Signals, "_check"),
}  # fmt: skip
"""Each with what it calls in every turn."""

BEGINS: Final = 1.0
"""Seconds after which a loop is broken."""


def error_of(name: str, point: str = "") -> BaseException:
    """An exception of this name, or what a call on one of our connections raises for this SQLSTATE."""
    words = f"{name} on purpose {point}".strip()  # each cell has its own: what is said once, is said of each
    if name in ERRORS:
        return ERRORS[name](words)
    try:
        kind = psycopg.errors.lookup(name)
    except KeyError:
        kind = type("Unusual", (psycopg.DatabaseError,), {"sqlstate": name})
    trouble = trouble_of(kind())
    trouble.args = (words,)  # an error that did not come over a connection has no message
    return trouble


def break_loop(place: str, error: str) -> None:
    """Let a loop or a thread end with this error."""
    if place in THREADS:
        _break_thread(*THREADS[place], error)
        return
    part = LOOPS[place]
    original = part.run

    @functools.wraps(original)
    async def run(self: Any) -> None:
        inner = asyncio.ensure_future(original(self))
        try:
            await asyncio.wait([inner], timeout=BEGINS)
        finally:
            inner.cancel()
        while not inner.done():  # again: a library may have swallowed it
            inner.cancel()
            await asyncio.wait([inner], timeout=0.5)
        raise error_of(error)

    part.run = run


def _break_thread(part: Any, method: str, error: str) -> None:
    original = getattr(part, method)
    began = time.monotonic()

    @functools.wraps(original)
    def turn(self: Any) -> Any:
        if time.monotonic() - began > BEGINS:
            raise error_of(error)
        found = original(self)
        # A thread that has nothing to do would wait for ever: it has to come round again.
        return min(0.2, found) if isinstance(found, float) else 0.2 if method == "_pause" else found

    setattr(part, method, turn)


def watch(file: Path) -> Callable[[str], None]:
    """A `reach` that raises what the file says."""
    seen: set[str] = set()
    guard = threading.Lock()

    def reach(point: str) -> None:
        if (found := _armed(file, point)) is None:
            return
        number, error = found
        with guard:
            if number in seen:
                return
            seen.add(number)
        Path(f"{file}.{number}").touch()
        raise error_of(error, f"{point} {number}")

    return reach


def _armed(file: Path, point: str) -> tuple[str, str] | None:
    """Number and error of the line for this failpoint, unless it was raised before."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            number, wanted, error = line.split()
            if wanted == point and not Path(f"{file}.{number}").exists():
                return number, error
    return None


async def _hand_in_often(self: Any) -> None:
    while True:
        await asyncio.sleep(0.3)
        await self.round()


if __name__ == "__main__":
    if bug := os.environ.get("FAULTS_BUG"):
        BUGS[bug]()
    Statistician.run = _hand_in_often  # type: ignore[method-assign]
    if broken := os.environ.get("FAULTS_BREAK"):
        break_loop(*broken.split(":"))
    if armed := os.environ.get("FAULTS_ARM"):
        failpoints.ARMED = True  # type: ignore[misc]
        failpoints.reach = watch(Path(armed))
    main()
