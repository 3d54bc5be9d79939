"""A call of one SQL function as plain data, so that any connection can carry it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leasehold.intent import Intent

T = TypeVar("T")

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """What to send and how to read the answer; knows nothing of drivers, sync or async."""

    sql: str
    """One statement with `%s` places and no other percent sign."""

    args: tuple[object, ...]
    """The values for the places."""

    read: Callable[[Sequence[Row]], T]
    """Turns the rows that came back into the result."""

    repeatable: bool = False
    """Sent twice it does what it does once: when an answer is lost, repeat it."""

    divisible: bool = False
    """It is for many, and one of them may be at fault: when it is refused, its caller sends them one by one."""

    intents: Sequence[Intent] = ()
    """What it records, if it records jobs with ids of ours; an error of it names them."""

    ids: Sequence[str] = ()
    """The ids that it offers for them."""

    @property
    def key(self) -> str | None:
        """The idempotency key of the one job that it records."""
        return self.intents[0].idempotency_key if len(self.intents) == 1 else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The idempotency keys of the jobs that it records."""
        return tuple(intent.idempotency_key for intent in self.intents if intent.idempotency_key is not None)


class Series(Generic[T]):
    """Calls that are one transaction. Each is made when the one before has been sent, and the database works meanwhile.

    The calls that were made are kept, so that the whole can be sent again.
    """

    def __init__(self, calls: Iterable[Call[T]], *, ended: Callable[[], bool] = lambda: False) -> None:
        self._made: list[Call[T]] = []
        self._to_make = iter(calls)
        self._ended = ended
        """Whether no call follows those that were made, if that is known already."""
        self.on_call: Callable[[], None] = lambda: None
        """Called for each call that is made or sent again."""

    def __iter__(self) -> Iterator[Call[T]]:
        for call in list(self._made):
            self.on_call()
            yield call
        for call in self._to_make:
            self._made.append(call)
            self.on_call()
            yield call

    @property
    def alone(self) -> bool:
        """Whether the first call, which was made, is known to be the only one: it needs no transaction around it."""
        return len(self._made) == 1 and self._ended()

    key: str | None = None
    """Of many jobs none is the one."""

    @property
    def ids(self) -> list[str]:
        """The ids that were offered for its jobs."""
        return [job_id for call in self._made for job_id in call.ids]

    @property
    def keys(self) -> tuple[str, ...]:
        """The idempotency keys of its jobs."""
        return tuple(key for call in self._made for key in call.keys)

    @property
    def repeatable(self) -> bool:
        """Whether all that were sent may be sent twice."""
        return all(call.repeatable for call in self._made)
