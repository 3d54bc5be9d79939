"""Single keys, as they are pressed, where somebody sits at a keyboard."""

import contextlib
import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self


class Keys:
    """While it is entered, keys arrive one by one and are not shown. Elsewhere than on a terminal none ever does."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self.descriptor: int | None = None
        """What to watch; None: there is no keyboard."""

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self.descriptor = sys.stdin.fileno()
            self._before = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor)  # Ctrl-C stays what it is
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.descriptor is not None and self._before is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """What is pressed within that time; nothing if nothing is."""
        if self.descriptor is None:
            select.select([], [], [], seconds)
            return ""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        return self.read() if ready else ""

    def read(self) -> str:
        """What was pressed; `q` when the keyboard is gone."""
        if self.descriptor is None:
            return ""
        try:
            return os.read(self.descriptor, 64).decode(errors="replace") or "q"
        except OSError:
            return "q"
