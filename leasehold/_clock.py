"""The monotonic clock as it was when Leasehold was imported: what decides about leases must not follow another.

A task, or a test library that it uses, may replace `time.monotonic`, and the same function wherever a module has it by
name; it does not find it inside this `partial`.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

monotonic: Final[Callable[[], float]] = partial(time.monotonic)
"""Return seconds of the clock that is never set."""
