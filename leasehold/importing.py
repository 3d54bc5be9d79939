"""Whether a program that runs jobs is importing the user's module right now.

A module that waits for a job while its worker imports it waits for itself: no worker is there yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from leasehold.errors import ConfigError

_module: ContextVar[str | None] = ContextVar("leasehold_importing", default=None)

imported_now = _module.get
"""The name of that module; None: no such import is under way."""


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
    if (module := imported_now()) is not None:
        raise ConfigError(
            f"{module} waits for {job} while it is being imported, before a worker can run the job",
            hint='put it below `if __name__ == "__main__":` or into another file',
        )
