"""A process and its system: its parent, its memory, how it ended, what its forks must not keep open."""

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import signal
import threading
import weakref
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

STATM: Final = Path("/proc/self/statm")


def follow_parent(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send this process a signal when its parent dies (Linux); return whether the parent still lives.

    To be called by the child itself: between fork and exec nothing but exec is safe.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, ctypes.c_ulong(number), 0, 0, 0)  # PR_SET_PDEATHSIG
    return os.getppid() == parent


def memory() -> list[int]:
    """Return the fields of /proc/self/statm in bytes: address space, resident, shared, text, library, data."""
    return [int(pages) * resource.getpagesize() for pages in STATM.read_text(encoding="ascii").split()]


def signal_name(code: int) -> str:
    """Return the name of the signal that a process with this negative exit code died of."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def free_descriptors() -> None:
    """Allow this process as many descriptors as it may have: a task may have lowered the limit, or used all up."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def settle_collector() -> None:
    """Have the garbage collector leave alone what has been made so far, which stays, and search less often.

    Nearly everything goes by its reference count. At the usual threshold the collector would walk over all jobs in hand
    several times while they run: a fifth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# -- what a fork of this process must make anew: the parent's locks may be held for ever, and it uses its sockets

_forkable: "weakref.WeakSet[Any]" = weakref.WeakSet()

renew_in_forks = _forkable.add
"""Have every fork of this process call `after_fork` of this object."""

os.register_at_fork(after_in_child=lambda: [one.after_fork() for one in list(_forkable)])


# -- files that mean something by being open, such as a lock: a process that a task forks must not keep them open

_files: "weakref.WeakSet[IO[Any]]" = weakref.WeakSet()
_maps: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()
_descriptors: set[int] = set()

closed_here = _descriptors.discard
"""Note that a descriptor is about to be closed: its number may become another file."""


def not_in_forks(held: IO[Any] | mmap.mmap | int) -> None:
    """Have every fork of this process let go of the file, the map of one, or the descriptor."""
    if isinstance(held, int):
        _descriptors.add(held)
    elif isinstance(held, mmap.mmap):
        _maps.add(held)
    else:
        _files.add(held)


def _let_go() -> None:
    for memory in list(_maps):
        with contextlib.suppress(ValueError, BufferError):
            memory.close()  # it has a descriptor of its own
    # Replaced, not closed: what is in a buffer must not be written twice, and the number must not become another file.
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        for descriptor in _descriptors:
            os.dup2(null, descriptor, inheritable=False)
    _descriptors.clear()
    for file in list(_files):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(null, file.fileno(), inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_let_go)


# -- standard input, output and error: no other file or socket must get the number of one that a task has closed

_standard: dict[int, int] = {}


def keep_standard() -> int:
    """Keep a copy of each for `restore_standard`; return that of standard error, for what must not go elsewhere."""
    _standard.update({number: os.dup(number) for number in range(3)})
    return _standard[2]


def restore_standard() -> None:
    """Open again those that a task has closed, if they were kept."""
    for number, copy in _standard.items():
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(copy, number)


# -- signals that mean something to this process: one for a process that a task forks is for that process alone

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
"""The signals that ask a process to end."""
_mask = threading.local()


def nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. An ignored signal would be ignored by the programs that a task starts, too; a handled one is not."""


def do_nothing_at_signals() -> dict[int, Any]:
    """Have Python do nothing at the signals that ask this process to end; return the handlers before.

    A fork does the usual at them, unless its task has set handlers of its own: it inherits ours, and the pipe that
    Python writes signals to. It would not end, and its parent would.
    """
    return {number: signal.signal(number, nothing) for number in ENDING}


def _hold_signals() -> None:
    if any(signal.getsignal(number) is nothing for number in ENDING):  # until the fork has let go of the pipe
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _restore_mask() -> None:
    if (before := _mask.__dict__.pop("before", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _usual_signals() -> None:
    ours = [number for number in ENDING if signal.getsignal(number) is nothing]
    for number in ours:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if ours:
        signal.set_wakeup_fd(-1)
    _restore_mask()


os.register_at_fork(before=_hold_signals, after_in_parent=_restore_mask, after_in_child=_usual_signals)
