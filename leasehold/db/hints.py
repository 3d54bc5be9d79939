"""Sends hints that there is work, off the path of whoever enqueued it: one statement for all that have gathered."""

import atexit
import contextlib
import os
import threading
import time
import weakref

from leasehold.db.link import ThreadLink
from leasehold.db.store import Store
from leasehold.errors import LeaseholdError

_PATIENCE = 0.5
"""Seconds that an exiting program waits for its last hints. A lost one costs time, never a job."""

_REST = 0.005
"""Seconds after a hint in which the next ones gather. The first after a pause goes at once; in a stream of single jobs
each would cost as much as the job that it is about."""


class Hinter:
    """A thread with a connection of its own, started at the first hint."""

    def __init__(self, dsn: str, store: Store, *, prepare: bool) -> None:
        self._link = ThreadLink(dsn, name="leasehold hints", prepare=prepare)
        self._store = store
        self._names: set[str] = set()
        self._wake = threading.Event()
        self._sent = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closing = False

    def hint(self, *names: str) -> None:
        """These queues have work. Never blocks, never raises."""
        self._names.update(names)
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
            names = list(self._names)
            self._names.difference_update(names)
            if names:
                try:
                    self._link.run(self._store.hint(names))
                except LeaseholdError:
                    time.sleep(0.1)  # polling finds the jobs; do not hammer a database that is away
            if not self._names:
                self._sent.set()
            if names and not self._closing:
                time.sleep(_REST)
        self._link.close()


def _flush(hinter: "weakref.ref[Hinter]") -> None:
    with contextlib.suppress(Exception):
        alive = hinter()
        if alive is not None:
            alive.flush()
