"""What many viewers ask within a moment is asked of the database once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MOST: Final = 1000


@dataclass(slots=True)
class _Entry:
    answer: "asyncio.Future[Any]"
    until: float


class Cache:
    """Answers by key, each good for some seconds; whoever asks while one is under way waits for the same one."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    async def get(self, key: Hashable, seconds: float, make: Callable[[], Awaitable[T]]) -> T:
        """The answer, made now or a moment ago. A failure is not kept."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        entry = self._entries.get(key)
        if entry is None or _is_stale(entry, now, loop):
            if len(self._entries) >= _MOST:
                self._entries.clear()
            entry = self._entries[key] = _Entry(asyncio.ensure_future(make()), now + seconds)
            entry.answer.add_done_callback(_noticed)
        # Shielded: whoever asked first may hang up, and the others still wait.
        answer: T = await asyncio.shield(entry.answer)
        return answer

    def clear(self) -> None:
        """Forget everything: somebody has just changed something, and wants to see it."""
        self._entries.clear()


def _is_stale(entry: _Entry, now: float, loop: asyncio.AbstractEventLoop) -> bool:
    answer = entry.answer
    if answer.get_loop() is not loop or answer.cancelled():
        return True
    return answer.done() and (now >= entry.until or answer.exception() is not None)


def _noticed(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()  # if nobody waits any more, nobody is to be warned
