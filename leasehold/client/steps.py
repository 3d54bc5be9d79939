"""What an operation asks of the network, as data.

An operation is a generator: it yields one of these, is sent what came of it, and returns its result. It never
touches a socket or a clock that sleeps, so that one text of it serves the blocking and the asynchronous client.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    """Below the base URL, quoted."""
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    repeatable: bool = True
    """Whether doing it twice is the same as doing it once."""
    patience: float = 0.0
    """For how many seconds the server may hold the answer back on purpose (a long poll)."""
    job_id: str | None = None
    """The job that it is about; a 404 then means that there is none."""
    keys: tuple[str, ...] = ()
    """The idempotency keys that it carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The connection broke, or the answer did not come in time."""

    error: Exception
    sent: bool
    """Whether the server may have seen the request."""


Reply: TypeAlias = Answer | NoAnswer


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request and read the whole answer; gives a Reply."""

    request: Request
    timeout: float


@dataclass(frozen=True, slots=True)
class Open:
    """Send the request; if the answer is 200, keep it open for `Line`; gives a Reply."""

    request: Request
    timeout: float


@dataclass(frozen=True, slots=True)
class Line:
    """Read one line of the open answer; gives None when there is no more of it."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand a value to whoever iterates."""

    value: Any


Step: TypeAlias = Send | Open | Line | Pause | Emit
Steps: TypeAlias = Generator[Step, Any, T]
