"""Warnings about calls that work and do not do what their author expects."""

import asyncio
import inspect
import sys
import warnings
from typing import Any

from leasehold.importing import imported_now


class _Unset:
    """The default of an argument that may be left out where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


def check_place(kind: str, *, blocking: bool) -> None:
    """Warn of a job that is enqueued on our own connections where that surprises; `blocking`: not from a coroutine."""
    if (module := imported_now()) is not None:
        warn(
            f"{module} enqueues a job of kind {kind!r} while it is being imported: each process that imports it "
            'enqueues one; put it below `if __name__ == "__main__":` or into another file'
        )
    if blocking and asyncio._get_running_loop() is not None:  # noqa: SLF001 (public, and quick where none runs)
        warn(
            f"enqueue() blocks the event loop until the database has answered (kind {kind!r}); in a coroutine use "
            "`await ….aenqueue(…)` or `await app.aenqueue_many(…)`"
        )
    if "django.db" in sys.modules and _in_atomic_block():
        warn(
            f"a job of kind {kind!r} is enqueued outside the transaction of this atomic() block, and stays when "
            "that is rolled back; make the app with App(connection=lambda: django.db.connection), or say "
            ".using(connection=django.db.connection), or .using(connection=None) if it is meant"
        )


def warn(message: str) -> None:
    """Warn at the line of the user's code that called us."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "leasehold":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _in_atomic_block() -> bool:
    """Whether a connection of Django's, of this thread, is inside atomic()."""
    try:
        opened = sys.modules["django.db"].connections.all(initialized_only=True)
    except Exception:  # noqa: BLE001 (imported and not set up: Django is not in use)
        return False
    return any(connection.in_atomic_block for connection in opened)
