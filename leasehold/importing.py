"""Whether a program that runs jobs is importing the user's module right now.

A module that waits for a job while its worker imports it waits for itself: no worker is there yet.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from leasehold.errors import ConfigError

_CURE = 'put it below `if __name__ == "__main__":` or into another file'

_module: ContextVar[str | None] = ContextVar("leasehold_importing", default=None)


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Around the import of the module that holds the app."""
    token = _module.set(module)
    try:
        yield
    finally:
        _module.reset(token)


def refuse_waiting(job: object) -> None:
    """Refuse to wait for a job during that import."""
    if (module := _module.get()) is not None:
        raise ConfigError(
            f"{module} waits for {job} while it is being imported, before a worker can run the job", hint=_CURE
        )


def warn_of_enqueuing(kind: str) -> None:
    """Say that each start will enqueue a job again."""
    if (module := _module.get()) is not None:
        warnings.warn(
            f"{module} enqueues a job of kind {kind!r} while it is being imported: each process that imports it "
            f"enqueues one; {_CURE}",
            stacklevel=4,
        )
