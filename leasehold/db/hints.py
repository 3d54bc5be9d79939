"""Hints that there is work: brought along by a job, or sent apart, one statement for all that have gathered.

A job that brings its hint along (NOTIFY in its own transaction) costs next to nothing and wakes a worker soonest. But
the server lets transactions with a NOTIFY commit one after the other, each until it is on disk: where many producers do
it, they wait for each other. So only one job in some milliseconds brings one, none after it has been seen to take
long, and the hints of the others are sent apart.
"""

import atexit
import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Collection

from leasehold.db.link import ThreadLink
from leasehold.db.store import Store
from leasehold.errors import LeaseholdError

_PATIENCE = 0.5
"""Seconds that an exiting program waits for its last hints. A lost one costs time, never a job."""

_REST = 0.005
"""Seconds after a hint in which no job brings another one along."""

_GATHER = 0.008
"""Seconds after a hint in which those to be sent apart gather. Longer: in a stream of jobs the next ones bring it."""

_SLOW = 0.005
"""Seconds beyond twice the usual time: a job that took so long has waited for others with a hint."""

_LONGEST_REST = 1.0
"""Each such job doubles the rest, up to this many seconds; the first that was quick ends it."""


class Ride:
    """Around the recording of jobs: as its value, whether they bring their hint along."""

    __slots__ = ("_alone", "_began", "_certain", "_hinter", "_passengers", "names")

    def __init__(self, hinter: "Hinter", names: Collection[str], *, alone: bool, certain: bool) -> None:
        self._hinter = hinter
        self._alone = alone
        self._certain = certain
        self._passengers: set[str] | None = None
        self.names = names
        """What is to be sent apart if they do not bring it along; of many jobs it may become known only inside."""

    def __enter__(self) -> bool:
        self._began = time.monotonic()
        self._passengers = self._hinter.board(self.names if self._certain else (), self._began)
        return self._passengers is not None

    def __exit__(self, failed: object, *_: object) -> None:
        took = time.monotonic() - self._began if self._alone else None
        if self._passengers is not None:
            self._hinter.arrived(self._passengers, took, failed=failed is not None)
        elif not failed:
            self._hinter.passed(self.names, took)


class Hinter:
    """A thread with a connection of its own, started at the first hint."""

    def __init__(self, dsn: str, store: Store, *, prepare: bool) -> None:
        self._link = ThreadLink(dsn, name="leasehold hints", prepare=prepare)
        self._store = store
        self._names: dict[str, float] = {}
        """What is to be sent apart, and since when it waits."""
        self._wake = threading.Event()
        self._sent = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closing = False
        self._last = 0.0
        """When the latest hint was sent, either way."""
        self._rest = _REST
        self._no_ride_before = 0.0
        self._usual = 0.0
        """Seconds that a job without a hint takes to be recorded, of late."""

    def ride(self, names: Collection[str] = (), *, alone: bool = True, certain: bool = False) -> Ride:
        """Record jobs inside of this; it says whether they are to bring their hint along.

        `alone`: it is one job, which takes about as long as any other. `certain`: whatever comes of it, all these names
        are told, so that others who wait to tell the same need not.
        """
        return Ride(self, names, alone=alone, certain=certain)

    def board(self, names: Collection[str], now: float) -> set[str] | None:
        """Whether a hint may ride now: those that wait and need not be sent apart if it arrives. None: it may not."""
        if now < self._no_ride_before:
            return None
        self._no_ride_before = math.inf  # one at a time
        # Now: whoever has to wait from here on may come too late for this ride.
        return {name for name in names if self._names.pop(name, None) is not None}

    def arrived(self, passengers: set[str], took: float | None, *, failed: bool) -> None:
        """A ride has ended."""
        slow = failed or (took is not None and took > 2 * self._usual + _SLOW)
        self._rest = min(2 * self._rest, _LONGEST_REST) if slow else _REST
        now = time.monotonic()
        self._no_ride_before = now + self._rest
        if not failed:
            self._last = now
        elif passengers:
            self.hint(*passengers)

    def passed(self, names: Collection[str], took: float | None) -> None:
        """Jobs were recorded without a hint."""
        if took is not None:
            self._usual += 0.1 * (took - self._usual)
        self.hint(*names)

    def hint(self, *names: str) -> None:
        """These queues have work. Never blocks, never raises."""
        if self._names.keys() >= set(names) and self._pid == os.getpid():
            return  # they wait already, and will be sent from now on: after this job
        now = time.monotonic()
        for name in names:
            self._names.setdefault(name, now)
        self._sent.clear()
        self._wake.set()
        if self._thread is None or self._pid != os.getpid():
            self._start()

    def flush(self, timeout: float = _PATIENCE) -> None:
        """Wait, for a moment, until everything has been sent."""
        if self._thread is not None and self._pid == os.getpid():
            self._sent.wait(timeout)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self.flush()
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(_PATIENCE)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="leasehold-hints", daemon=True)
        self._thread.start()
        atexit.register(_flush, weakref.ref(self))

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self._gather()
            names = list(self._names)
            for name in names:
                self._names.pop(name, None)
            if names:
                try:
                    self._link.run(self._store.hint(names))
                except LeaseholdError:
                    time.sleep(0.1)  # polling finds the jobs; do not hammer a database that is away
                self._last = time.monotonic()
            if not self._names:
                self._sent.set()
        self._link.close()

    def _gather(self) -> None:
        """Wait a moment: where rides go on, those that wait ride along. Whoever never can does not wait for ever."""
        while not self._closing:
            now = time.monotonic()
            oldest = min(list(self._names.values()), default=now)
            if (rest := min(self._last, oldest + _GATHER) + _GATHER - now) <= 0:
                return
            time.sleep(rest)


def _flush(hinter: "weakref.ref[Hinter]") -> None:
    with contextlib.suppress(Exception):
        alive = hinter()
        if alive is not None:
            alive.flush()
