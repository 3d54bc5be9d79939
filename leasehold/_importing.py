"""Importing the user's modules, so that a worker knows their tasks; and warnings of surprising places to enqueue.

A module that waits for a job while its worker imports it would wait for itself: no worker has started yet.
"""

import asyncio
import importlib
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

from leasehold.errors import ConfigError

_module: ContextVar[str | None] = ContextVar("leasehold_importing", default=None)

imported_now = _module.get
"""Return the name of that module; None: no such import is in progress."""


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Wrap the import of the module that holds the app in this."""
    token = _module.set(module)
    try:
        yield
    finally:
        _module.reset(token)


def refuse_waiting(job: object) -> None:
    """Refuse to wait for a job during that import."""
    if (module := imported_now()) is not None:
        raise ConfigError(
            f"{module} waits for {job} while it is being imported, before a worker can run the job",
            hint='put it below `if __name__ == "__main__":` or into another file',
        )


def check_place(kind: str, *, blocking: bool) -> None:
    """Warn of a job that is enqueued on our own connections where that surprises; `blocking`: not from a coroutine."""
    if (module := imported_now()) is not None:
        warn(
            f"{module} enqueues a job of kind {kind!r} while it is being imported: each process that imports it "
            'enqueues one; put it below `if __name__ == "__main__":` or into another file'
        )
    if blocking and asyncio._get_running_loop() is not None:  # noqa: SLF001 (public)
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
    """Return whether a connection of Django's, of this thread, is inside atomic()."""
    try:
        opened = sys.modules["django.db"].connections.all(initialized_only=True)
    except Exception:  # noqa: BLE001 (imported and not set up: Django is not in use)
        return False
    return any(connection.in_atomic_block for connection in opened)


TASKS = "tasks"
"""The name of modules that hold tasks: `shop.tasks`, `shop.mail.tasks`, and everything in a package of that name."""


def discover(package: str | ModuleType) -> list[str]:
    """Import every module called `tasks` in the package and below it; return their names."""
    root = importlib.import_module(package) if isinstance(package, str) else package
    found = sorted(_tasks(root))
    for name in found:
        importlib.import_module(name)
    return found


def _tasks(package: ModuleType) -> Iterator[str]:
    """Yield the names, found without importing anything but the packages on the way."""
    inside = package.__name__.rpartition(".")[2] == TASKS
    for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        last = module.name.rpartition(".")[2]
        if inside or last == TASKS:
            yield module.name
        if module.ispkg and last != "tests":
            yield from _tasks(importlib.import_module(module.name))
