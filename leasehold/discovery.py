"""Importing the modules of a package that hold tasks, so that a worker knows them."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

TASKS = "tasks"
"""What such modules are called: `shop.tasks`, `shop.mail.tasks`, and everything in a package of that name."""


def discover(package: str | ModuleType) -> list[str]:
    """Import every module called `tasks` in the package and below it; gives their names."""
    root = importlib.import_module(package) if isinstance(package, str) else package
    found = sorted(_tasks(root))
    for name in found:
        importlib.import_module(name)
    return found


def _tasks(package: ModuleType) -> Iterator[str]:
    """The names, found without importing anything but the packages on the way."""
    inside = package.__name__.rpartition(".")[2] == TASKS
    for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        last = module.name.rpartition(".")[2]
        if inside or last == TASKS:
            yield module.name
        if module.ispkg and last != "tests":
            yield from _tasks(importlib.import_module(module.name))
