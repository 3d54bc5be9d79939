"""pgqueuer at its best: a pool, batches."""

import json
from contextlib import asynccontextmanager

import asyncpg
from adapter import DSN, SLOTS, batches, hit, main, ready
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


async def schema():
    async with client() as queries:
        await queries.install()


@asynccontextmanager
async def client():
    connection = await asyncpg.connect(DSN)
    yield Queries(AsyncpgDriver(connection))
    await connection.close()


async def bulk(queries, payloads):
    for some in batches(payloads):
        bodies = [json.dumps(one).encode() for one in some]
        await queries.enqueue(["noop"] * len(bodies), bodies, [0] * len(bodies))


async def one(queries, payload):
    await queries.enqueue("noop", json.dumps(payload).encode())


async def worker():
    pool = await asyncpg.create_pool(DSN, min_size=4, max_size=10)
    queuer = PgQueuer.from_asyncpg_pool(pool)

    @queuer.entrypoint("noop")
    async def noop(job):
        hit(json.loads(job.payload)["t"])

    ready()
    await queuer.run(batch_size=SLOTS)


main(schema=schema, client=client, bulk=bulk, one=one, worker=worker)
