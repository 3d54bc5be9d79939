"""A call of one SQL function as plain data, so that any connection can carry it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
