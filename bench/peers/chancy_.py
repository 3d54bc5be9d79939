"""chancy at its best: eager polling, and outcomes written every 50 ms."""

import logging

from adapter import DSN, SLOTS, hit, main, ready
from chancy import Chancy, Queue, Worker, job

quiet = logging.getLogger("quiet")
quiet.setLevel(logging.ERROR)


@job(queue="default")
async def noop(i, t, to):  # noqa: ARG001
    hit(t)


def client():
    return Chancy(DSN, log=quiet)


async def schema():
    async with client() as chancy:
        await chancy.migrate()


async def bulk(chancy, payloads):
    async for _ in chancy.push_many([noop.job.with_kwargs(**one) for one in payloads]):
        pass


async def one(chancy, payload):
    await chancy.push(noop.job.with_kwargs(**payload))


async def worker():
    async with client() as chancy:
        queue = Queue(
            "default", concurrency=SLOTS, executor=Chancy.Executor.Async, polling_interval=1, eager_polling=True
        )
        await chancy.declare(queue, upsert=True)
        ready()
        at_work = Worker(chancy)
        at_work.send_outgoing_interval = 0.05
        async with at_work:
            await at_work.wait_for_shutdown()


main(schema=schema, client=client, bulk=bulk, one=one, worker=worker)
