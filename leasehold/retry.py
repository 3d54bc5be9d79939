"""When to try again after a failure, and when to give up.

A policy is asked after each failure with the number of failures so far (1 after the first). It answers
with seconds, or with None to give up at once however many attempts are left.
"""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from leasehold import _facts as facts
from leasehold.durations import seconds
from leasehold.errors import ConfigError

USUAL_ATTEMPTS: Final = facts.USUAL_ATTEMPTS
"""How many failures end a job when its task says no number."""

ErrorTypes: TypeAlias = tuple[type[BaseException], ...]


@runtime_checkable
class RetryPolicy(Protocol):
    """Anything that answers how long to wait after a failure."""

    def delay(self, failures: int, error: BaseException) -> float | None:
        """Return seconds to wait after this many failures, or None to give up."""


RetryFunction: TypeAlias = Callable[[int, BaseException], timedelta | float | None]


_SPREAD: Final = {"slight": 0.2, "full": 1.0, "none": 0.0}
"""Over which part of a wait the moments of return are spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """Waits that grow by a factor up to a cap, spread out so that failed jobs do not return together.

    As it is by itself: 4 s, 8 s, 16 s and so on up to an hour, which with `USUAL_ATTEMPTS` makes a day at least.
    SQL has the same curve in backoff_seconds().
    """

    base: float = 4.0
    """Seconds after the first failure."""
    factor: float = 2.0
    """How much longer each further wait is; at least 1."""
    cap: float = 3600.0
    """No wait is longer than this many seconds."""
    jitter: Literal["slight", "full", "none"] = "slight"
    """`slight`: in the last fifth of the wait; `full`: anywhere between zero and the wait; `none`: exactly the wait."""
    fatal: ErrorTypes = ()
    """Errors that end the job at once."""
    only: ErrorTypes = ()
    """When given, every other error ends the job at once; `fatal` goes first."""
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)
    """Where the jitter comes from: a number from 0 up to 1."""

    def __post_init__(self) -> None:
        base = seconds(self.base, what="ExponentialBackoff.base")
        cap = seconds(self.cap, what="ExponentialBackoff.cap")
        if cap < base:
            raise ValueError(f"ExponentialBackoff.cap: {cap} is less than base, {base}; raise the cap")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"ExponentialBackoff.factor: {self.factor!r} must be a finite number from 1 up")
        if self.jitter not in _SPREAD:
            raise ValueError(f"ExponentialBackoff.jitter: {self.jitter!r}; give 'slight', 'full' or 'none'")
        _check_types("ExponentialBackoff", self.fatal, self.only)

    def ceiling(self, failures: int) -> float:
        """Return the longest wait after this many failures."""
        try:
            return min(self.cap, self.base * float(self.factor) ** (failures - 1))
        except OverflowError:
            # Past the range of floats it is past the cap as well, unless it started from nothing.
            return self.cap if self.base else 0.0

    def delay(self, failures: int, error: BaseException) -> float | None:
        """Return seconds to wait, or None when the error is fatal."""
        if _gives_up(error, self.fatal, self.only):
            return None
        return self.ceiling(failures) * (1 - _SPREAD[self.jitter] * (1 - self.random()))


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """The same wait after every failure."""

    after: timedelta | float
    fatal: ErrorTypes = field(default=(), kw_only=True)
    """Errors that end the job at once."""
    only: ErrorTypes = field(default=(), kw_only=True)
    """When given, every other error ends the job at once; `fatal` goes first."""

    def __post_init__(self) -> None:
        seconds(self.after, what="FixedDelay.after")
        _check_types("FixedDelay", self.fatal, self.only)

    def delay(self, failures: int, error: BaseException) -> float | None:  # noqa: ARG002 - a protocol
        """Return seconds to wait, or None when the error is fatal."""
        if _gives_up(error, self.fatal, self.only):
            return None
        return seconds(self.after, what="FixedDelay.after")


@dataclass(frozen=True, slots=True)
class NoRetry:
    """Every failure is the last."""

    def delay(self, failures: int, error: BaseException) -> float | None:  # noqa: ARG002 - a protocol
        """Return None: give up."""
        return None


@dataclass(frozen=True, slots=True)
class CallablePolicy:
    """A plain function as a policy; what it answers is checked."""

    function: RetryFunction

    def delay(self, failures: int, error: BaseException) -> float | None:
        """Return seconds to wait, or None to give up."""
        answer = self.function(failures, error)
        if answer is None:
            return None
        name = getattr(self.function, "__qualname__", repr(self.function))
        return seconds(answer, what=f"the retry function {name} after {failures} failures")


def as_policy(policy: RetryPolicy | RetryFunction) -> RetryPolicy:
    """Return the policy itself, or a policy around a plain function; anything else is a ConfigError."""
    if isinstance(policy, type):
        raise ConfigError(f"retry: {policy.__name__} is a class; give an instance, {policy.__name__}()")
    if isinstance(policy, RetryPolicy):
        return policy
    if inspect.iscoroutinefunction(policy):
        raise ConfigError(f"retry: {policy.__qualname__} is async; give a plain function")
    if callable(policy):
        return CallablePolicy(policy)
    raise ConfigError(
        f"retry: {policy!r} is no retry policy; give ExponentialBackoff(), FixedDelay(seconds), NoRetry() "
        "or a function (failures, error) -> seconds or None"
    )


def _gives_up(error: BaseException, fatal: ErrorTypes, only: ErrorTypes) -> bool:
    return isinstance(error, fatal) or bool(only and not isinstance(error, only))


def _check_types(policy: str, fatal: object, only: object) -> None:
    for name, types in (("fatal", fatal), ("only", only)):
        # Caught here: isinstance() would only complain when the first job fails.
        if not isinstance(types, tuple):
            raise TypeError(f"{policy}.{name}: {types!r} must be a tuple of exception types")
        for kind in types:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"{policy}.{name}: {kind!r} is not an exception type")
