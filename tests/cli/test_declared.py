"""A job that is enqueued by its kind alone waits where its task is declared to wait, with its number of attempts."""

import asyncio

import pytest

from leasehold import App, Intent
from leasehold.worker import Worker, WorkerOptions


@pytest.fixture
def declared(dsn):
    """An app whose worker has run once."""
    app = App(dsn)

    @app.task(kind="GREET", queue="greetings", priority=3, max_attempts=2)
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async def start_and_stop() -> None:
        worker = Worker(app, WorkerOptions(queues={"none": 1}, slots=1))
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.started.wait(), 60)
        worker.stop()
        await running

    asyncio.run(start_and_stop())
    with app:
        yield app


def test_the_command_line_uses_what_the_kind_declares(cli, sql, declared):
    done = cli("enqueue", "GREET", "-p", "name=Ada", "--json")
    assert done.json["queue"] == "greetings"
    assert sql("select queue, priority, max_attempts from jobs") == [("greetings", 3, 2)]
    cli("enqueue", "GREET", "-p", "name=Ada", "-q", "other")
    assert sql("select queue, max_attempts from jobs order by created_at desc limit 1") == [("other", 2)]


def test_an_intent_without_a_queue_does_too_alone_and_among_many(sql, declared):
    bare = Intent(kind="GREET", payload='{"name": "Ada"}')
    declared.record(bare)
    declared.enqueue_many([bare, declared.tasks["GREET"].using(queue="other").intent(name="Ada")])
    assert sql("select queue from jobs order by queue") == [("greetings",), ("greetings",), ("other",)]
