"""A worker's end of the line to its supervisor: it says how it is doing, and does not outlive it."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

VARIABLE = "LEASEHOLD_SUPERVISOR"
"""Tells a process that it is a supervised worker: the supervisor's pid and the descriptor to write to."""

_PR_SET_PDEATHSIG = 1


def address(descriptor: int) -> str:
    """The variable's value for a child of this process."""
    return f"{os.getpid()}:{descriptor}"


class Tether:
    """The pipe to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Not for the tasks' own children: the supervisor would wait for them too.
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    @classmethod
    def take(cls) -> "Tether | None":
        """The line to the supervisor, if there is one; from now on this process ends when that one does."""
        value = os.environ.pop(VARIABLE, None)
        if not value:
            return None
        parent, descriptor = map(int, value.split(":"))
        _die_with(parent)
        return cls(descriptor)

    def send(self, word: Mapping[str, Any]) -> bool:
        """Say it, unless the supervisor is too busy to listen. False: there is no supervisor any more."""
        try:
            # Less than PIPE_BUF, so it is written whole or not at all.
            os.write(self._descriptor, json.dumps(word).encode() + b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return False
        return True


def _die_with(parent: int) -> None:
    """Get SIGTERM, and so drain, when the supervisor ends in whatever way.

    Set by the child itself: between fork and exec nothing but exec is safe. The parent may be gone by then, which
    the kernel does not tell any more, so look.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")
