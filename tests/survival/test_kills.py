"""Workers that die at any moment."""

import asyncio
import random
import signal
from contextlib import ExitStack

from faults.waiting import auntil
from tests.survival.conftest import Sql, one, ready, rounds, worker

LEFT = "select count(*) from jobs where state <> 'success'"


async def test_complete_in_leaves_exactly_one_effect_per_job_under_random_kills(dsn: str, sql: Sql) -> None:
    chance = random.Random(7)
    count = rounds(200, 1000)
    sql.execute("select enqueue('effect', max_attempts => 1000) from generate_series(1, %s)", [count])
    kills = 0
    while one(sql, LEFT):
        with ExitStack() as stack:
            processes = [stack.enter_context(worker(dsn, "--slots", "5")) for _ in range(2)]
            before = one(sql, "select count(*) from workers")
            await ready(sql, min(1, before))
            left = one(sql, LEFT)
            batch = chance.randrange(10, max(11, count // 6))
            await auntil(lambda left=left, batch=batch: one(sql, LEFT) <= max(0, left - batch))
            await asyncio.sleep(chance.uniform(0, 0.05))
            for process in processes:
                process.send_signal(signal.SIGKILL)
                kills += 1
    assert kills >= 4
    assert one(sql, "select count(*) from effects") == count
    assert one(sql, "select count(distinct job) from effects") == count
