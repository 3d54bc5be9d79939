"""Workers that were stopped in their tracks, and tasks that do not let others run."""

import asyncio
import signal
from contextlib import ExitStack

from faults.waiting import auntil
from tests.survival.conftest import Sql, one, ready, rounds, worker


async def test_a_worker_stopped_past_its_lease_finds_everything_refused_when_it_wakes(dsn: str, sql: Sql) -> None:
    count = rounds(2, 50)
    with worker(dsn) as first, worker(dsn) as second:
        await ready(sql, 2)
        for n in range(1, count + 1):
            job = one(sql, """select enqueue('zombie', '{"seconds": 9}', max_attempts => 100)""")
            owner = await auntil(lambda job=job: one(sql, "select lease_owner from jobs where id = %s", job))
            victim = first if f":{first.pid}:" in owner else second
            # A worker that is stopped before its task has started does not start it when it wakes.
            await auntil(lambda job=job: one(sql, "select count(*) from sink where job = %s", job) == 1)
            victim.send_signal(signal.SIGSTOP)
            await auntil(lambda job=job: one(sql, "select attempt from jobs where id = %s", job) == 2)
            await asyncio.sleep(4)  # the fault lasts for three leases in all
            before = one(sql, "select lease_owner from jobs where id = %s", job)
            victim.send_signal(signal.SIGCONT)
            await auntil(lambda n=n: one(sql, "select count(*) from told where attempt = 1") == n)
            assert one(sql, "select lease_owner from jobs where id = %s", job) == before
            await auntil(lambda job=job: one(sql, "select state from jobs where id = %s", job) == "success")
            assert one(sql, "select result from jobs where id = %s", job) == 2
            assert one(sql, "select progress_note from jobs where id = %s", job) in {"attempt 2", None}
    stale = """select count(*) from writes late where accepted and exists (
        select from writes w where w.job = late.job and w.accepted and w.attempt > late.attempt and w.n < late.n)"""
    assert one(sql, stale) == 0
    assert one(sql, "select count(*) from attempts where outcome <> 'lease_expired'") == 0
    assert one(sql, "select count(*) from attempts") == count


async def test_a_task_that_blocks_for_five_leases_misses_no_heartbeat_and_runs_once(dsn: str, sql: Sql) -> None:
    count = rounds(2, 50)
    with ExitStack() as stack:
        for _ in range(rounds(2, 5)):
            stack.enter_context(worker(dsn, "--slots", "2"))
        await ready(sql, rounds(2, 5))
        for kind in ("block_loop", "block_thread"):
            sql.execute("select enqueue(%s, '{\"seconds\": 10}') from generate_series(1, %s)", [kind, count])
        await auntil(
            lambda: one(sql, "select count(*) from jobs where state = 'success'") == 2 * count, within=120 + 12 * count
        )
    assert one(sql, "select count(*) from jobs where attempt <> 1 or result <> '1'") == 0
    assert one(sql, "select count(*) from attempts") == 0
