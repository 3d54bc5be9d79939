"""A handler that writes log lines in a thread of its own: a full pipe that is not read holds up no caller."""

import logging
import os
import select
import threading
import traceback
from collections import deque
from contextlib import suppress


class LogWriter(logging.Handler):
    """Formats each record in the calling thread, as the job is known there, and writes it in another one.

    In a copy of the process that a task has forked there is no such thread: there the caller writes.
    `wait` is how many seconds a caller waits for its line: a process that may crash at its next step loses none that
    way, and one whose pipe is not read waits no second time.
    """

    def __init__(self, fd: int, encoding: str, wait: float = 0) -> None:
        super().__init__()
        self._fd = fd
        self._wait = wait
        self._encoding = encoding
        self._in_copy()
        self._direct = False
        os.register_at_fork(after_in_child=self._in_copy)
        threading.Thread(target=self._run, name="leasehold-log", daemon=True).start()

    def _in_copy(self) -> None:
        """Begin anew: a lock may be held by a thread that is not there, and the lines are the parent's to write."""
        self._changed = threading.Condition()  # reentrant: a signal handler or a finalizer may log at any moment
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._writing = False
        self._stuck = False
        self._direct = True

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line."""
        try:
            self.say(self.format(record))
            if self._wait and not self._direct:
                self.flush(self._wait)
        except Exception:  # noqa: BLE001 (as every handler: logging must not break what it logs)
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Queue why the record could not be formatted, which logging itself would write to standard error at once."""
        if logging.raiseExceptions:
            with suppress(Exception):
                self.say(f"--- Logging error ---\n{traceback.format_exc()}Message: {record.msg!r}")

    def say(self, text: str) -> None:
        """Queue a line as it is."""
        line = f"{text}\n".encode(self._encoding, "backslashreplace")
        if self._direct:
            self._write(line)
            return
        with self._changed:
            # Beyond these bounds the newest lines are dropped and counted. Once some are, all are until the rest is
            # written: so there is one gap, and one line about it.
            if self._dropped or len(self._lines) >= 10_000 or self._bytes >= 32 << 20:
                self._dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def flush(self, seconds: float = 0.5) -> None:
        """Wait at most so long until all lines are written. Called by logging at the end of the process, too."""
        with self._changed:
            if not self._stuck:  # else a flush before has waited in vain
                self._stuck = not self._changed.wait_for(lambda: not self._lines and not self._writing, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                if not self._lines and self._dropped:
                    number, self._dropped = self._dropped, 0
                    text = "%d log lines were dropped: standard error was not read in time"
                    record = logging.LogRecord("leasehold.logs", logging.WARNING, __file__, 0, text, (number,), None)
                    self.say(self.format(record))
                if not self._lines:
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
                self._bytes -= len(line)
                self._writing = True
            self._write(line)
            self._stuck = False

    def _write(self, line: bytes) -> None:
        # Not with sys.stderr, whose lock the interpreter wants at its end: this thread may then still wait in a write.
        while line:
            try:
                line = line[os.write(self._fd, line) :]
            except BlockingIOError:  # another process that has this pipe, too, has made it so
                select.select([], [self._fd], [])
            except OSError:  # the pipe or file is closed
                return
