"""An app: enqueueing from threads, event loops and forked processes, one at a time and many at once."""

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from leasehold import App, InvalidArguments, InvalidJob, Job, SchemaMismatch, Task
from leasehold.db.call import Call
from leasehold.errors import JobUnknown, NotPermitted
from leasehold.retry import USUAL_ATTEMPTS

Look = psycopg.Connection[dict[str, Any]]
PID: Call[int] = Call("select pg_backend_pid()", (), lambda rows: rows[0][0], repeatable=True)


def nothing() -> None: ...


@pytest.fixture(scope="module")
def common(admin, migrated) -> Iterator[str]:
    """One database for all: every test has a queue of its own in it."""
    with admin.database(template=migrated) as name:
        yield admin.server.dsn(name)


@pytest.fixture
def look(common: str) -> Iterator[Look]:
    with psycopg.connect(common, autocommit=True, row_factory=dict_row, options="-c search_path=leasehold") as found:
        yield found


@pytest.fixture
def queue() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def app(common: str) -> Iterator[App]:
    with App(common) as app:
        yield app


@pytest.fixture
def task(app: App, queue: str) -> Task[Any, Any]:
    @app.task(kind="ADD", queue=queue)
    async def add(n: int, to: int = 0) -> int:
        return n + to

    return add


def jobs(look: Look, queue: str) -> list[dict[str, Any]]:
    return look.execute("select * from jobs where queue = %s order by id", [queue]).fetchall()


# -- one


def test_enqueue_records_one_job(task: Task[Any, Any], look: Look, queue: str) -> None:
    job = task.enqueue(1, to=2)
    [row] = jobs(look, queue)
    assert isinstance(job, Job)
    assert (job.id, job.kind) == (row["id"], "ADD")
    assert (row["payload"], row["state"], row["max_attempts"]) == ({"n": 1, "to": 2}, "queued", USUAL_ATTEMPTS)
    assert job.id.version == 7


async def test_aenqueue_records_one_job(task: Task[Any, Any], look: Look, queue: str) -> None:
    job = await task.aenqueue(1)
    [row] = jobs(look, queue)
    assert (job.id, row["payload"]) == (row["id"], {"n": 1})


