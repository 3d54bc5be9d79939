"""What one worker process costs and does on a backlog of no-op jobs.

    python bench/drain.py [--jobs 60000] [--slots 500] [--prefetch 500] [--held-snapshot] [--rounds 3]

Starts an embedded PostgreSQL of its own (fsync on, stock settings but for shared_buffers), fills the queue and drains
it with a worker in this process. The worker's processor time per job hardly depends on what else the machine does; the
rate does, and is only good for comparing lines of one run. With --held-snapshot another session keeps an old snapshot,
so that vacuum can remove nothing: the rates of the first and of the last tenth tell what that costs.
"""

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg
import uvloop

from leasehold import App
from leasehold.db.migrate import migrate
from leasehold.embedded import EmbeddedServer
from leasehold.worker import Worker, WorkerOptions

FILL = """insert into leasehold.jobs (kind, payload, state)
    select 'noop', jsonb_build_object('i', g, 'to', 'someone@example.com'), 'queued' from generate_series(1, %s) g"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    rate: float
    cpu_us: float
    first: float
    last: float
    wal: float


async def drain(app: App, done: list[float], jobs: int, options: WorkerOptions) -> tuple[float, float]:
    """Seconds of the clock and of the processor, from the first job to the last."""
    worker = Worker(app, options)
    running = asyncio.create_task(worker.run())
    while not done:  # noqa: ASYNC110 (an event would cost each job something)
        await asyncio.sleep(0.001)
    clock, processor, before = time.perf_counter(), time.process_time(), len(done)
    while len(done) < jobs:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    share = jobs / (jobs - before)
    spent = (time.perf_counter() - clock) * share, (time.process_time() - processor) * share
    worker.stop()
    await running
    await app.aclose()
    return spent


def one_round(dsn: str, jobs: int, options: WorkerOptions, *, held: bool) -> Drained:
    app, done = App(dsn), []

    @app.task(kind="noop", lease=60)
    async def noop(i: int, to: str) -> None:  # noqa: ARG001
        done.append(time.perf_counter())

    with psycopg.connect(dsn, autocommit=True) as look, psycopg.connect(dsn) as holder:
        look.execute("truncate leasehold.jobs")
        look.execute(FILL, [jobs])
        look.execute("vacuum analyze leasehold.jobs")
        look.execute("checkpoint")
        if held:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1")
        before = look.execute("select pg_current_wal_insert_lsn()").fetchone()
        gc.freeze()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            clock, processor = runner.run(drain(app, done, jobs, options))
        wal = look.execute("select pg_current_wal_insert_lsn() - %s::pg_lsn", before).fetchone()
    assert len(done) == jobs
    assert wal is not None
    tenth = jobs // 10
    return Drained(
        rate=jobs / clock, cpu_us=processor / jobs * 1e6, wal=float(wal[0]) / jobs,
        first=tenth / (done[tenth] - done[0]), last=tenth / (done[-1] - done[-tenth - 1]),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--prefetch", type=int, default=500)
    parser.add_argument("--held-snapshot", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    options = WorkerOptions(slots=given.slots, prefetch=given.prefetch)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        EmbeddedServer(home=Path(folder) / "home", settings={"shared_buffers": "512MB"}) as server,
    ):
        server.ensure_database("bench")
        dsn = server.dsn("bench")
        migrate(dsn)
        rounds = [one_round(dsn, given.jobs, options, held=given.held_snapshot) for _ in range(given.rounds)]
    for name in ("rate", "cpu_us", "first", "last", "wal"):
        values = [getattr(drained, name) for drained in rounds]
        print(f"{name:8} median {statistics.median(values):10,.1f}   {min(values):,.1f} to {max(values):,.1f}")


if __name__ == "__main__":
    main()
