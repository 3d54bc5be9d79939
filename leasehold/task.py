"""A task: a function that jobs of one kind run, and the ways to ask for such a job."""

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from leasehold.arguments import Arguments, Result
from leasehold.durations import seconds
from leasehold.errors import ConfigError, InvalidJob
from leasehold.intent import Intent
from leasehold.job import Job
from leasehold.retry import RetryPolicy

if TYPE_CHECKING:
    from leasehold.app import App

P = ParamSpec("P")
R = TypeVar("R")

Executor = Literal["loop", "thread"]

MIN_LEASE, MAX_LEASE = 0.1, 86_400.0


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
    """Where it runs: on the event loop (`async def`) or in a thread (`def`)."""

    def __post_init__(self) -> None:
        if not self.kind or len(self.kind.encode()) > 200:
            raise ConfigError(f"kind {self.kind!r} must have 1 to 200 bytes")
        if not self.queue or len(self.queue.encode()) > 200:
            raise ConfigError(f"{self.kind}: queue {self.queue!r} must have 1 to 200 bytes")
        if not MIN_LEASE <= self.lease <= MAX_LEASE:
            raise ConfigError(f"{self.kind}: lease {self.lease} s is not between {MIN_LEASE} and {MAX_LEASE:.0f} s")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError(f"{self.kind}: timeout {self.timeout} s is not positive")
        if not 1 <= self.max_attempts <= 32767:
            raise ConfigError(f"{self.kind}: max_attempts {self.max_attempts} is not between 1 and 32767")
        if not -32767 <= self.priority <= 32767:
            raise ConfigError(f"{self.kind}: priority {self.priority} is not between -32767 and 32767")


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
    connection: object = None


_UNSET: Any = object()


class Task(Generic[P, R]):
    """A registered function. Call it like the function; enqueue it to have a worker call it."""

    def __init__(self, app: "App", function: Callable[P, Any], options: TaskOptions) -> None:
        self._app = app
        self.function = function
        self.options = options
        self.arguments = Arguments(function, kind=options.kind)
        self.result = Result(function, kind=options.kind)
        self._order = _Order()
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", options.kind)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.kind}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now, without any queue."""
        return self.function(*args, **kwargs)

    @property
    def kind(self) -> str:
        """The name its jobs are stored under."""
        return self.options.kind

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Record a job that calls the function with these arguments."""
        intent = self.intent(*args, **kwargs)
        return Job(self._app, self._app.record(intent, connection=self._order.connection), self.kind, self.result)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Record a job that calls the function with these arguments."""
        intent = self.intent(*args, **kwargs)
        job_id = await self._app.arecord(intent, connection=self._order.connection)
        return Job(self._app, job_id, self.kind, self.result)

    def intent(self, *args: P.args, **kwargs: P.kwargs) -> Intent:
        """The job as a value, for `app.enqueue_many`. Nothing is recorded."""
        order, options = self._order, self.options
        return Intent(
            kind=options.kind,
            payload=self.arguments.encode(args, kwargs),
            queue=options.queue if order.queue is None else order.queue,
            priority=options.priority if order.priority is None else order.priority,
            run_after=order.run_after,
            idempotency_key=order.idempotency_key,
            max_attempts=options.max_attempts if order.max_attempts is None else order.max_attempts,
            exclusive_key=order.exclusive_key,
            tags=order.tags,
        )

    def using(
        self,
        *,
        queue: str = _UNSET,
        priority: int = _UNSET,
        run_after: datetime | timedelta = _UNSET,
        idempotency_key: str = _UNSET,
        max_attempts: int = _UNSET,
        exclusive_key: str = _UNSET,
        tags: tuple[str, ...] | list[str] = _UNSET,
        connection: object = _UNSET,
    ) -> "Task[P, R]":
        """The same task with other wishes for the jobs enqueued through it. May be chained.

        `connection` is one of your own (psycopg, asyncpg, SQLAlchemy, Django): the job is recorded in your
        transaction, and a rollback leaves no job.
        """
        if isinstance(run_after, datetime) and run_after.tzinfo is None:
            raise InvalidJob(f"run_after {run_after} has no time zone", hint="use datetime.now(UTC) + …")
        wishes: dict[str, Any] = {
            "queue": queue, "priority": priority, "run_after": run_after, "idempotency_key": idempotency_key,
            "max_attempts": max_attempts, "exclusive_key": exclusive_key,
            "tags": tags if tags is _UNSET else tuple(tags), "connection": connection,
        }  # fmt: skip
        copy: Task[P, R] = object.__new__(Task)
        copy.__dict__.update(self.__dict__)
        copy._order = replace(self._order, **{name: wish for name, wish in wishes.items() if wish is not _UNSET})
        return copy


class TaskDecorator:
    """What `app.task(...)` gives: turns an `async def` or a `def` into a task, keeping its types."""

    def __init__(self, app: "App", **declared: Any) -> None:
        self._app = app
        self._declared = declared

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[..., Any]:
        """Register the function."""
        is_async = inspect.iscoroutinefunction(function)
        declared = dict(self._declared)
        executor: Executor = declared.pop("executor") or ("loop" if is_async else "thread")
        if (executor == "loop") != is_async:
            colour = "async def" if is_async else "def"
            raise ConfigError(f"executor {executor!r} cannot run the {colour} {function.__qualname__}")
        kind = declared.pop("kind") or f"{function.__module__}.{function.__qualname__}"
        timeout = declared.pop("timeout")
        options = TaskOptions(
            kind=kind,
            executor=executor,
            lease=seconds(declared.pop("lease"), what=f"{kind}: lease"),
            timeout=None if timeout is None else seconds(timeout, what=f"{kind}: timeout"),
            **declared,
        )
        return self._app.register(Task(self._app, function, options))
