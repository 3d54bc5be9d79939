"""Job ids made by the client: UUIDv7, so that an enqueue whose answer was lost can be repeated identically.

Ids give the order of creation, so hosts with wrong clocks would push in or fall behind. `follow` keeps the
maker on the database's clock instead.
"""

import secrets
import threading
import time
from collections.abc import Callable

_PER_MS = 4096
_NS_PER_MS = 1_000_000
_FRACTIONS = [f"{n:03x}" for n in range(_PER_MS)]
_VARIANT = {f"{n:x}": "89ab"[n % 4] for n in range(16)}


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

    def make(self, count: int) -> list[str]:
        """So many new ids, each 48 bits of milliseconds, 12 bits of their fraction, 62 random bits.

        As text: that is how they travel, and a batch of a thousand is made in a millisecond.
        """
        now = (self.clock() + (self._offset_ns or 0)) * _PER_MS // _NS_PER_MS
        with self._lock:
            first = max(now, self._last + 1)
            self._last = first + count - 1
        chance = secrets.token_bytes(8 * count).hex()
        ids: list[str] = []
        end = first + count
        while first < end:
            # All of one millisecond: they begin alike, and what differs is at hand.
            milliseconds, fraction = divmod(first, _PER_MS)
            some = min(end - first, _PER_MS - fraction)
            beginning = f"{milliseconds:012x}"
            beginning = f"{beginning[:8]}-{beginning[8:]}-7"
            places = range(16 * len(ids), 16 * (len(ids) + some), 16)
            ids += [
                f"{beginning}{part}-{_VARIANT[chance[n]]}{chance[n + 1 : n + 4]}-{chance[n + 4 : n + 16]}"
                for n, part in zip(places, _FRACTIONS[fraction : fraction + some], strict=True)
            ]
            first += some
        return ids
