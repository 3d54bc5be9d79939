"""Ctrl-C in two stages: the first ends in good order, the second at once."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import typer

from leasehold.cli.console import say


class Interruptible:
    """While it is entered, the first SIGINT or SIGTERM only sets `wanted`; the second interrupts."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._before: dict[int, Any] = {}
        self.wanted = False
        """Whether somebody wants it to end."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        words = f"stopping after {self._what}; once more to stop at once"
        try:
            say(words)
        except RuntimeError:  # it came in the middle of saying something
            os.write(2, f"{words}\n".encode())

    def end(self) -> None:
        """Leave with 130 if it was interrupted: what is done is done, and has been said."""
        if self.wanted:
            raise typer.Exit(130)
