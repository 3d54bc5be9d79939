"""A process that ends, whatever the code of tasks does that still runs in it, and whether or not its log is read."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from leasehold.cli.log_options import sayer
from leasehold.supervise.aside import Aside, within

_LAST_LINES: Final = 0.5
"""Seconds for what is to be written before the process ends."""


def end_within(seconds: float, code: int) -> None:
    """End this process with this exit code, at once and without anything more, unless it has ended by then."""
    threading.Thread(target=_end, args=(seconds, code), name="leasehold-end", daemon=True).start()


def _end(seconds: float, code: int) -> None:
    time.sleep(seconds)
    within(_LAST_LINES, _flush)
    os._exit(code)


def _flush() -> None:
    # A thread that waits for a pipe which is not read holds the lock of its handler.
    for handler in logging.getLogger().handlers:
        handler.flush()


def supervised(run: Callable[[Callable[[str], None]], int]) -> int:
    """Run a supervisor, which is given how to say something; its exit code, whether or not what it said is read."""
    say = Aside(sayer())
    code = 1
    try:
        code = run(say)
    finally:
        if not say.close(_LAST_LINES):
            os._exit(code)
    return code
