"""Idempotency keys that another transaction is using: their calls wait without a connection, one at a time asks.

A call waits a moment in the database for such a key (`lock_timeout`), then it is undone and repeated. With many callers
of one key that moment alone would keep every connection busy, and calls with other keys or none would get none.
"""

import time
from typing import Final

import psycopg

_REMEMBERED: Final = 2.0
"""Seconds after a try in which a key counts as in use: longer than the longest pause between two tries."""

_MOST: Final = 10_000
"""Keys that are remembered."""


class KeyInUse(psycopg.errors.LockNotAvailable):
    """The call was not sent: its key was in use a moment ago, and another call of this process is asking."""


class BusyKeys:
    """The keys of one pool. Two threads that ask at the same moment are one too many, which does no harm: no lock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._asking: set[str] = set()

    def turn(self, key: str | None) -> "_Turn":
        """Around a try: raises KeyInUse instead of sending it if another call of the key is being tried."""
        return _FREE if key is None else _KeyTurn(self, key)

    def begin(self, key: str) -> None:
        """A try begins."""
        until = self._until.get(key)  # another thread may forget it at any moment
        if until is None:
            return
        if until >= time.monotonic() and key in self._asking:
            raise KeyInUse
        self._asking.add(key)

    def end(self, key: str, error: BaseException | None) -> None:
        """A try has ended, with this error."""
        self._asking.discard(key)
        if error is None:
            self._until.pop(key, None)
        elif isinstance(error, psycopg.errors.LockNotAvailable):
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[key] = time.monotonic() + _REMEMBERED


class _Turn:
    """Of a call without a key: always its turn."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End."""


class _KeyTurn(_Turn):
    __slots__ = ("_key", "_keys")

    def __init__(self, keys: BusyKeys, key: str) -> None:
        self._keys = keys
        self._key = key

    def __enter__(self) -> None:
        self._keys.begin(self._key)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._keys.end(self._key, error)


_FREE: Final = _Turn()
