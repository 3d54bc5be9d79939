"""`python -m faults.matrix.breaking worker …`: the command line of Leasehold in a process that can be broken on purpose.

FAULTS_BREAK=place:error: a loop or thread of the process ends with this error a second after it began. FAULTS_ARM=file: at
a failpoint that the file names (`number point error`), the error it names is raised, once for each number.
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

from leasehold import failpoints
from leasehold.cli import main
from leasehold.db.listen import Listener
from leasehold.upkeep.scheduler import Scheduler
from leasehold.upkeep.sweeper import Sweeper
from leasehold.worker.claimer import Claimer
from leasehold.worker.finisher import Finisher
from leasehold.worker.lease import LeaseKeeper
from leasehold.worker.prober import Prober
from leasehold.worker.statistics import Statistician

ERRORS: Final[dict[str, type[BaseException]]] = {
    "RuntimeError": RuntimeError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError, "CancelledError": asyncio.CancelledError, "TimeoutError": TimeoutError,
    "UnicodeError": UnicodeError, "OSError": OSError,
}  # fmt: skip
"""What may come out of anything."""

LOOPS: Final[dict[str, Any]] = {
    part.__name__: part for part in (Claimer, Finisher, Sweeper, Scheduler, Listener, Prober, Statistician)
}
"""Each has a coroutine `run` that never ends by itself."""

THREADS: Final = {"the keeper's thread": "_pause", "the thread that gives up": "_give_up"}
"""Each with what it calls in every turn."""

BEGINS: Final = 1.0
"""Seconds after which a loop is broken."""


def error_of(name: str) -> BaseException:
    """An exception of this name, or the driver's for this SQLSTATE."""
    if name in ERRORS:
        return ERRORS[name]("broken on purpose")
    try:
        kind = psycopg.errors.lookup(name)
    except KeyError:
        kind = type("Unusual", (psycopg.DatabaseError,), {"sqlstate": name})
    return kind("broken on purpose")


def break_loop(place: str, error: str) -> None:
    """Let a loop or a thread end with this error."""
    if place in THREADS:
        _break_thread(THREADS[place], error)
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
        with suppress(asyncio.CancelledError):
            await asyncio.wait([inner])
        raise error_of(error)

    part.run = run


def _break_thread(method: str, error: str) -> None:
    original = getattr(LeaseKeeper, method)
    began = time.monotonic()

    @functools.wraps(original)
    def turn(self: Any) -> Any:
        if time.monotonic() - began > BEGINS:
            raise error_of(error)
        found = original(self)
        # A thread that has nothing to do would wait for ever: it has to come round again.
        return min(0.2, found) if isinstance(found, float) else 0.2 if method == "_pause" else found

    setattr(LeaseKeeper, method, turn)


def watch(file: Path) -> Callable[[str], None]:
    """A `reach` that raises what the file says."""
    seen: set[str] = set()
    guard = threading.Lock()

    def reach(point: str) -> None:
        try:
            number, wanted, error = file.read_text().split()
        except (OSError, ValueError):
            return
        with guard:
            if wanted != point or number in seen or Path(f"{file}.{number}").exists():
                return
            seen.add(number)
        Path(f"{file}.{number}").touch()
        raise error_of(error)

    return reach


if __name__ == "__main__":
    if broken := os.environ.get("FAULTS_BREAK"):
        break_loop(*broken.split(":"))
    if armed := os.environ.get("FAULTS_ARM"):
        failpoints.ARMED = True  # type: ignore[misc]
        failpoints.reach = watch(Path(armed))
    main()
