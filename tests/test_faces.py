"""What threads call and what coroutines call is the same: the same methods, parameters and outcomes."""

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from leasehold import App, Intent, InvalidJob, LeaseholdError
from leasehold._aio import run_blocking
from leasehold.client import AsyncClient, Client
from leasehold.context import JobContext
from leasehold.db.call import Call
from leasehold.db.database import Database
from leasehold.job import Job
from leasehold.schedule import Schedule
from leasehold.schedules import Schedules
from leasehold.task import Task
from tests.db.proxy import Proxy

FACES = [App, Database, Job, JobContext, Schedules, Task]
ONLY_ASYNC = {"deadline"}
"""A thread's call has no deadline of its own: only servers have one, and they run on an event loop."""


def twins(cls: type) -> Iterator[tuple[Any, Any]]:
    for name, method in vars(cls).items():
        if inspect.iscoroutinefunction(method) and name.startswith("a") and name[1:] in vars(cls):
            blocking = vars(cls)[name[1:]]
            yield blocking.fget if isinstance(blocking, property) else blocking, method


def without_twin(cls: type) -> set[str]:
    paired = {method.__name__ for _, method in twins(cls)}
    return {
        name for name, method in vars(cls).items() if inspect.iscoroutinefunction(method) and not name.startswith("_")
    } - paired


@pytest.mark.parametrize("cls", FACES)
def test_both_have_the_same_methods_with_the_same_parameters(cls: type) -> None:
    pairs = list(twins(cls))
    assert pairs
    for blocking, coroutine in pairs:
        ours, theirs = inspect.signature(blocking), inspect.signature(coroutine)
        parameters = {name: one for name, one in theirs.parameters.items() if name not in ONLY_ASYNC}
        assert dict(ours.parameters) == parameters, coroutine.__qualname__
        assert ours.return_annotation == theirs.return_annotation, coroutine.__qualname__
    # These take `blocking`: both faces stand on them.
    for name in without_twin(cls) - {"adatabase"}:
        assert "blocking" in inspect.signature(getattr(cls, name)).parameters, name


@pytest.mark.parametrize("cls", FACES)
def test_what_takes_several_steps_is_written_once(cls: type) -> None:
    """As a coroutine that takes `blocking`: a face itself has one step, and perhaps a check before it."""
    for _, coroutine in twins(cls):
        [function] = ast.parse(textwrap.dedent(inspect.getsource(coroutine))).body
        assert isinstance(function, ast.AsyncFunctionDef)
        assert len(function.body) <= 3, f"{coroutine.__qualname__}, with its docstring"


def test_the_clients_have_the_same_methods_with_the_same_parameters() -> None:
    public = {name for name in (*vars(AsyncClient), *vars(Client)) if not name.startswith("_")}
    assert public
    for name in public:
        ours, theirs = (inspect.signature(getattr(one, name)).parameters for one in (Client, AsyncClient))
        assert ours == theirs, name


def test_a_coroutine_that_needs_an_event_loop_does_not_run_without_one() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        run_blocking(asyncio.sleep(0))


# -- the same outcomes

Face = Callable[..., Any]


def blocking(owner: object, name: str, *args: Any, **kwargs: Any) -> Any:
    found = getattr(owner, name)
    return found(*args, **kwargs) if callable(found) else found


def coroutine(owner: object, name: str, *args: Any, **kwargs: Any) -> Any:
    async def call() -> Any:
        return await getattr(owner, f"a{name}")(*args, **kwargs)

    return asyncio.run(call())


def task_of(app: App) -> Task[Any, Any]:
    return app.tasks.get("K") or app.task(kind="K")(echo)


def echo(n: int = 0) -> int:
    return n


def intents(how_many: int, **fields: Any) -> Iterator[Intent]:
    return (Intent(kind="K", payload=f'{{"n": {n}}}', **fields) for n in range(how_many))


def broken() -> Iterator[Intent]:
    yield from intents(600)
    raise InvalidJob("the next one is wrong")


def enqueue(face: Face, app: App) -> Any:
    job = face(task_of(app), "enqueue", 7)
    return job.created, job.kind, face(job, "status"), face(job, "refresh").state, face(job, "explain")


def enqueue_twice(face: Face, app: App) -> Any:
    keyed = task_of(app).using(idempotency_key="once")
    first, second = face(keyed, "enqueue", 1), face(keyed, "enqueue", 1)
    return first == second, first.created, second.created


def enqueue_in_conflict(face: Face, app: App) -> Any:
    keyed = task_of(app).using(idempotency_key="strict", strict=True)
    face(keyed, "enqueue", 1)
    face(keyed, "enqueue", 2)


def enqueue_nonsense(face: Face, app: App) -> Any:
    face(task_of(app), "enqueue", object())


