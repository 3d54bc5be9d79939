"""The application: its tasks, and its connection to the database."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from leasehold._aio import run_blocking
from leasehold._importing import check_place, discover, imported_now
from leasehold._locate import located
from leasehold._os_process import renew_in_forks
from leasehold.config import Settings
from leasehold.db.call import Call, Series
from leasehold.db.connections.foreign import execute_on, is_idle_django
from leasehold.db.database import Database
from leasehold.db.store import Store
from leasehold.errors import ConfigError, JobUnknown, UnknownKind
from leasehold.intent import UNSET, Intent, checked_options, show_options
from leasehold.job import Job
from leasehold.schedule import ScheduleOptions
from leasehold.schedules import ScheduleDecorator, Schedules
from leasehold.task import AsyncTask, SyncTask, Task, TaskDecorator, TaskSettings
from leasehold.telemetry import After, Around, Before, Hooks, OnError, OnWorker, Telemetry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AroundT = TypeVar("AroundT", bound=Around)

_running_loop = asyncio._get_running_loop  # noqa: SLF001 (public, and quick where none runs)


class App:
    """Where tasks are registered and jobs are enqueued.

    Without a `dsn` it uses `LEASEHOLD_DSN`, and without that the embedded PostgreSQL, in development only.
    """

    def __init__(
        self, dsn: str | None = None, *, schema: str | None = None, connection: Callable[[], object] | None = None
    ) -> None:
        """`connection` returns the connection of the current transaction, or None if there is none.

        It is called when a job is enqueued without `connection=`: `App(connection=lambda: django.db.connection)`.
        """
        self.settings = Settings.from_env(dsn=dsn, schema=schema)
        self._current_connection = connection
        self._tasks: dict[str, Task[..., Any]] = {}
        self.hooks = Hooks()
        self.telemetry = Telemetry()
        """Events of this process: `app.telemetry.subscribe(print)`."""
        self._resources = ExitStack()
        self._database: Database | None = None
        self._guard = threading.Lock()
        self.store = Store(self.settings.schema)
        """The SQL API of the app's schema, as calls."""
        self.schedules = Schedules(self)
        """The schedules: declared by `@app.schedule`, and made or changed at run time."""
        renew_in_forks(self)

    def __repr__(self) -> str:
        return f"<App {len(self._tasks)} tasks, schema {self.settings.schema}>"

    def after_fork(self) -> None:
        """Make a new guard in a forked child, where no thread exists that could release the one of the parent."""
        self._guard = threading.Lock()

    # -- tasks

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by kind."""
        return MappingProxyType(self._tasks)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R]) -> SyncTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskSettings]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, **options: Unpack[TaskSettings]) -> Any:
        """Register a function as a task: `@app.task(kind="SEND_EMAIL", queue="mail")`, or bare, `@app.task`.

        `kind` is what its jobs are stored under; choose one that lasts. Left out: the function's module and name.
        `leasehold.task.TaskOptions` documents the others.
        """
        decorator = TaskDecorator(self, options)
        return decorator if function is None else decorator(function)

    def schedule(
        self, cron: str | None = None, *, kind: str | None = None,
        arguments: Mapping[str, object] = MappingProxyType({}), **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator:  # fmt: skip
        """Run a task by a rule: `@app.schedule("*/5 * * * *", key="refresh")`, over `@app.task` or a plain function.

        `leasehold.schedule.Schedule` documents each option. Workers write it to the database when they start.
        """
        given = checked_options("schedule()", options, ScheduleOptions)
        return ScheduleDecorator(self, kind, arguments, {"cron": cron, **given})

    def register(self, task: Task[P, R]) -> Task[P, R]:
        """Register a task. One kind, one task."""
        known = self._tasks.get(task.kind)
        if known is not None and known.function is not task.function:
            raise ConfigError(
                f"kind {task.kind!r} is registered twice: {_place(known.function)} and {_place(task.function)}",
                hint="give one of them another kind",
            )
        self._tasks[task.kind] = task
        return task

    def discover(self, package: str) -> None:
        """Import every module called `tasks` in the package and below it, as `leasehold worker package` does."""
        discover(package)

    def find(self, kind: str) -> Task[..., Any]:
        """Return the task of a kind."""
        try:
            return self._tasks[kind]
        except KeyError:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise UnknownKind(f"kind {kind!r} unknown", hint=f"known: {known}") from None

    def declaration(self, *kinds: str) -> str:
        """Return what the tasks, or those of some kinds, declare about their jobs, for `declare_tasks` in SQL."""
        options = (task.options for kind, task in self._tasks.items() if not kinds or kind in kinds)
        return json.dumps([{"kind": one.kind, "lease_seconds": one.lease, **one.of_jobs()} for one in options])

    # -- hooks

    def before(self, hook: Before) -> Before:
        """Call this before each attempt. An exception of it becomes the attempt's outcome."""
        self.hooks.before.append(hook)
        return hook

    def after(self, hook: After) -> After:
        """Call this after each attempt, with its outcome."""
        self.hooks.after.append(hook)
        return hook

    def on_error(self, hook: OnError) -> OnError:
        """Call this with the exception of a task, before the outcome is decided."""
        self.hooks.on_error.append(hook)
        return hook

    def around(self, hook: AroundT) -> AroundT:
        """Run this generator around each attempt, where its task runs: the task runs at its `yield`.

        A plain generator is around every task, in its own thread or process; an `async` one around `async def` tasks.
        """
        self.hooks.add_around(hook)
        return hook

    def on_startup(self, hook: OnWorker) -> OnWorker:
        """Call this when a worker starts, before its first job. If it raises, the worker does not start."""
        self.hooks.on_startup.append(hook)
        return hook

    def on_shutdown(self, hook: OnWorker) -> OnWorker:
        """Call this when a worker ends, after its last job."""
        self.hooks.on_shutdown.append(hook)
        return hook

    # -- jobs

    def record(self, intent: Intent, *, connection: object = UNSET) -> Job[Any]:
        """Record one intent; on your own connection, if you or the app provide one."""
        return run_blocking(self._record(intent, connection, blocking=True))

    async def arecord(self, intent: Intent, *, connection: object = UNSET) -> Job[Any]:
        """Record one intent from a coroutine; like `record`."""
        return await self._record(intent, connection, blocking=False)

    async def _record(self, intent: Intent, connection: object, *, blocking: bool) -> Job[Any]:
        connection = self._connection(connection, intent.kind, blocking=blocking)
        if connection is not None:
            recorded = await execute_on(connection, self.store.enqueue(intent), blocking=blocking)
            return self._handle(intent, recorded)
        database = self._database or await self.opened(blocking=blocking)
        [job_id] = await database.make_ids(1, blocking=blocking)
        recorded = await database.execute(database.store.enqueue(intent, id=job_id), blocking=blocking)
        return self._handle(intent, recorded, job_id)

    def enqueue_many(self, intents: Iterable[Intent], *, connection: object = UNSET) -> list[Job[Any]]:
        """Record many jobs at once, all or none: `app.enqueue_many(send.intent(to=a) for a in addresses)`.

        Pass a list if your generator may block: the transaction stays open meanwhile.
        """
        return run_blocking(self._record_many(intents, connection, blocking=True))

    async def aenqueue_many(self, intents: Iterable[Intent], *, connection: object = UNSET) -> list[Job[Any]]:
        """Record many jobs at once, all or none, from a coroutine; like `enqueue_many`."""
        return await self._record_many(intents, connection, blocking=False)

    async def _record_many(self, intents: Iterable[Intent], connection: object, *, blocking: bool) -> list[Job[Any]]:
        connection = self._connection(connection, "of many", blocking=blocking)
        series = Series(intents, lambda piece: database.store.enqueue_many(piece, database.ids.make(len(piece))))
        if connection is not None:
            batch = series.whole()
            recorded = await execute_on(connection, self.store.enqueue_many(batch), blocking=blocking)
            return self._handles(batch, recorded)
        database = await self.opened(blocking=blocking)
        await database.make_ids(0, blocking=blocking)  # learns the database's clock, before the first piece
        ids = await database.execute_series(series, blocking=blocking)
        return self._handles(series.intents, chain.from_iterable(ids), series.ids)

    def job(self, job_id: UUID | str) -> Job[Any]:
        """Return a handle to a job that was recorded elsewhere."""
        try:
            number = job_id if isinstance(job_id, UUID) else UUID(job_id)
        except ValueError:
            raise JobUnknown(f"{job_id!r} is no job id", hint="an id is a UUID") from None
        return Job(self, number)

    # -- the database

    @property
    def database(self) -> Database:
        """The database, opened when first needed."""
        with self._guard:
            if self._database is None:
                dsn = self._resources.enter_context(located(self.settings))
                self._database = Database(dsn, schema=self.settings.schema, prepare=self.settings.prepare)
            return self._database

    async def adatabase(self) -> Database:
        """Return the database; starting an embedded server does not block the event loop."""
        return await asyncio.to_thread(lambda: self.database) if self._database is None else self._database

    async def opened(self, *, blocking: bool) -> Database:
        """Return the database, opened by blocking the thread or not."""
        return self.database if blocking else await self.adatabase()

    def call(self, call: Call[T]) -> T:
        """Run one call of the SQL API."""
        return self.database.run(call)

    async def acall(self, call: Call[T]) -> T:
        """Run one call of the SQL API from a coroutine."""
        return await (await self.adatabase()).arun(call)

    def close(self) -> None:
        """Close the connections and release the embedded server. The app can be used again afterwards."""
        with self._guard:
            database, self._database = self._database, None
            if database is not None:
                database.close()
            self._resources.close()

    async def aclose(self) -> None:
        """Close from a coroutine: stopping an embedded server does not block the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _connection(self, given: object, kind: str, *, blocking: bool) -> object:
        """Return where to record: the connection of the caller, else the app's current one, else None: our own."""
        if given is UNSET and self._current_connection is not None:
            given = self._current_connection()
            if not blocking and given is not None and is_idle_django(given):
                given = None
        elif given is UNSET:
            if imported_now() or (blocking and _running_loop() is not None) or "django.db" in sys.modules:
                check_place(kind, blocking=blocking)
            return None
        return given

    def _handle(self, intent: Intent, job_id: UUID, sent: str | None = None) -> Job[Any]:
        created = True if intent.idempotency_key is None else None if sent is None else str(job_id) == sent
        return Job(self, job_id, intent.kind, created=created)

    def _handles(self, intents: list[Intent], ids: Iterable[str], sent: Sequence[str] = ()) -> list[Job[Any]]:
        """Return the handles. `sent`: the ids that were offered to the database; none if it made them itself."""
        if all(intent.idempotency_key is None for intent in intents):
            return [Job(self, job_id, intent.kind, created=True) for intent, job_id in zip(intents, ids, strict=True)]
        rows = zip(intents, map(UUID, ids), sent or repeat(None, len(intents)), strict=True)
        return [self._handle(*row) for row in rows]


show_options(App.task, TaskSettings)
show_options(App.schedule, ScheduleOptions)


def _place(function: Callable[..., object]) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}, line {code.co_firstlineno})" if code else name
