"""How an attempt ended, as values for `match`; and what a task raises or returns to say so itself."""

import traceback
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeAlias

from leasehold._texts import MAX_CLASS, MAX_MESSAGE, MAX_TRACEBACK, text_of
from leasehold.durations import seconds

_MAX_EXCEPTIONS: Final = 100


class Signal(Exception):
    """The base of `Retry`, `Snooze` and `Cancel`; a task may raise them or return them."""


class Retry(Signal):
    """Try again: counts as a failure. Without `after` the retry policy chooses the delay."""

    def __init__(self, after: timedelta | float | None = None, reason: str = "") -> None:
        self.after = None if after is None else seconds(after, what="Retry(after=...)")
        self.reason = reason
        # The arguments as given: pickle and copy call the class with them again.
        super().__init__(after, reason)

    def __str__(self) -> str:
        when = "" if self.after is None else f" after {self.after:g} s"
        return f"retry{when}: {self.reason}" if self.reason else f"retry{when}"


class Snooze(Signal):
    """Later: the attempt counts as no failure."""

    def __init__(self, after: timedelta | float) -> None:
        self.after = seconds(after, what="Snooze(after=...)")
        super().__init__(after)

    def __str__(self) -> str:
        return f"snooze for {self.after:g} s"


class Cancel(Signal):
    """End the job: it is dead, cancelled by its own task."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return self.reason or "cancelled by the task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """An exception as text, bounded and safe to store, wherever the text came from."""

    type: str
    """The class, `module.QualName`; builtins without a module; at most `MAX_CLASS` characters."""
    message: str
    """What the exception said, at most `MAX_MESSAGE` characters."""
    traceback: str
    """The traceback with causes and groups, at most `MAX_TRACEBACK` characters."""

    def __post_init__(self) -> None:
        for name, limit in (("type", MAX_CLASS), ("message", MAX_MESSAGE), ("traceback", MAX_TRACEBACK)):
            object.__setattr__(self, name, text_of(getattr(self, name), limit))

    @classmethod
    def from_exception(cls, error: BaseException) -> Self:
        """Record the exception. Never fails, whatever its class does."""
        return cls(type=_class_name(error), message=text_of(error, MAX_MESSAGE), traceback=_traceback(error))


@dataclass(frozen=True, slots=True)
class Success:
    """The task returned."""

    result: str | None
    """Its result as JSON text; None for no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task raised, timed out, or asked for a retry."""

    error: Error
    retry_after: float | None
    """Seconds until the next attempt; None when there is none."""
    fatal: bool = False
    """Whether the retry policy gave up, however many attempts are left."""

    def __post_init__(self) -> None:
        if self.retry_after is not None:
            seconds(self.retry_after, what="Failed.retry_after")


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The task wants to run later; no failure."""

    after: float
    """Seconds until then."""

    def __post_init__(self) -> None:
        seconds(self.after, what="Snoozed.after")


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The task, or an operator, ended the job: it is dead, and is not tried again."""

    reason: str
    """Why, for people; at most `MAX_MESSAGE` characters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", text_of(self.reason, MAX_MESSAGE))


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gave the job back unfinished, for another worker to take at once."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease was lost: another attempt may own the job, and nothing may be written."""


Outcome: TypeAlias = Success | Failed | Snoozed | Cancelled | Released | Lost


def _class_name(error: BaseException) -> str:
    try:
        module, name = type(error).__module__, type(error).__qualname__
        return name if module == "builtins" else f"{module}.{name}"  # noqa: TRY300
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return "<a class without a name>"


def _traceback(error: BaseException) -> str:
    try:
        own = _without_own_frames(error.__traceback__)
        if not _few(error):
            return _shortened(error, own)
        return "".join(traceback.TracebackException(type(error), error, own).format())
    except BaseException as broken:  # noqa: BLE001 - what the exception's own methods raise must not cost the record
        return f"<no traceback: formatting raised {type(broken).__name__}>"


def _few(error: BaseException) -> bool:
    """Return whether it has few causes and members. Each takes a fraction of a millisecond to format."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        if len(seen) + len(members) > _MAX_EXCEPTIONS:
            return False
        pending += (one.__cause__, one.__context__, *members)
    return True


def _shortened(error: BaseException, own: TracebackType | None) -> str:
    """Return the error and the nearest of its causes, the error last; nothing that belongs to a group."""
    texts: list[str] = []
    one: BaseException | None = error
    while one is not None and len(texts) < 10:
        frames = "".join(traceback.format_tb(own if one is error else one.__traceback__))
        texts.append(f"Traceback (most recent call last):\n{frames}{_class_name(one)}: {text_of(one, MAX_MESSAGE)}\n")
        one = one.__cause__ or one.__context__
    texts.append(f"[more than {_MAX_EXCEPTIONS} exceptions: the rest is not shown]\n")
    return "\nWhich led to:\n\n".join(reversed(texts))


def _without_own_frames(top: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the task on; unchanged when the error is the worker's own."""
    below = top
    while below is not None:
        name = str(below.tb_frame.f_globals.get("__name__", ""))
        if not any(name == own or name.startswith(f"{own}.") for own in ("leasehold.worker", "leasehold.telemetry")):
            return below
        below = below.tb_next
    return top
