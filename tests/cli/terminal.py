"""A command in a pseudo-terminal, as a person has it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.conftest import ENV

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07|\x1b[=>]")


class Terminal:
    """A process with a terminal of its own: what it shows, and keys to press."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.raw = ""
        """Everything it has written, with what only terminals understand."""

    @property
    def text(self) -> str:
        """Everything it has shown."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def expect(self, words: str, *, after: int = 0, seconds: float = 60) -> int:
        """Wait until it has shown these words; returns how much it had shown by then."""
        deadline = time.monotonic() + seconds
        while words not in self.text[after:]:
            assert time.monotonic() < deadline, f"{words!r} not in {self.text[-3000:]!r}"
            if not self._read(0.2) and self.process.poll() is not None:
                assert words in self.text[after:], f"it ended ({self.process.returncode}): {self.text[-3000:]!r}"
        return len(self.text)

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C, as the terminal sends it."""
        self.press("\x03")

    def end(self, seconds: float = 60) -> int:
        """Wait for its end; returns the exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-3000:]
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return False
        try:
            said = os.read(self._descriptor, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.raw += said.decode(errors="replace")
        return bool(said)


@contextmanager
def terminal(
    *arguments: str, columns: int = 80, lines: int = 24, cwd: Path | None = None, **env: str
) -> Iterator[Terminal]:
    """Run a command in a terminal of that size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {key: value for key, value in ENV.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "leasehold", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd,
        env=environment | {"TERM": "xterm-256color"} | env, start_new_session=True,
        preexec_fn=_control,  # noqa: PLW1509 (one ioctl, which needs no lock)
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def _control() -> None:
    """Make the terminal the session's own, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
