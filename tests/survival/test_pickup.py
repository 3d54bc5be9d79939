"""How soon a job is picked up when hints do not work."""

import asyncio

from tests.survival.conftest import Sql, one, ready, rounds, until, worker
from tests.timing import bound


async def test_without_hints_a_job_is_picked_up_within_a_second(dsn: str, sql: Sql) -> None:
    count = rounds(15, 100)
    with worker(dsn):
        await ready(sql, 1)
        # Nothing is announced any more: neither probes nor jobs.
        sql.execute("create or replace function announce(queues text[]) returns void language sql as 'select'")
        sql.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'leasehold listener%' and datname = current_database()"
        )
        await asyncio.sleep(4)  # the next probe fails, and polling takes over
        for _ in range(count):
            sql.execute("""select enqueue('nap', '{"seconds": 0}')""")
            await asyncio.sleep(0.37)
        await until(lambda: one(sql, "select count(*) from jobs where state = 'success'") == count, within=60)
    waits = "select percentile_disc(0.99) within group (order by extract(epoch from claimed_at - created_at)) from jobs"
    assert one(sql, waits) <= bound(1.2)
