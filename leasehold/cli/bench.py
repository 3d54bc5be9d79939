"""`leasehold bench`: measure Leasehold on your own server."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from typer import Option

from leasehold._locate import located
from leasehold.app import App
from leasehold.cli.console import answer, say
from leasehold.cli.options import AsJson, Dsn
from leasehold.cli.running import run_async
from leasehold.config import Settings
from leasehold.db.scratch import scratch_schema
from leasehold.task import Task
from leasehold.worker import Worker, WorkerOptions

_PER_CALL = 1000
_FIGURES = {
    "single_per_second": ("enqueue, one at a time", "jobs/s"),
    "bulk_per_second": (f"enqueue, {_PER_CALL:,} a call", "jobs/s"),
    "drain_per_second": ("work off a backlog, one process", "jobs/s"),
    "latency_p50_ms": ("enqueue to start, idle worker, p50", "ms"),
    "latency_p99_ms": ("enqueue to start, idle worker, p99", "ms"),
}


def command(
    *,
    jobs: Annotated[int, Option("--jobs", min=100, max=1_000_000, help="How many are recorded and run.")] = 20_000,
    seconds: Annotated[
        float, Option("--seconds", min=0.5, max=600, help="How long each part may take at most.")
    ] = 15.0,
    slots: Annotated[int, Option("--slots", min=1, max=10_000, help="Of the worker.")] = 500,
    prefetch: Annotated[int, Option("--prefetch", min=0, max=10_000, help="Of the worker.")] = 500,
    dsn: Dsn = None,
    schema: Annotated[
        str, Option("--schema", help="A schema that is made for it, and dropped at the end.")
    ] = "leasehold_bench",
    as_json: AsJson = False,
) -> None:
    """Measure what Leasehold does on your server: enqueue one by one and in bulk, work off a backlog, latency.

    Everything happens in a schema of its own, which is dropped at the end, on Ctrl-C too; only Leasehold's roles stay,
    if they were not there before. One process does it all: more of them do more. The figures depend on the machine, the
    network, and what else goes on there.
    """
    settings = Settings.from_env(dsn=dsn, schema=schema)
    options = WorkerOptions(slots=slots, prefetch=prefetch)
    with located(settings, say=say, migrated=False) as where, _undisturbed(), scratch_schema(where, schema, say=say):
        figures = run_async(_measure(App(where, schema=schema), options, jobs, seconds))
    answer(figures, "\n".join(_line(name, figures[name]) for name in _FIGURES), as_json=as_json)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let the first Ctrl-C end the benchmark and further ones not interrupt the cleaning up."""

    def interrupted(_number: int, _frame: object) -> None:
        # Nothing is printed here: the signal may have interrupted a print.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    normal = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped; the schema was dropped")
        raise
    finally:
        signal.signal(signal.SIGINT, normal)


async def _measure(app: App, options: WorkerOptions, jobs: int, seconds: float) -> dict[str, float | None]:
    """Measure each figure; None: there was no time for it. `jobs` is how many were recorded in all."""
    starts: list[float] = []

    @app.task(kind="bench", lease=60)
    async def noop(sent: float | None) -> None:
        starts.append(time.perf_counter() - (sent or 0.0))

    async with app:
        await noop.aenqueue(None)  # connects, which is not measured
        say("recording jobs one at a time")
        alone, single = await _recorded(lambda: noop.aenqueue(None), 1, jobs // 10, seconds)
        say(f"recording jobs, {_PER_CALL:,} a call")
        batch = lambda: app.aenqueue_many([noop.intent(None) for _ in range(_PER_CALL)])  # noqa: E731
        together, bulk = await _recorded(batch, _PER_CALL, jobs - alone - 1, seconds)
        recorded = 1 + alone + together
        worker = Worker(app, options)
        running = asyncio.create_task(worker.run())
        try:
            say(f"working off {recorded:,} jobs")
            drain = await _drained(running, starts, recorded, seconds)
            paced = max(20, min(200, jobs // 100)) if len(starts) >= recorded else 0
            p50, p99 = await _latency(noop, starts, paced)
        finally:
            worker.stop()
            worker.hurry()
            await running
    return {**dict(zip(_FIGURES, (single, bulk, drain, p50, p99), strict=True)), "jobs": recorded + paced}


async def _recorded(record: Callable[[], Awaitable[object]], each: int, jobs: int, seconds: float) -> tuple[int, float]:
    """Record so many jobs a call; return how many were recorded, and how many a second."""
    began = time.perf_counter()
    done = 0
    while done < jobs and time.perf_counter() - began < seconds:
        await record()
        done += each
    return done, done / (time.perf_counter() - began)


async def _latency(
    noop: Task[[float | None], None], starts: list[float], jobs: int
) -> tuple[float | None, float | None]:
    """Return p50 and p99 from before the enqueue to the start, in milliseconds."""
    if not jobs:
        return None, None
    say("one job at a time, on an idle worker")
    del starts[:]
    for _ in range(jobs):
        await noop.aenqueue(time.perf_counter())
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    waits = sorted(starts)
    return (waits[len(waits) // 2] * 1e3, waits[len(waits) * 99 // 100] * 1e3) if waits else (None, None)


async def _drained(running: asyncio.Task[None], starts: list[float], jobs: int, seconds: float) -> float | None:
    """Return jobs started per second, from the first to the last or to the end of the time."""
    deadline = time.perf_counter() + seconds
    while len(starts) < jobs and time.perf_counter() < deadline and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    if running.done():
        running.result()
    return (len(starts) - 1) / (starts[-1] - starts[0]) if len(starts) > 1 else None


def _line(figure: str, value: float | None) -> str:
    name, unit = _FIGURES[figure]
    shown = "no time for it" if value is None else f"{value:12,.{0 if value >= 100 else 1}f} {unit}"
    return f"{name:36}{shown}"
