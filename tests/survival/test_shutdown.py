"""Deploys: SIGTERM with everything in full swing."""

import asyncio
import signal
import time

from faults.waiting import auntil
from tests.survival.conftest import Sql, one, ready, rounds, worker
from tests.timing import bound

GRACE = 1
RUNNING = "select count(*) from jobs where state = 'running'"


async def test_sigterm_with_a_thousand_jobs_in_hand_loses_none_and_counts_no_failure(dsn: str, sql: Sql) -> None:
    sql.execute("""select enqueue('nap', '{"seconds": 60}', max_attempts => 1000) from generate_series(1, 1500)""")
    for n in range(rounds(2, 50)):
        with worker(dsn, "--slots", "500", "--prefetch", "500", "--grace", str(GRACE)) as process:
            await auntil(lambda: one(sql, RUNNING) == 1000)
            process.send_signal(signal.SIGTERM)
            asked = time.monotonic()
            # What had not started comes back at once, what had comes back after the grace period.
            await auntil(lambda: one(sql, RUNNING) <= 500, within=bound(1))
            code = await asyncio.to_thread(process.wait, 20)
            took = time.monotonic() - asked
        assert code == 0
        assert took <= bound(GRACE + 2), f"round {n}: {took:.1f} s"
        assert one(sql, "select count(*) from jobs where state in ('queued', 'success')") == 1500
        assert one(sql, "select count(*) from jobs where retry_count > 0") == 0
        assert one(sql, "select count(*) from attempts where outcome <> 'released'") == 0
    sql.execute("""update jobs set payload = '{"seconds": 0.01}'""")
    with worker(dsn, "--slots", "500"):
        await ready(sql, 1)
        await auntil(lambda: one(sql, "select count(*) from jobs where state = 'success'") == 1500)
