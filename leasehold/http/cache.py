"""What many callers ask within a moment is asked of the database once."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry:
    answer: "asyncio.Future[Any]"
    until: float

    def is_stale(self, now: float) -> bool:
        """Whether to ask again: the answer is too old, a failure, or of an event loop that has ended."""
        answer = self.answer
        if answer.done():
            return now >= self.until or answer.cancelled() or answer.exception() is not None
        return answer.get_loop() is not asyncio.get_running_loop()


class Cache:
    """Answers by key, each good for some seconds; callers that ask while a query is under way share its answer."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    async def get(self, key: Hashable, seconds: float, make: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, made now or a moment ago. A failure is not kept."""
        now = time.monotonic()
        entry = self._entries.get(key)
        if entry is None or entry.is_stale(now):
            entry = self._entries[key] = _Entry(asyncio.ensure_future(make()), now + seconds)
            # So that there is no warning of its error if every caller is gone.
            entry.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            self._entries.move_to_end(key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        answer: asyncio.Future[T] = entry.answer
        # Shielded: the caller that asked first may be cancelled, and the others still wait.
        return answer.result() if answer.done() else await asyncio.shield(answer)

    def forget(self, key: Hashable) -> None:
        """Ask again at the next call."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything, after a change that callers want to see at once."""
        self._entries.clear()
