"""The tasks that the survival tests run in real worker processes."""

import asyncio
import os
import time

import psycopg

from leasehold import App, LeaseLost, current_job

app = App()
DSN = os.environ.get("LEASEHOLD_DSN", "")

# A sink that knows fencing: what an older attempt writes after a newer one has been seen is refused, and noted.
WRITE = """
with taken as (
  insert into sink as s (job, attempt) values (%(job)s, %(attempt)s)
  on conflict (job) do update set attempt = excluded.attempt where s.attempt <= excluded.attempt
  returning 1)
insert into writes (job, attempt, accepted) select %(job)s, %(attempt)s, exists (select from taken)
"""

TABLES = """
create table sink (job uuid primary key, attempt integer not null);
create table writes (n bigserial, job uuid, attempt integer, accepted boolean);
create table told (job uuid, attempt integer, what text);
create table effects (job uuid not null);
"""


def note(table: str, **values: object) -> None:
    with psycopg.connect(DSN, autocommit=True) as connection:
        if table == "told":
            connection.execute("insert into told values (%(job)s, %(attempt)s, %(what)s)", values)
        else:
            connection.execute(WRITE, values)


@app.task(kind="zombie", lease=2, max_attempts=100)
async def zombie(seconds: float) -> int:
    """Writes to the sink again and again; notes when it has to stop."""
    job = current_job()
    me = {"job": job.id, "attempt": job.attempt}
    deadline = time.monotonic() + seconds
    note("sink", **me)
    try:
        while time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            job.progress(0.5, f"attempt {job.attempt}")
        note("sink", **me)
    except (asyncio.CancelledError, LeaseLost):
        note("told", **me, what="lost")
        raise
    return job.attempt


@app.task(kind="block_loop", lease=2)
async def block_loop(seconds: float) -> int:
    time.sleep(seconds)  # noqa: ASYNC251 (that is the point)
    return current_job().attempt


@app.task(kind="block_thread", lease=2)
def block_thread(seconds: float) -> int:
    time.sleep(seconds)
    return current_job().attempt


@app.task(kind="nap", lease=5, max_attempts=1000)
async def nap(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return current_job().attempt


@app.task(kind="effect", lease=1, max_attempts=1000)
async def effect() -> None:
    """One row, and the end of the job, in one transaction of its own."""
    async with await psycopg.AsyncConnection.connect(DSN) as connection:
        await connection.execute("insert into effects values (%s)", [current_job().id])
        await asyncio.sleep(0.01)
        await current_job().acomplete_in(connection)
