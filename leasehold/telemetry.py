"""What a program can see and hook into: events, and callbacks around each attempt.

Hooks run on the worker's event loop, in the order they were given, and may be plain functions or coroutines.
`before` may raise, and what it raises is the attempt's outcome: `raise Snooze(5)` holds a job back. `after` and
`on_error` only observe; what they raise is logged.

What is `around` an attempt runs where its task runs: in the same thread, or in the same process.
"""

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from leasehold._logger import logger_of
from leasehold._texts import text_of
from leasehold.errors import ConfigError

if TYPE_CHECKING:
    from leasehold.context import JobContext
    from leasehold.outcome import Outcome

logger = logger_of(__name__)

Before: TypeAlias = "Callable[[JobContext], Awaitable[None] | None]"
After: TypeAlias = "Callable[[JobContext, Outcome], Awaitable[None] | None]"
OnWorker: TypeAlias = "Callable[[], Awaitable[None] | None]"
Around: TypeAlias = "Callable[[JobContext], Iterator[None]] | Callable[[JobContext], AsyncIterator[None]]"
OnError: TypeAlias = "Callable[[JobContext, Exception], Awaitable[None] | None]"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in this process."""

    name: str
    """`job.started`, `job.finished`, `lease.lost`, `jobs.claimed`, `jobs.reported`, `upkeep.done`, `schedule.fired`,
    `database.away`"""
    at: float
    """Seconds since the epoch, by this host's clock."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What belongs to it: plain values, `job` as AttemptFacts, `outcome` as one of leasehold.outcome."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """Of which attempt of which job an event is: the field `job`."""

    id: UUID
    kind: str
    queue: str
    attempt: int
    retry_count: int
    max_attempts: int

    @classmethod
    def of(cls, context: "JobContext") -> "AttemptFacts":
        """Return what is public of a running job."""
        return cls(context.id, context.kind, context.queue, context.attempt, context.retry_count, context.max_attempts)


class Telemetry:
    """Passes events to subscribers. Costs next to nothing while there are none."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Event], None]] = []
        self.heard = False
        """Whether there are subscribers: check first where an event would be costly to make."""

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call this function with every event; return a function that ends it. It must be quick and not block."""
        self._subscribers.append(callback)
        self.heard = True

        def end() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)
            self.heard = bool(self._subscribers)

        return end

    def emit(self, name: str, **fields: Any) -> None:
        """Pass an event to the subscribers."""
        if not self._subscribers:
            return
        event = Event(name, time.time(), fields)
        for subscriber in list(self._subscribers):
            try:
                subscriber(event)
            except (Exception, SystemExit):
                logger.exception("a telemetry subscriber failed on %s", name)


class Hooks:
    """The callbacks around each attempt."""

    def __init__(self) -> None:
        self.before: list[Before] = []
        self.after: list[After] = []
        self.on_error: list[OnError] = []
        self.on_startup: list[OnWorker] = []
        self.on_shutdown: list[OnWorker] = []
        self.around: list[tuple[bool, Callable[..., Any]]] = []
        """What is entered around each attempt, first to last, where the task runs; and whether it is awaited."""

    def add_around(self, hook: "Around") -> None:
        """Take a generator function with one `yield`, during which the task runs."""
        if inspect.isasyncgenfunction(hook):
            self.around.append((True, asynccontextmanager(hook)))
        elif inspect.isgeneratorfunction(hook):
            self.around.append((False, contextmanager(hook)))
        else:
            name = getattr(hook, "__qualname__", repr(hook))
            raise ConfigError(f"around: {name} does not yield", hint="the task runs at its `yield`: give it one")

    def call(self, context: "JobContext", function: Callable[..., object], **arguments: Any) -> object:
        """Call a plain function within what is around it, in the thread or process that this is."""
        value = None  # if what is around it deals with its error
        with ExitStack() as stack:
            for awaited, manager in self.around:
                if not awaited:
                    stack.enter_context(manager(context))
            value = function(**arguments)
        return value  # noqa: RET504 (the error may have been dealt with)

    async def acall(
        self, context: "JobContext", function: Callable[..., Awaitable[object]], **arguments: Any
    ) -> object:
        """Await a function within what is around it."""
        value = None
        async with AsyncExitStack() as stack:
            for awaited, manager in self.around:
                if awaited:
                    await stack.enter_async_context(manager(context))
                else:
                    stack.enter_context(manager(context))
            value = await function(**arguments)
        return value  # noqa: RET504 (the error may have been dealt with)

    async def run_startup(self) -> None:
        """Call them before the worker takes its first job. What one raises keeps it from starting."""
        for hook in self.on_startup:
            try:
                await _settle(hook())
            except Exception as error:
                name = getattr(hook, "__qualname__", hook)
                logger.exception("the startup hook %s failed", name)
                raise ConfigError(
                    f"the startup hook {name} failed: {type(error).__name__}: {text_of(error, 500)}",
                    hint="the traceback is in the log",
                ) from error

    async def run_shutdown(self) -> None:
        """Call them after the last job of the worker."""
        for hook in reversed(self.on_shutdown):
            await _watch(hook)

    async def run_before(self, context: "JobContext") -> None:
        """Call them before the attempt. What one raises is its outcome."""
        for hook in self.before:
            await _settle(hook(context))

    async def run_after(self, context: "JobContext", outcome: "Outcome") -> None:
        """Call them with the outcome of the attempt."""
        for hook in self.after:
            await _watch(hook, context, outcome)

    async def run_on_error(self, context: "JobContext", error: Exception) -> None:
        """Call them with what the task raised."""
        for hook in self.on_error:
            await _watch(hook, context, error)


async def _watch(hook: Callable[..., Awaitable[None] | None], *args: Any) -> None:
    try:
        await _settle(hook(*args))
    except (Exception, SystemExit, KeyboardInterrupt):
        logger.exception("the hook %s failed", getattr(hook, "__qualname__", hook))


async def _settle(answer: Awaitable[None] | None) -> None:
    if inspect.isawaitable(answer):
        await answer
