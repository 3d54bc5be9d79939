"""SIGTERM and SIGINT, heard by a thread of their own.

An event loop hears a signal when it gets its turn, and the interpreter when the main thread runs bytecode again: a task
that blocks would keep a worker from ending. The kernel's word of a signal is written to a pipe by the C handler at once
(`signal.set_wakeup_fd`), and a thread reads it.
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from leasehold.supervise.aside import within

logger = logging.getLogger(__name__)

FORCED: Final = 130
"""The exit code of a process that a second signal has ended before its tasks had."""

AT_ONCE: Final = 0.9
"""Seconds after the second signal in which running jobs can be given back."""

_LAST_WORDS: Final = 0.3
"""Seconds for the line that says so: standard error may be a pipe that is full."""

_LOOK: Final = 1.0
"""Seconds between two looks whether the handlers are still ours."""

_PUT_BACK: Final = 3
"""Looks after which our pipe is put back unseen: which one Python writes to cannot be asked for."""

_HEARD = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """While it is entered, `first` is called at the first signal, `again` at each one after it, both in a thread.

    `patience` seconds after the first, and `AT_ONCE` after the second, the process ends, whatever still runs in it.
    To be entered by the main thread, in the running event loop if there is one. `main` calls a function in that thread,
    for handlers that the code of a task has replaced.
    """

    def __init__(
        self,
        first: Callable[[], object],
        again: Callable[[], object],
        *,
        patience: float,
        main: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._first = first
        self._again = again
        self._main = main
        self._patience = patience
        self._count = 0
        self._deadline: float | None = None
        self._ended = False
        self._before: dict[int, Any] = {}
        self._others = -1
        self._looks = 0
        self._asked = False
        self._pipe = (-1, -1)
        self._thread = threading.Thread(target=self._listen, name="leasehold-signals", daemon=True)

    def __enter__(self) -> "Signals":
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._others = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _nothing) for number in _HEARD}
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        signal.set_wakeup_fd(self._others)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ended = True
        os.write(self._pipe[1], b"\0")
        self._thread.join(1)
        for end in self._pipe:
            os.close(end)

    def _listen(self) -> None:
        while not self._ended:
            left = _LOOK if self._deadline is None else max(0.0, min(_LOOK, self._deadline - time.monotonic()))
            if not select.select([self._pipe[0]], [], [], left)[0]:
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._end()
                self._look()
                continue
            for number in os.read(self._pipe[0], 100):
                self._pass_on(number)
                if number in _HEARD:
                    self._hear()

    def _look(self) -> None:
        """A signal that was ignored for a moment is lost, but a second one is heard again."""
        if self._main is None or self._asked:
            return
        self._looks += 1
        if self._looks % _PUT_BACK == 0 or any(signal.getsignal(number) is not _nothing for number in _HEARD):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._asked = True
                self._main(self._put_back)

    def _put_back(self) -> None:
        self._asked = False
        if self._ended:
            return
        before = {number: signal.signal(number, _nothing) for number in _HEARD}
        replaced = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if replaced not in (-1, self._pipe[1]):  # asyncio's, when a task has added a handler of its own
            self._others = replaced
        changed = ", ".join(
            signal.Signals(number).name for number, handler in before.items() if handler is not _nothing
        )
        if changed:
            logger.warning("a task has replaced what this process does at %s: it is put back", changed)

    def _hear(self) -> None:
        self._count += 1
        wait = self._patience if self._count == 1 else AT_ONCE
        deadline = time.monotonic() + wait
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended anyway
            (self._first if self._count == 1 else self._again)()

    def _pass_on(self, number: int) -> None:
        """The event loop has a pipe of its own for what others want to hear."""
        if self._others != -1 and number:
            with contextlib.suppress(OSError):
                os.write(self._others, bytes([number]))

    def _end(self) -> None:
        within(_LAST_WORDS, _say_so)
        os._exit(FORCED)


def _say_so() -> None:
    # No logging: its lock may be held by the task that does not end.
    with contextlib.suppress(OSError):
        os.write(2, b"some jobs did not end; they are left to their leases, and this process ends now\n")


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Python calls this when it gets to it; the thread has heard it before."""
