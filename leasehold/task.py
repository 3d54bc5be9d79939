"""A task: a function that jobs of one kind run, and the ways to ask for such a job."""

import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

from leasehold.advice import UNSET
from leasehold.arguments import Arguments, Result
from leasehold.durations import seconds
from leasehold.errors import ConfigError, InvalidJob
from leasehold.intent import LARGEST, SHOWN, Intent, check_name, check_number, check_run_after
from leasehold.job import Job
from leasehold.retry import RetryPolicy
from leasehold.texts import text_of

if TYPE_CHECKING:
    from leasehold.app import App

P = ParamSpec("P")
R = TypeVar("R")

Executor = Literal["loop", "thread", "process"]

MIN_LEASE, MAX_LEASE = 1.0, 86_400.0
MIN_MEMORY = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a task declares about its jobs."""

    kind: str
    """The name its jobs are stored under; the same in every release."""

    queue: str
    """Where its jobs wait."""

    priority: int
    """Higher is more urgent."""

    max_attempts: int
    """How many failures end a job."""

    lease: float
    """Seconds that a worker owns a job without a heartbeat."""

    timeout: float | None
    """Seconds that one attempt may take; None: no limit."""

    retry: RetryPolicy
    """When to try again after a failure."""

    executor: Executor
    """Where it runs: on the event loop (`async def`), in a thread (`def`), or in a process of its own (both)."""

    memory: int | None = None
    """Bytes that an attempt in a process may allocate; None: no limit."""

    def __post_init__(self) -> None:
        try:
            check_name("kind", self.kind)
            check_name("queue", self.queue)
            check_number("priority", self.priority, -LARGEST, LARGEST)
            check_number("max_attempts", self.max_attempts, 1, LARGEST)
        except ValueError as problem:
            raise ConfigError(f"{text_of(self.kind, SHOWN)}: {problem}") from None
        if not MIN_LEASE <= self.lease <= MAX_LEASE:
            raise ConfigError(f"{self.kind}: lease {self.lease} s is not between {MIN_LEASE} and {MAX_LEASE:.0f} s")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError(f"{self.kind}: timeout {self.timeout} s is not positive")
        if self.memory is not None:
            _check_memory(self.kind, self.memory, self.executor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What one `using(...)` asks for beyond the task's own options."""

    queue: str | None = None
    priority: int | None = None
    run_after: datetime | timedelta | None = None
    idempotency_key: str | None = None
    max_attempts: int | None = None
    exclusive_key: str | None = None
    tags: tuple[str, ...] = ()
    strict: bool = False
    connection: object = UNSET


