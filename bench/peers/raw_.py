"""No queue: the rows that Leasehold would write, put into its table by the same driver."""

import json
from contextlib import asynccontextmanager

import psycopg
from adapter import DSN, batches, main

from leasehold.db.migrations.migrate import migrate

MANY = """insert into leasehold.jobs (max_attempts, kind, payload, state)
    select 5, 'noop', p::jsonb, 'queued' from unnest(%s::text[]) p"""
ONE = """with made as (
      insert into leasehold.jobs (max_attempts, kind, payload, state)
      values (5, 'noop', %s::text::jsonb, 'queued') returning id)
    select id, pg_notify('leasehold', 'default') from made"""


async def schema():
    migrate(DSN)


@asynccontextmanager
async def client():
    async with await psycopg.AsyncConnection.connect(DSN, autocommit=True, prepare_threshold=1) as connection:
        yield connection


async def bulk(connection, payloads):
    for some in batches(payloads):
        await connection.execute(MANY, [[json.dumps(one) for one in some]])


async def one(connection, payload):
    cursor = await connection.execute(ONE, [json.dumps(payload)])
    await cursor.fetchone()


async def worker():
    raise SystemExit("raw rows have no worker")


main(schema=schema, client=client, bulk=bulk, one=one, worker=worker)
