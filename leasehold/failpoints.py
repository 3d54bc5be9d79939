"""Places where a test can have this process killed, as by a power cut: `LEASEHOLD_FAILPOINT=name` or `name:nth`.

Nothing is done, and next to nothing costs, while the variable is unset or LEASEHOLD_ENV is production.
"""

import os
import signal
from typing import Final

SUBMISSION: Final = ("before-submit", "after-submit", "after-accept", "before-answer", "half-answer")
"""In the order of a submission: received, recorded as created, accepted, about to be answered, partly answered."""

WORK: Final = (
    "before-claim", "after-claim", "before-heartbeat", "after-heartbeat", "before-complete", "after-complete",
    "before-fail", "after-fail", "before-release", "after-release", "after-schedule-claim", "after-schedule-fire",
)  # fmt: skip
"""In a worker, around the calls that change a job: about to be sent; answered, and nothing else done yet."""


class _Fuse:
    def __init__(self, setting: str) -> None:
        self.name, _, nth = setting.partition(":")
        self.left = int(nth or 1)


_setting = os.environ.get("LEASEHOLD_FAILPOINT", "")
_fuse = _Fuse(_setting) if _setting and os.environ.get("LEASEHOLD_ENV") != "production" else None

ARMED: Final = _fuse is not None
"""Ask this first: it makes the places free."""


def reach(name: str) -> None:
    """Die here, if this is the place and the time."""
    if _fuse is not None and _fuse.name == name:
        _fuse.left -= 1
        if _fuse.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
