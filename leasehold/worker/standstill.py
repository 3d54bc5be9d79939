"""Notices after the fact that this process ran no Python for a while, and renewed no lease meanwhile.

A thread cannot renew leases while a task holds the interpreter's lock in C code, nor can a process that is stopped.
When it goes on, what was lost is given up; this says why, with the cure.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from leasehold.texts import one_line

logger = logging.getLogger(__name__)

_SHORTEST: Final = 1.0
"""Seconds: less is the machine's load."""

_PAUSE: Final = 60.0
"""Seconds between two lines."""

_NAMES: Final = 3

_LINE: Final = (
    "worker %s stood still for %.1f s, %.1f s of them computing, and renewed no lease meanwhile (jobs of %s): either a"
    " task holds the interpreter in C code, then give it executor='process' or a longer lease; or this process was"
    " stopped, or had no processor"
)


class Moment(NamedTuple):
    """When a thread began to wait, and how much its process had computed by then."""

    at: float
    computed: float

    @classmethod
    def now(cls) -> "Moment":
        """This one."""
        return cls(time.monotonic(), time.process_time())


class Standstill:
    """For the threads that keep the leases of one worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._quiet_until = 0.0
        self._guard = threading.Lock()

    def look(self, since: Moment, due: float, least: float, kinds: Iterable[str]) -> None:
        """A thread that waited since `since` runs again, and wanted to at `due`: say so if it is `least` s late."""
        now = Moment.now()
        late = now.at - max(due, since.at)
        if late < max(_SHORTEST, least):
            return
        with self._guard:
            if now.at < self._quiet_until:
                return
            self._quiet_until = now.at + _PAUSE
        names = [one_line(name, 100) for name in sorted(set(kinds))]
        shown = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
        logger.warning(_LINE, self._worker, late, min(now.computed - since.computed, late), shown)
