"""Writing beside the work: a standard error that is a full and unread pipe keeps no process from ending."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final

_MOST: Final = 1000
"""Lines that wait to be written; of more, the newest are left out."""


def within(seconds: float, step: Callable[[], object]) -> bool:
    """Call it in a thread and wait for it so long at most; whether it has ended by then."""
    thread = threading.Thread(target=step, name="leasehold-aside", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return False
    thread.join(seconds)
    return not thread.is_alive()


class Aside:
    """Passes texts on to `say`, in their order, in a thread of its own."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._closing = False
        self._texts: queue.Queue[str | None] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._pass_on, name="leasehold-say", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        """Have it said, soon; never waits."""
        self._put(text)

    def close(self, seconds: float) -> bool:
        """Wait so long at most until all is said; whether it is."""
        self._closing = True
        self._put(None)  # left out if the queue is full: then the thread sees that it is closing
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _put(self, text: str | None) -> None:
        with contextlib.suppress(queue.Full):
            self._texts.put_nowait(text)

    def _pass_on(self) -> None:
        while (text := self._texts.get()) is not None:
            with contextlib.suppress(Exception):  # one line that cannot be said keeps no other from being said
                self._say(text)
            if self._closing and self._texts.empty():
                return
