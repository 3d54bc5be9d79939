"""How a process ends in time: SIGTERM and SIGINT are handled, and last lines written, by threads of their own.

An event loop handles a signal when it gets its turn, and the interpreter when the main thread runs bytecode again:
a task that blocks would keep a worker from ending. The number of a signal is written to a pipe by the C handler at once
(`signal.set_wakeup_fd`), and a thread reads it. A standard error that is a full and unread pipe delays no end either.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

from leasehold import logs
from leasehold._logger import logger_of
from leasehold._os_process import ENDING, do_nothing_at_signals, nothing, restore_standard
from leasehold.errors import WorkerFailed

logger = logger_of(__name__)


class Signals:
    """While it is entered, `first` is called at the first signal, `again` at each one after it, both in a thread.

    `patience` seconds after the first, and 0.9 s after the second, the process ends with exit code 130, whatever still
    runs in it.
    To be entered by the main thread, in the running event loop if there is one. `main` calls a function in that thread,
    for handlers that the code of a task has replaced.
    """

    def __init__(
        self, first: Callable[[], object], again: Callable[[], object], *, patience: float,
        main: Callable[[Callable[[], None]], object],
    ) -> None:  # fmt: skip
        self._first = first
        self._again = again
        self._main = main
        self._patience = patience
        self._count = 0
        self._deadline = math.inf
        self._ended = False
        self._asked = False
        self._parent = os.getppid()
        self._thread = threading.Thread(target=self._run, name="leasehold-signals", daemon=True)

    def __enter__(self) -> "Signals":
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._others = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._before = do_nothing_at_signals()  # our thread handles them, and sooner
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

    def _run(self) -> None:
        """End the process if this thread dies: it could not be stopped any more."""
        try:
            self._listen()
        except BaseException as error:  # noqa: BLE001 (a task may have closed the pipe)
            if not self._ended:
                text = "the thread that handles signals has died, so this process ends; its leases run out"
                within(0.3, partial(logger.critical, text, exc_info=error))
                logs.flush(0.3)
                os._exit(WorkerFailed.exit_code)

    def _listen(self) -> None:
        while not self._ended:
            left = max(0.0, min(1.0, self._deadline - time.monotonic()))  # a check every second
            if not select.select([self._pipe[0]], [], [], left)[0]:
                if time.monotonic() >= self._deadline:
                    within(0.3, _last_line)  # standard error may be a pipe that is full
                    os._exit(130)
                restore_standard()
                self._check()
                continue
            for number in os.read(self._pipe[0], 100):
                if self._others != -1 and number:  # the event loop's own pipe: other code may have handlers there
                    with contextlib.suppress(OSError):
                        os.write(self._others, bytes([number]))
                if number in ENDING:
                    self._handle()

    def _check(self) -> None:
        """Have our handlers put back. A signal that was ignored for a moment is lost, but a second one is handled."""
        self._parent = os.getppid()
        if not self._asked:
            self._asked = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._main(self._put_back)  # without a check: which pipe Python writes to cannot be queried

    def _put_back(self) -> None:
        self._asked = False
        if self._ended:
            return
        before = do_nothing_at_signals()
        replaced = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if replaced not in (-1, self._pipe[1]):  # asyncio's, when a task has added a handler of its own
            self._others = replaced
        changed = [signal.Signals(number).name for number, handler in before.items() if handler is not nothing]
        if changed:
            logger.warning("a task has replaced what this process does at %s: it is put back", ", ".join(changed))

    def _handle(self) -> None:
        at = time.monotonic()
        if self._count == 1:
            time.sleep(0.2)  # the last thread of a killed supervisor may still be ending
            if os.getppid() != self._parent:
                return  # no wish: the kernel sends a signal for each thread of it
        self._count += 1
        wait = self._patience if self._count == 1 else 0.9  # in which running jobs can be released
        self._deadline = min(self._deadline, at + wait)
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended anyway
            (self._first if self._count == 1 else self._again)()


def _last_line() -> None:
    logs.flush(0.1)
    # No logging: its lock may be held by the task that does not end.
    with contextlib.suppress(OSError):
        os.write(2, b"some jobs did not end; they are left to their leases, and this process ends now\n")


def within(seconds: float, step: Callable[[], object]) -> bool:
    """Call it in a thread, wait for it at most so long, and return whether it has ended by then."""
    thread = threading.Thread(target=step, name="leasehold-within", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return False
    thread.join(seconds)
    return not thread.is_alive()
