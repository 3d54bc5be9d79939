"""oban for Python."""

import asyncio
import logging
from contextlib import asynccontextmanager

from adapter import DSN, SLOTS, batches, hit, main, ready
from oban import Oban
from oban import worker as oban_worker
from oban.schema import install

logging.disable(logging.INFO)


@oban_worker(queue="default")
class Noop:
    async def process(self, job):
        hit(job.args["t"])


async def schema():
    pool = await Oban.create_pool(DSN)
    await install(pool)
    await pool.close()


@asynccontextmanager
async def client():
    pool = await Oban.create_pool(DSN)
    yield Oban(pool=pool)
    await pool.close()


async def bulk(oban, payloads):
    for some in batches(payloads):
        await oban.enqueue_many([Noop.new(one) for one in some])


async def one(oban, payload):
    await oban.enqueue(Noop.new(payload))


async def worker():
    pool = await Oban.create_pool(DSN)
    ready()
    async with Oban(pool=pool, queues={"default": SLOTS}):
        await asyncio.Event().wait()


main(schema=schema, client=client, bulk=bulk, one=one, worker=worker)
