"""`python -m faults.matrix.careless worker …`: the command line of Leasehold with one seeded bug, which FAULTS_BUG names.

A matrix in which nothing fails proves nothing until a cell of it has been seen to fail.
"""

import os
from collections.abc import Callable
from typing import Final

from leasehold.cli import main
from leasehold.db.connections import io
from leasehold.worker.loops import Loops


def _wait_for_ever() -> None:
    io.shut = lambda _connection: None


def _overlook_dead_loops() -> None:
    setattr(Loops, "_died", lambda *_: None)  # noqa: B010 (it is not one of ours)


BUGS: Final[dict[str, Callable[[], None]]] = {
    "no call has a deadline": _wait_for_ever,
    "dead loops are overlooked": _overlook_dead_loops,
}

if __name__ == "__main__":
    BUGS[os.environ["FAULTS_BUG"]]()
    main()
