"""A call of one SQL function as plain data, so that it can be sent on any connection."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from leasehold.errors import InvalidArgument, InvalidJob
from leasehold.intent import Intent

T = TypeVar("T")

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """What to send and how to read the answer, whatever the driver."""

    sql: str
    """One statement with `%s` places and no other percent sign; `%b`, on connections of ours: sent in binary format."""
    args: tuple[object, ...]
    """The values for the places."""
    read: Callable[[Sequence[Row]], T]
    """Turns the rows that came back into the result."""
    repeatable: bool = False
    """Whether sending it twice does the same as once: it is repeated when an answer is lost."""
    divisible: bool = False
    """Whether one of many jobs may cause its failure: its caller then sends them one by one."""
    intents: Sequence[Intent] = ()
    """The jobs that it records with ids of ours; its errors name them."""
    ids: Sequence[str] = ()
    """The ids that it offers for them."""
    wakes: bool = False
    """Whether workers may have something to do after it: `db/notify.py` says of what to notify them."""
    may_notify: bool = False
    """Whether its transaction can notify them itself: if its last argument is true."""
    key: str | None = None
    """The idempotency key of the one job that it records."""
    invalid: type[InvalidArgument] = InvalidArgument
    """What it raises for a value that the database refuses."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The idempotency keys of the jobs that it records."""
        return tuple(intent.idempotency_key for intent in self.intents if intent.idempotency_key is not None)


class Series(Generic[T]):
    """Calls in one transaction that record jobs in pieces: the database works on one while the next is made.

    The calls are kept, so that all of them can be sent again. All jobs that have an idempotency key come in one piece:
    only within a statement are keys taken in one order, and two batches that take the same keys in different orders
    would wait for each other.
    """

    SIZE = 250
    LARGEST = 4000  # the pieces double: each takes a place in the server's lock table, which has some thousand

    def __init__(self, intents: Iterable[Intent], make: Callable[[list[Intent]], Call[T]]) -> None:
        if isinstance(intents, Intent) or not isinstance(intents, Iterable):
            raise _no_intent(intents, "several of them in a list or a generator")
        self.made: list[Call[T]] = []
        self._pieces = self._split(intents)
        self._make = make
        self._ended = False
        self.on_call: Callable[[], None] = lambda: None
        """Called for each call that is made or sent again."""
        self.notifies = False
        """Whether the transaction notifies by itself."""

    def __iter__(self) -> Iterator[Call[T]]:
        for call in list(self.made):
            self.on_call()
            yield call
        for piece in self._pieces:
            call = self._make(piece)
            self.made.append(replace(call, args=(*call.args[:-1], True)) if self.notifies else call)
            self.on_call()
            yield self.made[-1]

    def whole(self) -> list[Intent]:
        """Return all intents, for one call, instead of making calls of pieces."""
        return [intent for piece in self._pieces for intent in piece]

    def _split(self, intents: Iterable[Intent]) -> Iterator[list[Intent]]:
        began, size, first = time.monotonic(), self.SIZE, True
        piece: list[Intent] = []
        for place, intent in enumerate(intents):
            if not isinstance(intent, Intent):
                raise _no_intent(intent, "task.intent(…) makes one of the arguments", f" (item {place})")
            piece.append(intent)
            if intent.idempotency_key is not None:
                size = sys.maxsize
            if len(piece) >= size:
                # A piece that only has to be computed takes some milliseconds. If the first takes longer, the caller's
                # generator waits for something, which it must not do while a transaction is open.
                if first and time.monotonic() - began > 0.1:
                    size = sys.maxsize
                    continue
                yield piece
                piece, first, size = [], False, min(2 * size, self.LARGEST)
        self._ended = True
        if piece:
            yield piece

    @property
    def alone(self) -> bool:
        """Whether the first call is known to be the only one: it needs no explicit transaction."""
        return len(self.made) == 1 and self._ended

    key: str | None = None  # a series has no single job
    invalid = InvalidJob

    @property
    def intents(self) -> list[Intent]:
        """The jobs that it records."""
        return [intent for call in self.made for intent in call.intents]

    @property
    def ids(self) -> list[str]:
        """The ids that were offered for its jobs."""
        return [job_id for call in self.made for job_id in call.ids]

    @property
    def keys(self) -> tuple[str, ...]:
        """The idempotency keys of its jobs."""
        return tuple(key for call in self.made for key in call.keys)

    @property
    def repeatable(self) -> bool:
        """Whether all that were sent may be sent twice."""
        return all(call.repeatable for call in self.made)


def _no_intent(value: object, hint: str, where: str = "") -> InvalidJob:
    return InvalidJob(f"enqueue_many takes intents, not {value!r:.200}{where}", hint=f"{hint}; nothing was recorded")
