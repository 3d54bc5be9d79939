"""Job ids made by the client: UUIDv7, so that an enqueue whose answer was lost can be repeated identically.

Ids give the order of creation, so hosts with wrong clocks would push in or fall behind. `follow` keeps the
maker on the database's clock instead.
"""

import secrets
import threading
import time
from uuid import UUID

_PER_MS = 4096
_NS_PER_UNIT = 1_000_000 / _PER_MS


class IdMaker:
    """Makes ids that increase within this process and follow the database's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._offset_ns = 0

    def follow(self, *, database_ns: int, local_ns: int) -> None:
        """Learn what the database's clock showed when ours showed `local_ns`."""
        self._offset_ns = database_ns - local_ns

    def make(self) -> UUID:
        """A new id: 48 bits of milliseconds, 12 bits of their fraction, 62 random bits."""
        now = int((time.time_ns() + self._offset_ns) / _NS_PER_UNIT)
        with self._lock:
            self._last = now = max(now, self._last + 1)
        milliseconds, fraction = divmod(now, _PER_MS)
        return UUID(int=milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | secrets.randbits(62))