@pytest.mark.parametrize("many", [False, True])
def test_every_option_arrives(app: App, task: Task[Any, Any], look: Look, queue: str, many: bool) -> None:
    exact = datetime(2077, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
    key = f"{queue} żółć 𝄞"
    full = task.using(
        priority=9, run_after=exact, idempotency_key=key, max_attempts=2, exclusive_key="𝄞", tags=["a", 'b"', "żółć"]
    )
    later = task.using(run_after=timedelta(days=300, microseconds=7))
    if many:
        app.enqueue_many([full.intent(n=10**40), later.intent(n=2)])
    else:
        full.enqueue(n=10**40)
        later.enqueue(n=2)
    first, second = jobs(look, queue)
    assert (first["priority"], first["max_attempts"], first["run_at"]) == (9, 2, exact)
    assert (first["idempotency_key"], first["exclusive_key"], first["tags"]) == (key, "𝄞", ["a", 'b"', "żółć"])
    assert first["payload"] == {"n": 10**40}
    assert second["run_at"] - second["created_at"] == timedelta(days=300, microseconds=7)


def test_a_delay_is_so_many_seconds_in_any_time_zone(common: str, queue: str, look: Look) -> None:
    """A day of 25 hours is none: PostgreSQL's days follow the session's time zone."""
    with App(common + "&options=-c%20TimeZone%3DEurope/Berlin") as app:
        task = app.task(kind="K", queue=queue)(nothing)
        task.using(run_after=timedelta(days=182)).enqueue()
    [row] = jobs(look, queue)
    assert row["run_at"] - row["created_at"] == timedelta(days=182)


def test_a_used_key_returns_the_job_that_has_it(task: Task[Any, Any], look: Look, queue: str) -> None:
    once = task.using(idempotency_key=queue)
    first = once.enqueue(1)
    assert once.enqueue(2) == first
    assert asyncio.run(once.aenqueue(3)) == first
    assert [row["payload"] for row in jobs(look, queue)] == [{"n": 1}]


def test_wrong_arguments_and_wishes_leave_no_job(task: Task[Any, Any], look: Look, queue: str) -> None:
    with pytest.raises(InvalidArguments, match="argument 'n'"):
        task.enqueue("one")
    with pytest.raises(InvalidArguments):
        asyncio.run(task.aenqueue())
    with pytest.raises(InvalidJob, match="no time zone"):
        task.using(run_after=datetime(2030, 1, 1)).enqueue(1)  # noqa: DTZ001 (that is the point)
    with pytest.raises(InvalidJob, match="priority"):
        task.using(priority=10**9).enqueue(1)
    assert jobs(look, queue) == []


# -- many


def test_many_come_in_order_with_their_handles(app: App, task: Task[Any, Any], look: Look, queue: str) -> None:
    made = app.enqueue_many(task.intent(n) for n in range(500))
    rows = jobs(look, queue)
    assert [job.id for job in made] == [row["id"] for row in rows]
    assert [row["payload"]["n"] for row in rows] == list(range(500))
    assert app.enqueue_many([]) == []


async def test_many_come_in_order_from_a_coroutine(app: App, task: Task[Any, Any], look: Look, queue: str) -> None:
    made = await app.aenqueue_many([task.intent(n) for n in range(50)])
    assert [job.id for job in made] == [row["id"] for row in jobs(look, queue)]
    assert await app.aenqueue_many([]) == []


def test_many_are_all_or_none(app: App, task: Task[Any, Any], look: Look, queue: str) -> None:
    good, key = task.intent(1), task.using(idempotency_key=queue)
    with pytest.raises(InvalidJob, match=r"jobs\[1\]"):
        # Its arguments are not checked again when it is made of another: the database alone sees it.
        app.enqueue_many([good, task.using(priority=5).intent(2).carrying("[]")])
    assert jobs(look, queue) == []
    first, second, third = app.enqueue_many([key.intent(1), good, key.intent(2)])
    assert first == third != second
    assert len(jobs(look, queue)) == 2


# -- at once


def test_sixty_four_threads_share_one_app(app: App, task: Task[Any, Any], look: Look, queue: str) -> None:
    ready = threading.Barrier(64)

    def work(n: int) -> list[uuid.UUID]:
        ready.wait(60)
        return [task.enqueue(n, to=k).id for k in range(5)]

    with ThreadPoolExecutor(64) as threads:
        made = [job_id for ids in threads.map(work, range(64)) for job_id in ids]
    assert len(set(made)) == 320
    assert {row["id"] for row in jobs(look, queue)} == set(made)


def test_threads_and_event_loops_share_one_app(app: App, task: Task[Any, Any], look: Look, queue: str) -> None:
    ready = threading.Barrier(8)

    async def on_loop() -> list[Job[Any]]:
        return await asyncio.gather(*(task.aenqueue(n) for n in range(10)))

    def work(n: int) -> list[Job[Any]]:
        ready.wait(60)
        if n % 2:
            return [job for _ in range(3) for job in asyncio.run(on_loop())]
        return [task.enqueue(n) for _ in range(30)]

    with ThreadPoolExecutor(8) as threads:
        made = {job for batch in threads.map(work, range(8)) for job in batch}
    assert {row["id"] for row in jobs(look, queue)} == {job.id for job in made}
    assert len(made) == 240


def test_a_closed_app_can_be_used_again(common: str, queue: str, look: Look) -> None:
    app = App(common)
    task = app.task(kind="K", queue=queue)(nothing)
    app.close()
    for _ in range(2):
        with app:
            task.enqueue()
        app.close()

    async def on_loop() -> None:
        for _ in range(2):
            async with app:
                await task.aenqueue()
        await app.aclose()

    asyncio.run(on_loop())
    assert len(jobs(look, queue)) == 4


def test_a_handle_survives_its_app_being_closed(common: str, queue: str) -> None:
    app = App(common)
    job = app.task(kind="K", queue=queue)(nothing).enqueue()
    app.close()
    assert job.status == "PENDING"
    app.close()


# -- forked processes

FORKING = """
    import asyncio, json, os, sys, threading
    from leasehold import App
    from leasehold.db.call import Call

    PID = Call("select pg_backend_pid()", (), lambda rows: rows[0][0], repeatable=True)
    app = App(sys.argv[1])

    @app.task(kind="K", queue=sys.argv[2])
    def task(who=""): ...

    loop = asyncio.new_event_loop()

    def work(who, loop):
        pids = set()
        for _ in range(20):
            task.enqueue(who)
            loop.run_until_complete(task.aenqueue(who))
            pids |= {app.database.run(PID), loop.run_until_complete(app.database.arun(PID))}
        return sorted(pids)

    def locks(thing, seen):
        for value in getattr(thing, "__dict__", {}).values():
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, type(threading.Lock())):
                yield value
            elif type(value).__module__.startswith("leasehold."):
                yield from locks(value, seen)

    before = work("before", loop)
    guards = list(locks(app, set()))
    assert len(guards) >= 4, guards
    for guard in guards:
        guard.acquire()  # as another thread may have them in the moment of the fork
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        pids = work("child", asyncio.new_event_loop())
        app.close()
        os.write(writing, json.dumps(pids).encode())
        os._exit(0)
    for guard in guards:
        guard.release()
    after = work("parent", loop)
    status = os.waitpid(child, 0)[1]
    last = work("last", loop)
    print(json.dumps({"before": before, "after": after, "last": last, "child": json.loads(os.read(reading, 9999)),
                      "status": status}))
    app.close()
    loop.close()
"""


def test_a_forked_child_has_connections_of_its_own(common: str, queue: str, look: Look) -> None:
    # Since 3.12 Python warns every program that forks while a thread runs, as the one for notifications does.
    filters = ["-W", "error::ResourceWarning", "-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *filters, "-c", textwrap.dedent(FORKING), common, queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["status"] == 0
    assert said["before"] == said["after"] == said["last"]
    assert not set(said["child"]) & set(said["before"])
    made = jobs(look, queue)
    assert len(made) == 160
    assert len([row for row in made if row["payload"] == {"who": "child"}]) == 40


# -- the database


def test_without_the_schema_the_error_names_the_cure(empty_dsn: str) -> None:
    with App(empty_dsn) as app:
        task = app.task(kind="K")(nothing)
        with pytest.raises(SchemaMismatch, match="run `leasehold migrate`"):
            task.enqueue()
        with pytest.raises(SchemaMismatch):
            asyncio.run(task.aenqueue())


def test_a_login_without_a_role_of_ours_may_not_enqueue(common: str, look: Look) -> None:
    look.execute("drop role if exists stranger")
    look.execute("create role stranger login")
    try:
        with App(common + "&options=-c%20role%3Dstranger") as app:
            task = app.task(kind="K")(nothing)
            with pytest.raises(NotPermitted, match="leasehold_producer"):
                task.enqueue()
    finally:
        look.execute("drop role stranger")


def test_an_app_without_a_dsn_uses_the_embedded_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEASEHOLD_DSN", "LEASEHOLD_ENV", "LEASEHOLD_SCHEMA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    app = App()
    task = app.task(kind="K")(nothing)
    assert not (tmp_path / "home").exists()  # nothing is started before it is needed

    async def on_loop() -> str:
        async with app:
            return await (await task.aenqueue()).astatus()

    assert asyncio.run(on_loop()) == "PENDING"


@pytest.mark.parametrize("text", ["", "x", "123", "01890a5d-ac96-774b-bcce-b302099a805"])
def test_what_is_no_id_is_no_job(app: App, text: str) -> None:
    with pytest.raises(JobUnknown, match="is no job id"):
        app.job(text)


def test_a_job_is_found_by_its_id_as_text(app: App, task: Task[Any, Any]) -> None:
    job = task.enqueue(1)
    assert app.job(str(job.id)) == app.job(job.id) == job
    assert repr(app.job(job.id)) == f"<Job ? {job.id}>"
