"""procrastinate, with a pool as wide as its concurrency."""

import logging
from contextlib import asynccontextmanager

import procrastinate
from adapter import DSN, SLOTS, batches, hit, main, ready

logging.disable(logging.INFO)
connector = procrastinate.PsycopgConnector(conninfo=DSN, min_size=4, max_size=max(4, min(SLOTS, 20)))
app = procrastinate.App(connector=connector)


@app.task(name="noop")
async def noop(i, t, to):  # noqa: ARG001
    hit(t)


async def schema():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def client():
    async with app.open_async():
        yield app


async def bulk(_app, payloads):
    for some in batches(payloads):
        await noop.batch_defer_async(*some)


async def one(_app, payload):
    await noop.defer_async(**payload)


async def worker():
    async with app.open_async():
        ready()
        await app.run_worker_async(concurrency=SLOTS, listen_notify=True, delete_jobs="never")


main(schema=schema, client=client, bulk=bulk, one=one, worker=worker)
