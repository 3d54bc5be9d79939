"""Job ids made by the client: UUIDv7, so that an enqueue whose answer was lost can be repeated identically.

Ids give the order of creation, so hosts with wrong clocks would push in or fall behind. `follow` keeps the
maker on the database's clock instead.
"""

import secrets
import threading
import time
from collections.abc import Callable
from uuid import UUID

_PER_MS = 4096
_NS_PER_MS = 1_000_000


class IdMaker:
    """Makes ids that increase within this process and follow the database's clock."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.clock = clock
        """Our own clock, in nanoseconds since the epoch; it may be wrong."""
        self._lock = threading.Lock()
        self._last = 0
        self._offset_ns: int | None = None

    @property
    def follows(self) -> bool:
        """Whether the database's clock is known."""
        return self._offset_ns is not None

    def follow(self, *, database_ns: int, local_ns: int) -> None:
        """Learn what the database's clock showed when ours showed `local_ns`."""
        self._offset_ns = database_ns - local_ns

    def anew(self) -> "IdMaker":
        """A maker that has learnt nothing yet: for a forked child, where this one's lock may be taken for ever."""
        return IdMaker(self.clock)

    def make(self) -> UUID:
        """A new id: 48 bits of milliseconds, 12 bits of their fraction, 62 random bits."""
        now = (self.clock() + (self._offset_ns or 0)) * _PER_MS // _NS_PER_MS
        with self._lock:
            self._last = now = max(now, self._last + 1)
        milliseconds, fraction = divmod(now, _PER_MS)
        return UUID(int=milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | secrets.randbits(62))
