"""What a process of tasks gets from the system, and has again before each job, whatever a task has changed."""

import contextlib
import os
import resource
import signal
import sys
from typing import Any, NamedTuple

from leasehold._os_process import ENDING, restore_standard

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Surroundings(NamedTuple):
    """Of one process at one moment. Two that are equal differ in nothing that a job can notice here."""

    folder: str | None
    path: list[str]
    env: dict[str, str]
    umask: int
    nice: int
    limits: list[list[int]]  # number, soft and hard limit
    mask: list[int]
    handlers: list[tuple[int, Any]]

    @classmethod
    def now(cls) -> "Surroundings":
        """Return those of this process. The mask of signals is that of the calling thread."""
        folder = None
        with contextlib.suppress(OSError):  # it was removed
            folder = os.getcwd()  # noqa: PTH109 (it is sent as JSON)
        os.umask(umask := os.umask(0o077))  # it can only be read by being set
        return cls(
            folder, list(sys.path), dict(os.environ), umask, os.getpriority(os.PRIO_PROCESS, 0),
            [[limit, *resource.getrlimit(limit)] for limit in _LIMITS],
            sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            [(number, signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        )  # fmt: skip

    def to_send(self) -> dict[str, Any]:
        """Return what a new process is to have: of signals whether they are ignored, as exec passes on no more."""
        plain = [(number, handler) for number, handler in self.handlers if isinstance(handler, signal.Handlers)]
        # Those in ENDING every process of tasks handles itself.
        return self._replace(handlers=[one for one in plain if one[0] not in ENDING])._asdict()

    def restore(self) -> bool:
        """Put back what can be; return whether that is all. To be called by the main thread."""
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number, handler in self.handlers:
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        restore_standard()
        os.umask(self.umask)
        sys.path[:] = self.path
        if os.environ != self.env:
            os.environ.clear()
            os.environ.update(self.env)
        with contextlib.suppress(OSError):
            os.chdir(self.folder or ".")
        for limit, soft, _ in self.limits:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        return Surroundings.now() == self