def many(how_many: int) -> Callable[[Face, App], Any]:
    return lambda face, app: [(job.kind, job.created) for job in face(app, "enqueue_many", intents(how_many))]


def many_twice(face: Face, app: App) -> Any:
    batch = [Intent(kind="K", payload="{}", idempotency_key=f"many {n}") for n in range(3)]
    face(app, "enqueue_many", batch[:2])
    return [job.created for job in face(app, "enqueue_many", batch)]


def many_broken(face: Face, app: App) -> Any:
    face(app, "enqueue_many", broken())


def many_nonsense(face: Face, app: App) -> Any:
    face(app, "enqueue_many", ["a text"])


def refused_by_the_table(face: Face, app: App) -> Any:
    with psycopg.connect(app.database.dsn, autocommit=True) as look:
        look.execute("alter table leasehold.jobs add constraint odd check (payload ->> 'n' <> '500')")
    face(app, "enqueue_many", intents(600))


def unknown_connection(face: Face, app: App) -> Any:
    face(task_of(app).using(connection="a text"), "enqueue")


def unknown_job(face: Face, app: App) -> Any:
    face(app.job("00000000-0000-7000-8000-000000000000"), "refresh")


def cancelled(face: Face, app: App) -> Any:
    job = face(task_of(app).using(run_after=timedelta(hours=1)), "enqueue", 1)
    return face(job, "retry"), face(job, "cancel", "no need"), face(job, "cancel"), face(job, "result", 5)


def late(face: Face, app: App) -> Any:
    face(face(task_of(app), "enqueue", 1), "result", 0.1)


def schedules(face: Face, app: App) -> Any:
    here = app.schedules
    hourly = Schedule(key="s", kind="K", every=timedelta(hours=1))
    put = [face(here, "put", hourly), face(here, "put", hourly)]
    switched = [face(here, "disable", "s"), face(here, "enable", "s", from_now=True), face(here, "enable", "s")]
    runs = [face(here, "run_now", "s", idempotency_key="now").kind, face(here, "get", "s").key]
    return put, switched, runs, len(face(here, "list")), face(here, "apply"), face(here, "remove", "s")


def unknown_schedule(face: Face, app: App) -> Any:
    face(app.schedules, "get", "none")


def refused_call(face: Face, app: App) -> Any:
    face(app, "call", Call("select 1 / 0", (), list))


def closed(face: Face, app: App) -> Any:
    database = Database(app.database.dsn, schema="leasehold")
    face(database, "new_ids", 1)
    database.close()
    face(database, "run", database.store.status(Job(app, "00000000-0000-7000-8000-000000000000").id))


def away(face: Face, app: App) -> Any:
    proxy = Proxy(app.database.dsn)
    database = Database(proxy.dsn, schema="leasehold", wait=0.3)
    proxy.close()
    face(database, "new_ids", 1)


def answer_lost(face: Face, app: App) -> Any:
    proxy = Proxy(app.database.dsn)
    database = Database(proxy.dsn, schema="leasehold", prepare=False, wait=1)
    try:
        [job_id] = face(database, "new_ids", 1)
        proxy.lose_answers(10**6)
        intent = Intent(kind="K", payload="{}", idempotency_key="lost")
        face(database, "run", database.store.enqueue(intent, id=job_id))
    finally:
        database.close()
        proxy.close()


CASES = [
    enqueue, enqueue_twice, enqueue_in_conflict, enqueue_nonsense, many(0), many(1), many(251), many_twice, many_broken,
    many_nonsense, refused_by_the_table, unknown_connection, unknown_job, cancelled, late, schedules, unknown_schedule,
    refused_call, closed, away, answer_lost,
]  # fmt: skip


def outcome(case: Callable[[Face, App], Any], face: Face, dsn: str) -> object:
    """What the case returns, or what it raises in all that a caller sees; ids and ports differ and are left out."""
    with App(dsn) as app:
        try:
            return case(face, app)
        except (LeaseholdError, psycopg.Error) as error:
            seen = {name: value for name, value in vars(error).items() if name in {"sent", "keys", "reason", "hint"}}
            text = f"{type(error).__name__}: {error} {seen} {len(getattr(error, 'ids', ()))} {error.__cause__!r}"
            return re.sub(r"[0-9a-f-]{36}|port \d+|\d\.\d+ s|0x[0-9a-f]+|[\d:]{8}\.\d+", "…", text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__qualname__.partition(".")[0])
def test_both_have_the_same_outcome(case: Callable[[Face, App], Any], admin: Any, migrated: str) -> None:
    outcomes = []
    for face in (blocking, coroutine):
        with admin.database(template=migrated) as name:
            outcomes.append(re.sub(name, "…", repr(outcome(case, face, admin.server.dsn(name)))))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] != "None", "the case has an outcome"
