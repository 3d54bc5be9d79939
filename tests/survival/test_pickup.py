"""How soon a job is picked up when notifications do not arrive."""

import asyncio
import os
from contextlib import suppress

from faults.waiting import auntil
from tests.survival.conftest import Sql, one, ready, rounds, worker
from tests.timing import bound


async def test_without_notifications_a_job_is_picked_up_within_a_second(dsn: str, sql: Sql) -> None:
    count = rounds(15, 100)
    with worker(dsn) as process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        log = bytearray()

        def polls() -> bool:
            with suppress(BlockingIOError):
                log.extend(os.read(process.stderr.fileno(), 65536))
            return b"notifications do not arrive: polling" in log

        await ready(sql, 1)
        # Nothing is announced any more: neither probes nor jobs.
        sql.execute("create or replace function announce(queues text[]) returns void language sql as 'select'")
        sql.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'leasehold listener%' and datname = current_database()"
        )
        await auntil(polls, detail=log.decode)
        for _ in range(count):
            sql.execute("""select enqueue('nap', '{"seconds": 0}')""")
            await asyncio.sleep(0.37)  # jobs that arrive at any moment between two polls
        await auntil(lambda: one(sql, "select count(*) from jobs where state = 'success'") == count)
    waits = "select percentile_disc(0.99) within group (order by extract(epoch from claimed_at - created_at)) from jobs"
    assert one(sql, waits) <= bound(1.2)
