"""Places where a test can have this process killed, as by a power cut: `LEASEHOLD_FAILPOINT=name` or `name:nth`.

Nothing is done, and next to nothing costs, while the variable is unset or LEASEHOLD_ENV is production.
"""

import itertools
import os
import signal
from typing import Final

_place, _, _nth = os.environ.get("LEASEHOLD_FAILPOINT", "").partition(":")
_reached = itertools.count(1)

ARMED: Final = bool(_place) and os.environ.get("LEASEHOLD_ENV") != "production"
"""Check this first on the way of a job: it makes the places free."""


def reach(name: str) -> None:
    """Die here, if this is the place and the time."""
    if ARMED and name == _place and next(_reached) == int(_nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
