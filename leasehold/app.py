"""The application: its tasks, and its way to the database."""

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, ParamSpec, Self, TypeVar, overload
from uuid import UUID

from leasehold.advice import UNSET, check_place
from leasehold.config import Settings
from leasehold.db.call import Call, Series
from leasehold.db.foreign import arun_on, is_idle_django, run_on
from leasehold.db.pool import Database
from leasehold.db.store import Store
from leasehold.discovery import discover
from leasehold.errors import ConfigError, JobUnknown, UnknownKind
from leasehold.intent import Chunks, Intent
from leasehold.job import Job
from leasehold.locate import located
from leasehold.retry import USUAL_ATTEMPTS, ExponentialBackoff, RetryFunction, RetryPolicy, as_policy
from leasehold.schedule import Missed, Overlap
from leasehold.schedules import ScheduleDecorator, Schedules
from leasehold.task import AsyncTask, Executor, SyncTask, Task, TaskDecorator
from leasehold.telemetry import After, Around, Before, Hooks, OnError, OnWorker, Telemetry

P = ParamSpec("P")
R = TypeVar("R")
AroundT = TypeVar("AroundT", bound=Around)


class App:
    """Where tasks are registered and jobs are enqueued.

    Without a `dsn` it uses `LEASEHOLD_DSN`, and without that the embedded PostgreSQL, in development only.
    """

    def __init__(
        self, dsn: str | None = None, *, schema: str | None = None, connection: Callable[[], object] | None = None
    ) -> None:
        """`connection` gives the connection of the transaction that is under way, or None if there is none.

        It is asked whenever a job is enqueued without `connection=`: `App(connection=lambda: django.db.connection)`.
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
        self._store = Store(self.settings.schema)
        self.schedules = Schedules(self)
        """What runs again and again: declared by `@app.schedule`, and made or changed at run time."""
        _apps.add(self)

    def __repr__(self) -> str:
        return f"<App {len(self._tasks)} tasks, schema {self.settings.schema}>"

    def after_fork(self) -> None:
        """In a forked child: a thread of the parent may have held the guard, and nobody here will give it back."""
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
    def task(
        self,
        *,
        kind: str | None = ...,
        queue: str = ...,
        priority: int = ...,
        max_attempts: int = ...,
        lease: timedelta | float = ...,
        timeout: timedelta | float | None = ...,
        retry: RetryPolicy | RetryFunction | None = ...,
        executor: Executor | None = ...,
        memory: int | None = ...,
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        kind: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = USUAL_ATTEMPTS,
        lease: timedelta | float = 15,
        timeout: timedelta | float | None = None,
        retry: RetryPolicy | RetryFunction | None = None,
        executor: Executor | None = None,
        memory: int | None = None,
    ) -> Any:
        """Register a function as a task: `@app.task(kind="SEND_EMAIL", queue="mail")`, or bare, `@app.task`.

        `kind` is what its jobs are stored under; give it one that lasts. Left out: the function's module and name.
        """
        decorator = TaskDecorator(
            self, kind=kind, queue=queue, priority=priority, max_attempts=max_attempts, lease=lease, timeout=timeout,
            retry=as_policy(retry) if retry is not None else ExponentialBackoff(), executor=executor,
            memory=memory,
        )  # fmt: skip
        return decorator if function is None else decorator(function)

    def schedule(  # noqa: PLR0913 (each is an option)
        self,
        cron: str | None = None,
        *,
        every: timedelta | None = None,
        key: str | None = None,
        kind: str | None = None,
        arguments: Mapping[str, object] = MappingProxyType({}),
        time_zone: str = "UTC",
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        exclusive_key: str | None = None,
        tags: tuple[str, ...] = (),
        due_argument: str | None = None,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        jitter: timedelta = timedelta(0),
        missed: Missed = "skip",
        grace: timedelta = timedelta(minutes=5),
        max_missed: int = 1000,
        overlap: Overlap = "allow",
        enabled: bool | None = None,
    ) -> ScheduleDecorator:
        """Run a task by a rule: `@app.schedule("*/5 * * * *", key="refresh")`, over `@app.task` or a plain function.

        `leasehold.schedule.Schedule` says what each option means. Workers bring it into the database when they start.
        """
        options = {
            "cron": cron, "every": every, "key": key, "time_zone": time_zone, "queue": queue, "priority": priority,
            "max_attempts": max_attempts, "exclusive_key": exclusive_key, "tags": tags, "due_argument": due_argument,
            "starts_at": starts_at, "ends_at": ends_at, "jitter": jitter, "missed": missed, "grace": grace,
            "max_missed": max_missed, "overlap": overlap, "enabled": enabled,
        }  # fmt: skip
        return ScheduleDecorator(self, kind, arguments, options)

    def register(self, task: Task[P, R]) -> Task[P, R]:
        """Take a task in. One kind, one task."""
        known = self._tasks.get(task.kind)
        if known is not None and known.function is not task.function:
            raise ConfigError(
                f"kind {task.kind!r} is registered twice: {_place(known.function)} and {_place(task.function)}",
                hint="give one of them another kind",
            )
        self._tasks[task.kind] = task
        return task

    def discover(self, package: str) -> None:
        """Import every module called `tasks` in the package and below it, so that their tasks are registered.

        `leasehold worker package` does the same.
        """
        discover(package)

    def find(self, kind: str) -> Task[..., Any]:
        """The task of a kind."""
        try:
            return self._tasks[kind]
        except KeyError:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise UnknownKind(f"kind {kind!r} unknown", hint=f"known: {known}") from None

    def declaration(self) -> str:
        """What the tasks declare about their jobs, for the SQL function `declare_tasks`."""
        return json.dumps(
            [
                {
                    "kind": options.kind, "lease_seconds": options.lease, "queue": options.queue,
                    "priority": options.priority, "max_attempts": options.max_attempts,
                }
                for options in (task.options for task in self._tasks.values())
            ]
        )  # fmt: skip

    # -- hooks

    def before(self, hook: Before) -> Before:
        """Call this before each attempt. What it raises is the attempt's outcome."""
        self.hooks.before.append(hook)
        return hook

    def after(self, hook: After) -> After:
        """Call this after each attempt, with its outcome."""
        self.hooks.after.append(hook)
        return hook

    def on_error(self, hook: OnError) -> OnError:
        """Call this with what a task raised, before the outcome is judged."""
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
        """Record one intent; on your own connection, if you or the app give one."""
        connection = self._connection(connection, intent.kind, blocking=True)
        if connection is not None:
            return self._handle(intent, run_on(connection, self._store.enqueue(intent)))
        database = self.database
        [job_id] = database.new_ids(1)
        with database.hints.ride(intent.hints, certain=intent.hints_are_certain) as notify:
            recorded = database.run(database.store.enqueue(intent, id=job_id, notify=notify))
        return self._handle(intent, recorded, job_id)

    async def arecord(self, intent: Intent, *, connection: object = UNSET) -> Job[Any]:
        """Record one intent; on your own connection, if you or the app give one."""
        connection = self._connection(connection, intent.kind)
        if connection is not None:
            return self._handle(intent, await arun_on(connection, self._store.enqueue(intent)))
        database = await self.adatabase()
        [job_id] = await database.anew_ids(1)
        with database.hints.ride(intent.hints, certain=intent.hints_are_certain) as notify:
            recorded = await database.arun(database.store.enqueue(intent, id=job_id, notify=notify))
        return self._handle(intent, recorded, job_id)

    def enqueue_many(self, intents: Iterable[Intent], *, connection: object = UNSET) -> list[Job[Any]]:
        """Record many jobs at once, all or none: `app.enqueue_many(send.intent(to=a) for a in addresses)`.

        The database takes in the first while a generator still makes the rest: of one that may wait, make a list.
        """
        connection = self._connection(connection, "of many", blocking=True)
        chunks = Chunks(intents)
        if connection is not None:
            batch = list(chain.from_iterable(chunks))
            recorded = run_on(connection, self._store.enqueue_many(batch))
            return self._handles(batch, recorded)
        database = self.database
        database.new_ids(0)
        sent: list[str] = []
        with (ride := database.hints.ride(alone=False)) as notify:
            ids = database.run_series(_recorded(database, chunks, sent, notify=notify))
            ride.names = () if notify else _hints_of(chunks.given)
        return self._handles(chunks.given, chain.from_iterable(ids), sent)

    async def aenqueue_many(self, intents: Iterable[Intent], *, connection: object = UNSET) -> list[Job[Any]]:
        """Record many jobs at once, all or none; like `enqueue_many`."""
        connection = self._connection(connection, "of many")
        chunks = Chunks(intents)
        if connection is not None:
            batch = list(chain.from_iterable(chunks))
            recorded = await arun_on(connection, self._store.enqueue_many(batch))
            return self._handles(batch, recorded)
        database = await self.adatabase()
        await database.anew_ids(0)
        sent: list[str] = []
        with (ride := database.hints.ride(alone=False)) as notify:
            ids = await database.arun_series(_recorded(database, chunks, sent, notify=notify))
            ride.names = () if notify else _hints_of(chunks.given)
        return self._handles(chunks.given, chain.from_iterable(ids), sent)

    def job(self, job_id: UUID | str) -> Job[Any]:
        """A handle to a job that was recorded elsewhere."""
        try:
            number = job_id if isinstance(job_id, UUID) else UUID(job_id)
        except ValueError:
            raise JobUnknown(f"{job_id!r} is no job id", hint="an id is a UUID") from None
        return Job(self, number)

    # -- the database

    @property
    def store(self) -> Store:
        """The SQL API of the app's schema, as calls."""
        return self._store

    @property
    def database(self) -> Database:
        """The connections, made when first needed."""
        with self._guard:
            if self._database is None:
                dsn = self._resources.enter_context(located(self.settings))
                self._database = Database(dsn, schema=self.settings.schema, prepare=self.settings.prepare)
            return self._database

    async def adatabase(self) -> Database:
        """The connections; starting an embedded server does not block the event loop."""
        return await asyncio.to_thread(lambda: self.database) if self._database is None else self._database

    def close(self) -> None:
        """Give up connections and the hold on an embedded server. The app can be used again afterwards."""
        with self._guard:
            database, self._database = self._database, None
            if database is not None:
                database.close()
            self._resources.close()

    async def aclose(self) -> None:
        """The same from a coroutine: stopping an embedded server does not block the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _connection(self, given: object, kind: str, *, blocking: bool = False) -> object:
        """Where to record: on the connection that was given, else on the app's current one, else (None) on our own."""
        if given is UNSET and self._current_connection is not None:
            given = self._current_connection()
            if not blocking and given is not None and is_idle_django(given):
                given = None
        elif given is UNSET:
            check_place(kind, blocking=blocking)
        return None if given is UNSET else given

    def _handle(self, intent: Intent, job_id: UUID, sent: str | None = None) -> Job[Any]:
        created = True if intent.idempotency_key is None else None if sent is None else str(job_id) == sent
        return Job(self, job_id, intent.kind, created=created)

    def _handles(self, intents: list[Intent], ids: Iterable[str], sent: Sequence[str] = ()) -> list[Job[Any]]:
        """`sent`: the ids that were offered to the database; none if it made them itself."""
        if any(intent.idempotency_key is not None for intent in intents):
            offered: Iterable[str | None] = sent or repeat(None, len(intents))
            rows = zip(intents, map(UUID, ids), offered, strict=True)
            return [self._handle(intent, job_id, offer) for intent, job_id, offer in rows]
        return [Job(self, job_id, intent.kind, created=True) for intent, job_id in zip(intents, ids, strict=True)]


def _recorded(database: Database, chunks: Chunks, sent: list[str], *, notify: bool) -> Series[list[str]]:
    """The calls that record all chunks, as one transaction. `sent` gets the ids that they offer."""

    def calls() -> Iterator[Call[list[str]]]:
        for chunk in chunks:
            ids = database.ids.make(len(chunk))
            sent.extend(ids)
            yield database.store.enqueue_many(chunk, ids, notify=notify)

    return Series(calls(), ended=lambda: chunks.ended)


def _hints_of(batch: list[Intent]) -> set[str]:
    """What to say to sleeping workers. Intents with the same head say the same."""
    return {hint for intent in {intent.head: intent for intent in batch}.values() for hint in intent.hints}


def _place(function: Callable[..., object]) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}, line {code.co_firstlineno})" if code else name


_apps: "weakref.WeakSet[App]" = weakref.WeakSet()


def _unlock_in_child() -> None:
    for app in list(_apps):
        app.after_fork()


os.register_at_fork(after_in_child=_unlock_in_child)
