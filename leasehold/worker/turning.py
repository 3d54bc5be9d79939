"""Notices, while it lasts, that a task keeps the event loop from turning: nothing is started or reported meanwhile.

From a thread: it asks the loop once a second for a sign. Leases are kept by another thread, so nothing else shows it.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from leasehold.texts import one_line

logger = logging.getLogger(__name__)

_TICK: Final = 1.0
"""Seconds between two looks."""

_LOOKS: Final = 3
"""Looks in a row without a sign. Counted, not timed: if this thread does not run either, the whole process stands."""

_NAMES: Final = 3

_LINE: Final = (
    "worker %s: its event loop has not turned for %.0f s (it is in %s; async tasks that run: %s), so no job is started"
    " or reported; await what the task waits for, or make it a plain def (executor='thread') or executor='process'"
)


class Turning:
    """Watches the event loop of one worker."""

    def __init__(self, worker: str, kinds: Callable[[], Iterable[str]]) -> None:
        self._worker = worker
        self._kinds = kinds
        """Of the tasks that run on the loop now; called from the thread."""
        self._ended = threading.Event()
        self._asked: float | None = None
        self._looks = 0
        self.since: float | None = None
        """Since when it stands, by the monotonic clock; None: it turns."""
        self.on_standstill: Callable[[], object] = lambda: None
        """Called from the thread, once for each time."""

    def start(self) -> None:
        """Watch the running loop."""
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._watch, args=(loop, ident), name="leasehold-loop", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        while not self._ended.wait(_TICK):
            asked = self._asked
            if asked is None:
                self._looks = 0
                self._asked = time.monotonic()
                try:
                    loop.call_soon_threadsafe(self._turn)
                except RuntimeError:  # the loop is closed
                    return
                continue
            self._looks += 1
            if self._looks == _LOOKS:
                self.since = asked
                self._say_so(asked, ident)

    def _say_so(self, asked: float, ident: int) -> None:
        try:
            names = [one_line(name, 100) for name in sorted(set(self._kinds()))]
            shown = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
            logger.warning(_LINE, self._worker, time.monotonic() - asked, _place(ident), shown or "none")
            self.on_standstill()
        except Exception as error:  # noqa: BLE001 (a courtesy to onlookers: this thread goes on)
            logger.debug("the standstill could not be said: %s", error)

    def _turn(self) -> None:
        """On the loop: the sign."""
        since, self.since, self._asked = self.since, None, None
        if since is not None:
            stood = time.monotonic() - since
            logger.warning("worker %s: its event loop goes on after %.0f s", self._worker, stood)


def _place(ident: int) -> str:
    """Where the thread of the loop is."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 (documented)
    if frame is None:
        return "an unknown place"
    code = frame.f_code
    return one_line(f"{code.co_name}, {code.co_filename}:{frame.f_lineno}", 200)