class Task(Generic[P, R]):
    """A registered function. Call it like the function; enqueue it to have a worker call it."""

    def __init__(self, app: "App", function: Callable[P, Any], options: TaskOptions) -> None:
        self._app = app
        self.function = function
        self.options = options
        self.arguments = Arguments(function, kind=options.kind)
        self.result = Result(function, kind=options.kind)
        self._order = _Order()
        self._intent_without_payload: Intent | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", options.kind)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.kind}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now, without any queue: what it returns, of an `async def` something to await."""
        return self.function(*args, **kwargs)

    @property
    def kind(self) -> str:
        """The name its jobs are stored under."""
        return self.options.kind

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Record a job that calls the function with these arguments."""
        return self._app.record(self._intent(args, kwargs), connection=self._order.connection)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Record a job that calls the function with these arguments."""
        return await self._app.arecord(self._intent(args, kwargs), connection=self._order.connection)

    def intent(self, *args: P.args, **kwargs: P.kwargs) -> Intent:
        """The job as a value, for `app.enqueue_many`. Nothing is recorded."""
        if self._order.connection is not UNSET and self._order.connection is not None:
            # It would silently be recorded outside the transaction.
            raise ConfigError(
                f"{self.kind}: an intent cannot carry a connection", hint="give connection= to enqueue_many(...)"
            )
        return self._intent(args, kwargs)

    def _intent(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Intent:
        if self._intent_without_payload is None:
            self._intent_without_payload = self._make_intent()
        return self._intent_without_payload.carrying(self.arguments.encode(args, kwargs))

    def _make_intent(self) -> Intent:
        order, options = self._order, self.options
        return Intent(
            kind=options.kind,
            payload="{}",
            queue=options.queue if order.queue is None else order.queue,
            priority=options.priority if order.priority is None else order.priority,
            run_after=order.run_after,
            idempotency_key=order.idempotency_key,
            max_attempts=options.max_attempts if order.max_attempts is None else order.max_attempts,
            exclusive_key=order.exclusive_key,
            tags=order.tags,
            strict=order.strict,
        )

    def using(
        self,
        *,
        queue: str = UNSET,
        priority: int = UNSET,
        run_after: datetime | timedelta = UNSET,
        idempotency_key: str = UNSET,
        max_attempts: int = UNSET,
        exclusive_key: str = UNSET,
        tags: tuple[str, ...] | list[str] = UNSET,
        strict: bool = UNSET,
        connection: object = UNSET,
    ) -> Self:
        """The same task with other wishes for the jobs enqueued through it. May be chained.

        `connection` is one of your own (psycopg, asyncpg, SQLAlchemy, Django): the job is recorded in your
        transaction, and a rollback leaves no job; None: on the app's own, also if the app has a current connection.
        `strict`: a used idempotency key raises IdempotencyConflict if its job has another kind or other arguments.
        """
        wishes: dict[str, Any] = {
            "queue": queue, "priority": priority, "run_after": run_after, "idempotency_key": idempotency_key,
            "max_attempts": max_attempts, "exclusive_key": exclusive_key,
            "tags": tuple(tags) if isinstance(tags, list) else tags, "strict": strict, "connection": connection,
        }  # fmt: skip
        if run_after is not UNSET:
            try:
                check_run_after(run_after)
            except ValueError as problem:
                raise InvalidJob(f"{self.kind}: {problem}") from None
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._intent_without_payload = None
        copy._order = replace(self._order, **{name: wish for name, wish in wishes.items() if wish is not UNSET})
        return copy


class AsyncTask(Task[P, R]):
    """A task made of an `async def`."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...  # noqa: D102


class SyncTask(Task[P, R]):
    """A task made of a `def`."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...  # noqa: D102


class TaskDecorator:
    """What `app.task(...)` gives: turns an `async def` or a `def` into a task, keeping its types."""

    def __init__(
        self,
        app: "App",
        *,
        kind: str | None,
        lease: timedelta | float,
        timeout: timedelta | float | None,
        executor: Executor | None,
        **options: Any,
    ) -> None:
        self._app = app
        self._kind = kind
        self._lease = lease
        self._timeout = timeout
        self._executor = executor
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[..., Any]:
        """Register the function."""
        _check_function(function)
        kind = default_kind(function) if self._kind is None else self._kind
        name = text_of(kind, SHOWN)
        options = TaskOptions(
            kind=kind,
            lease=_seconds(self._lease, f"{name}: lease"),
            timeout=None if self._timeout is None else _seconds(self._timeout, f"{name}: timeout"),
            executor=_executor_for(function, self._executor),
            **self._options,
        )
        make = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        return self._app.register(make(self._app, function, options))


def default_kind(function: Callable[..., Any]) -> str:
    """Module and name. In a script, the module's name is the one that a worker imports it by."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}.{function.__qualname__}"


def _check_function(function: object) -> None:
    if not inspect.isroutine(function):
        raise ConfigError(f"a task is a function, not {function!r}")
    name = function.__qualname__
    if name.endswith("<lambda>"):
        raise ConfigError("a task is a function with a name, not a lambda", hint="write it with def")
    if _is_method(function):
        raise ConfigError(
            f"{name} is a method, and a worker has no object to call it on",
            hint="make it a function at module level, or a @staticmethod, and pass what it needs as arguments",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{function.__qualname__} yields, and nobody would ask it to go on", hint="return a list")


def _is_method(function: Any) -> bool:
    """Whether it is bound to an object, or a function in the body of a class that takes one."""
    if inspect.ismethod(function):
        return True
    in_class = "." in function.__qualname__.rpartition("<locals>.")[2]
    first = next(iter(inspect.signature(function).parameters), None) if inspect.isfunction(function) else None
    return in_class and first in {"self", "cls"}


def _executor_for(function: Callable[..., Any], wanted: Executor | None) -> Executor:
    is_async = inspect.iscoroutinefunction(function)
    fitting: Executor = "loop" if is_async else "thread"
    if wanted == "process":
        return wanted
    if wanted not in {None, fitting}:
        colour = "async def" if is_async else "def"
        raise ConfigError(
            f"executor {wanted!r} cannot run the {colour} {function.__qualname__}",
            hint=f"{fitting!r} and 'process' can",
        )
    return fitting


def _check_memory(kind: str, memory: object, executor: Executor) -> None:
    if executor != "process":
        raise ConfigError(f"{kind}: the memory of a {executor} cannot be capped", hint="executor='process' can")
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < MIN_MEMORY:
        raise ConfigError(f"{kind}: memory {memory!r} must be a number of bytes, at least {MIN_MEMORY}")


def _seconds(value: object, what: str) -> float:
    try:
        return seconds(value, what=what)
    except ValueError as problem:
        raise ConfigError(str(problem)) from None
