"""An app's schedules: declared in code, and made, read and changed while it runs."""

import builtins
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from leasehold._aio import run_blocking
from leasehold.db.store import StoredSchedule
from leasehold.errors import ConfigError, InvalidArguments, JobUnknown
from leasehold.job import Job
from leasehold.schedule import Schedule
from leasehold.task import AsyncTask, SyncTask, Task

if TYPE_CHECKING:
    from leasehold.app import App

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Task[..., Any])


class Schedules:
    """`app.schedules`: each method from a thread, and with an `a` in front from a coroutine."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._declared: dict[str, Schedule] = {}

    def __repr__(self) -> str:
        return f"<Schedules {', '.join(self._declared) or 'none'} declared>"

    @property
    def declared(self) -> tuple[Schedule, ...]:
        """What the code declares; each worker writes it to the database when it starts."""
        return tuple(self._declared.values())

    def declare(self, schedule: Schedule) -> None:
        """Register a schedule. One key, one schedule."""
        known = self._declared.get(schedule.key)
        if known is not None and known != schedule:
            raise ConfigError(f"schedule {schedule.key!r} is declared twice", hint="give one of them another key")
        self._declared[schedule.key] = schedule

    # -- make and change

    def put(self, schedule: Schedule) -> bool:
        """Make a schedule, or change it to be like this; False: it was."""
        return self._app.call(self._app.store.schedule_put(schedule))

    async def aput(self, schedule: Schedule) -> bool:
        """Make or change a schedule; like `put`."""
        return await self._app.acall(self._app.store.schedule_put(schedule))

    def apply(self) -> builtins.list[str]:
        """Write what the code declares to the database, as a starting worker does; return the keys that changed."""
        return self._app.call(self._app.store.schedule_sync(self.declared))

    async def aapply(self) -> builtins.list[str]:
        """Write what the code declares to the database; like `apply`."""
        return await self._app.acall(self._app.store.schedule_sync(self.declared))

    def enable(self, key: str, *, from_now: bool = False) -> bool:
        """Switch it on; False: it was. Runs that fell due meanwhile count as missed, unless `from_now`."""
        return self._app.call(self._app.store.schedule_enable(key, from_now=from_now))

    async def aenable(self, key: str, *, from_now: bool = False) -> bool:
        """Switch it on; like `enable`."""
        return await self._app.acall(self._app.store.schedule_enable(key, from_now=from_now))

    def disable(self, key: str) -> bool:
        """Switch it off; False: it was."""
        return self._app.call(self._app.store.schedule_disable(key))

    async def adisable(self, key: str) -> bool:
        """Switch it off; like `disable`."""
        return await self._app.acall(self._app.store.schedule_disable(key))

    def remove(self, key: str) -> bool:
        """Delete it; False: there is none. Its jobs stay; code that declares it makes it anew."""
        return self._app.call(self._app.store.schedule_remove(key))

    async def aremove(self, key: str) -> bool:
        """Delete it; like `remove`."""
        return await self._app.acall(self._app.store.schedule_remove(key))

    def run_now(self, key: str, *, idempotency_key: str | None = None) -> Job[Any]:
        """Enqueue one job of it now; its next run does not move. With a key that was used before: return that job."""
        return run_blocking(self._run_now(key, idempotency_key, blocking=True))

    async def arun_now(self, key: str, *, idempotency_key: str | None = None) -> Job[Any]:
        """Enqueue one job of it now; like `run_now`."""
        return await self._run_now(key, idempotency_key, blocking=False)

    async def _run_now(self, key: str, idempotency_key: str | None, *, blocking: bool) -> Job[Any]:
        database = await self._app.opened(blocking=blocking)
        [job_id] = await database.make_ids(1, blocking=blocking)
        call = database.store.schedule_run_now(key, job_id, idempotency_key)
        recorded = await database.execute(call, blocking=blocking)
        return Job(self._app, recorded)

    # -- read

    def get(self, key: str) -> StoredSchedule:
        """Return one schedule as it stands; JobUnknown: there is none."""
        return _only(key, self._app.call(self._app.store.schedule_list(key)))

    async def aget(self, key: str) -> StoredSchedule:
        """Return one schedule as it stands; like `get`."""
        return _only(key, await self._app.acall(self._app.store.schedule_list(key)))

    def list(self) -> builtins.list[StoredSchedule]:
        """Return all schedules as they stand, by key."""
        return self._app.call(self._app.store.schedule_list())

    async def alist(self) -> builtins.list[StoredSchedule]:
        """Return all schedules as they stand, by key; like `list`."""
        return await self._app.acall(self._app.store.schedule_list())


class ScheduleDecorator:
    """What `app.schedule(...)` returns: declares that a task runs by a rule, and makes a task of a plain function."""

    def __init__(self, app: "App", kind: str | None, arguments: Mapping[str, object], options: dict[str, Any]) -> None:
        self._app = app
        self._kind = kind
        self._arguments = arguments
        self._options = options

    @overload
    def __call__(self, function: T) -> T: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncTask[P, R]: ...
    def __call__(self, function: Any) -> Task[..., Any]:
        """Declare the schedule."""
        task: Task[..., Any] = function if isinstance(function, Task) else self._app.task(kind=self._kind)(function)
        if self._kind not in {None, task.kind}:
            raise ConfigError(f"the task is of kind {task.kind!r}, not {self._kind!r}", hint="leave kind= out")
        options = {name: value for name, value in self._options.items() if value is not None}
        schedule = Schedule(**{"key": task.kind, "kind": task.kind, **task.options.of_jobs(), **options})
        self._app.schedules.declare(replace(schedule, payload=self._payload(task, schedule)))
        return task

    def _payload(self, task: Task[..., Any], schedule: Schedule) -> str:
        """Return the arguments as JSON; the one that takes the due time is filled in at each run."""
        given = dict(self._arguments)
        if schedule.due_argument is not None:
            given[schedule.due_argument] = datetime.now(UTC)
        try:
            text = task.arguments.encode((), given)
        except InvalidArguments as problem:
            raise ConfigError(f"schedule {schedule.key!r}: {problem}") from None
        if schedule.due_argument is None:
            return text
        fields = json.loads(text)
        del fields[schedule.due_argument]
        return json.dumps(fields)


def _only(key: str, found: list[StoredSchedule]) -> StoredSchedule:
    if not found:
        raise JobUnknown(f"no schedule has the key {key!r}", hint="app.schedules.list() returns all of them")
    return found[0]
