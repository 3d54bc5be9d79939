"""Leasehold itself, driven as its peers are."""

from contextlib import asynccontextmanager

from adapter import DSN, MODE, PREFETCH, SLOTS, batches, hit, main, ready

from leasehold import App
from leasehold._os_process import settle_collector
from leasehold.db.migrations.migrate import migrate
from leasehold.worker import Worker, WorkerOptions

app = App(DSN)


@app.task(kind="noop", lease=60)
async def noop(i: int, t: float, to: str) -> None:  # noqa: ARG001
    hit(t)


async def schema():
    migrate(DSN)


@asynccontextmanager
async def client():
    async with app:
        yield app


async def bulk(_app, payloads):
    for some in batches(payloads):
        await app.aenqueue_many(noop.intent(**one) for one in some)


async def enqueue(_app, payload):
    await noop.aenqueue(**payload)


async def worker():
    settle_collector()  # as `leasehold worker` does
    await app.adatabase()
    ready()
    queues = [MODE] if MODE else None
    await Worker(app, WorkerOptions(slots=SLOTS, prefetch=PREFETCH, queues=queues)).run()


main(schema=schema, client=client, bulk=bulk, one=enqueue, worker=worker)
