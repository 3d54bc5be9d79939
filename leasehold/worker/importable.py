"""Tasks that a process can find: by importing their module."""

import importlib
import sys
from collections.abc import Iterable
from typing import Any

from leasehold.errors import ConfigError
from leasehold.task import Task


def find_task(module: str, name: str) -> Task[..., Any]:
    """The task that a module has under the qualified name of its function."""
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Task):
        raise TypeError(f"{module}.{name} is a {type(found).__name__}, no task")
    return found


def check_tasks(tasks: Iterable[Task[..., Any]]) -> None:
    """Refuse tasks that a process could not find by importing their module."""
    for task in tasks:
        if task.options.executor == "process":
            _check(task)


def _check(task: Task[..., Any]) -> None:
    module, name = task.function.__module__, task.function.__qualname__
    problem = f"{task.kind}: a process cannot import {module}.{name}"
    if task.options.memory is not None and sys.platform != "linux":
        raise ConfigError(f"{task.kind}: memory can be capped on Linux only", hint="leave memory out")
    if module == "__main__":
        raise ConfigError(problem, hint="move the task from the script into a module that the script imports")
    if "<locals>" in name:
        raise ConfigError(problem, hint="define the task at the top of its module, not inside a function")
    try:
        found = find_task(module, name)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"{problem}: {error}", hint="keep the task under the name of its function") from None
    if found.kind != task.kind:
        raise ConfigError(f"{problem}: that is {found.kind}", hint="one function, one kind")
