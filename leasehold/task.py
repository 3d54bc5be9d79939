"""A task: a function that jobs of one kind run, and the ways to ask for such a job."""

import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

from leasehold._facts import MAX_LEASE, MIN_TASK_LEASE, USUAL_LEASE
from leasehold._texts import text_of
from leasehold.arguments import Arguments, Result
from leasehold.durations import seconds
from leasehold.errors import ConfigError, InvalidJob
from leasehold.intent import SHOWN, UNSET, Intent, Wishes, check_fields, check_run_after, checked_options, show_options
from leasehold.job import Job
from leasehold.retry import USUAL_ATTEMPTS, ExponentialBackoff, RetryFunction, RetryPolicy, as_policy

if TYPE_CHECKING:
    from leasehold.app import App

P = ParamSpec("P")
R = TypeVar("R")

Executor = Literal["loop", "thread", "process"]

MIN_MEMORY = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a task declares about its jobs."""

    kind: str
    """The name its jobs are stored under; the same in every release."""
    executor: Executor
    """Where it runs: on the event loop (`async def`), in a thread (`def`), or in a process of its own (both)."""
    queue: str = "default"
    """Where its jobs wait."""
    priority: int = 0
    """Higher is more urgent."""
    max_attempts: int = USUAL_ATTEMPTS
    """How many failures end a job."""
    lease: float = float(USUAL_LEASE)
    """Seconds that a worker owns a job without a heartbeat."""
    timeout: float | None = None
    """Seconds that one attempt may take; None: no limit."""
    retry: RetryPolicy = field(default_factory=ExponentialBackoff)
    """When to try again after a failure."""
    memory: int | None = None
    """Bytes that an attempt in a process may allocate; None: no limit."""

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as problem:
            raise ConfigError(f"{text_of(self.kind, SHOWN)}: {problem}") from None
        if not MIN_TASK_LEASE <= self.lease <= MAX_LEASE:
            raise ConfigError(f"{self.kind}: lease {self.lease} s is not between {MIN_TASK_LEASE} and {MAX_LEASE} s")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError(f"{self.kind}: timeout {self.timeout} s is not positive")
        if self.memory is not None and self.executor != "process":
            message = f"{self.kind}: the memory of a {self.executor} cannot be capped"
            raise ConfigError(message, hint="executor='process' can")
        if self.memory is not None and (type(self.memory) is not int or self.memory < MIN_MEMORY):
            raise ConfigError(f"{self.kind}: memory {self.memory!r} must be a number of bytes, at least {MIN_MEMORY}")

    def of_jobs(self) -> dict[str, Any]:
        """Return the fields that its jobs have where nothing else is asked for."""
        return {"queue": self.queue, "priority": self.priority, "max_attempts": self.max_attempts}


class TaskSettings(TypedDict, total=False):
    """What `app.task(...)` takes: see `TaskOptions`."""

    kind: str | None
    queue: str
    priority: int
    max_attempts: int
    lease: timedelta | float
    timeout: timedelta | float | None
    retry: RetryPolicy | RetryFunction | None
    executor: Executor | None
    memory: int | None


_OPTIONAL: Final = frozenset({"kind", "timeout", "retry", "executor", "memory"})
"""The settings for which None means: as if it were left out."""


class Task(Generic[P, R]):
    """A registered function. Call it like the function; enqueue it to have a worker call it."""

    def __init__(self, app: "App", function: Callable[P, Any], options: TaskOptions) -> None:
        self._app = app
        self.function = function
        self.options = options
        self.arguments = Arguments(function, kind=options.kind)
        self.result = Result(function, kind=options.kind)
        self._wishes: dict[str, Any] = {}
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
        return self._app.record(self._intent(args, kwargs), connection=self._wishes.get("connection", UNSET))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Record a job that calls the function with these arguments."""
        return await self._app.arecord(self._intent(args, kwargs), connection=self._wishes.get("connection", UNSET))

    def intent(self, *args: P.args, **kwargs: P.kwargs) -> Intent:
        """Return the job as a value, for `app.enqueue_many`. Nothing is recorded."""
        if self._wishes.get("connection") is not None:
            # It would silently be recorded outside the transaction.
            message = f"{self.kind}: an intent cannot carry a connection"
            raise ConfigError(message, hint="give connection= to enqueue_many(...)")
        return self._intent(args, kwargs)

    def _intent(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Intent:
        if self._intent_without_payload is None:
            wished = {name: wish for name, wish in self._wishes.items() if name != "connection" and wish is not None}
            self._intent_without_payload = Intent(kind=self.kind, payload="{}", **(self.options.of_jobs() | wished))
        return self._intent_without_payload.carrying(self.arguments.encode(args, kwargs))

    def using(self, **wishes: Unpack[Wishes]) -> Self:
        """Return the same task with other wishes for the jobs enqueued through it. May be chained.

        `leasehold.intent.Intent` says what each means. `connection` is one of your own (psycopg, asyncpg, SQLAlchemy,
        Django): the job is recorded in your transaction, and a rollback leaves no job; None: on the app's own, also if
        the app has a current connection.
        """
        given = checked_options("using()", wishes, Wishes)
        if "run_after" in given:
            try:
                check_run_after(given["run_after"])
            except ValueError as problem:
                raise InvalidJob(f"{self.kind}: {problem}") from None
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._intent_without_payload = None
        copy._wishes = {**self._wishes, **given}
        return copy


show_options(Task.using, Wishes)


class AsyncTask(Task[P, R]):
    """A task made of an `async def`."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...  # noqa: D102


class SyncTask(Task[P, R]):
    """A task made of a `def`."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...  # noqa: D102


class TaskDecorator:
    """What `app.task(...)` returns: turns an `async def` or a `def` into a task, keeping its types."""

    def __init__(self, app: "App", settings: TaskSettings) -> None:
        self._app = app
        self._settings = checked_options("task()", settings, TaskSettings)

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[..., Any]:
        """Register the function."""
        _check_function(function)
        given = self._settings.items()
        settings: dict[str, Any] = {name: value for name, value in given if value is not None or name not in _OPTIONAL}
        kind = settings.setdefault("kind", default_kind(function))
        for name in settings.keys() & {"lease", "timeout"}:
            try:
                settings[name] = seconds(settings[name], what=f"{text_of(kind, SHOWN)}: {name}")
            except ValueError as problem:
                raise ConfigError(str(problem)) from None
        if "retry" in settings:
            settings["retry"] = as_policy(settings["retry"])
        options = TaskOptions(**settings | {"executor": _executor_for(function, settings.get("executor"))})
        make = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        return self._app.register(make(self._app, function, options))


def default_kind(function: Callable[..., Any]) -> str:
    """Return module and name. In a script, the module's name is the one that a worker imports it by."""
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
        raise ConfigError(f"{name} is a generator function; a task returns a value", hint="return a list")


def _is_method(function: Any) -> bool:
    """Return whether it is bound to an object, or a function in the body of a class that takes one."""
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
