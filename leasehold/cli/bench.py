"""`leasehold bench`: what Leasehold does on your own server."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from leasehold.app import App
from leasehold.cli.connected import AsJson, Dsn, print_json
from leasehold.cli.console import say
from leasehold.cli.worker import run_async
from leasehold.config import Settings
from leasehold.db.scratch import scratch_schema
from leasehold.locate import located
from leasehold.task import Task
from leasehold.worker import Worker, WorkerOptions

_PER_CALL = 1000
"""Jobs of one bulk call."""

Noop = Task[[float | None], None]
"""The task that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured. None: there was no time for it."""

    single_per_second: float | None
    bulk_per_second: float | None
    drain_per_second: float | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    jobs: int
    """Recorded in all."""


def command(
    *,
    jobs: Annotated[
        int, typer.Option("--jobs", min=100, max=1_000_000, help="How many are recorded and run.")
    ] = 20_000,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.5, max=600, help="How long each part may take at most.")
    ] = 15.0,
    slots: Annotated[int, typer.Option("--slots", min=1, max=10_000, help="Of the worker.")] = 500,
    prefetch: Annotated[int, typer.Option("--prefetch", min=0, max=10_000, help="Of the worker.")] = 500,
    dsn: Dsn = None,
    schema: Annotated[
        str, typer.Option("--schema", help="A schema that is made for it, and dropped at the end.")
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
    if as_json:
        print_json(asdict(figures))
    else:
        _show(figures)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The first Ctrl-C ends the benchmark; further ones must not end the cleaning up."""
    normal = signal.getsignal(signal.SIGINT)

    def interrupted(_number: int, _frame: object) -> None:
        # Nothing is said here: it may have come in the middle of saying something.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped; the schema was dropped")
        raise
    finally:
        signal.signal(signal.SIGINT, normal)


async def _measure(app: App, options: WorkerOptions, jobs: int, seconds: float) -> Figures:
    starts: list[float] = []

    @app.task(kind="bench", lease=60)
    async def noop(sent: float | None) -> None:
        starts.append(time.perf_counter() - (sent or 0.0))

    async with app:
        alone, single = await _one_by_one(noop, jobs // 10, seconds)
        together, bulk = await _many_at_once(app, noop, jobs - alone, seconds)
        recorded = alone + together
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
    return Figures(
        single_per_second=single, bulk_per_second=bulk, drain_per_second=drain, latency_p50_ms=p50, latency_p99_ms=p99,
        jobs=recorded + paced,
    )  # fmt: skip


async def _one_by_one(noop: Noop, jobs: int, seconds: float) -> tuple[int, float]:
    """How many were recorded, and how many a second."""
    say("recording jobs one at a time")
    await noop.aenqueue(None)  # what is made at the first call is made now
    began = time.perf_counter()
    done = 0
    while done < jobs and time.perf_counter() - began < seconds:
        await noop.aenqueue(None)
        done += 1
    return done + 1, done / (time.perf_counter() - began)


async def _many_at_once(app: App, noop: Noop, jobs: int, seconds: float) -> tuple[int, float]:
    """How many were recorded, and how many a second."""
    say(f"recording jobs, {_PER_CALL:,} a call")
    began = time.perf_counter()
    done = 0
    while done < jobs and time.perf_counter() - began < seconds:
        await app.aenqueue_many([noop.intent(None) for _ in range(_PER_CALL)])
        done += _PER_CALL
    return done, done / (time.perf_counter() - began)


async def _latency(noop: Noop, starts: list[float], jobs: int) -> tuple[float | None, float | None]:
    """p50 and p99 from before the enqueue to the start, in milliseconds."""
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
    """Jobs started per second, from the first to the last or to the end of the time."""
    deadline = time.perf_counter() + seconds
    while len(starts) < jobs and time.perf_counter() < deadline and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    if running.done():
        running.result()
    return (len(starts) - 1) / (starts[-1] - starts[0]) if len(starts) > 1 else None


def _show(figures: Figures) -> None:
    lines = (
        ("enqueue, one at a time", figures.single_per_second, "jobs/s"),
        (f"enqueue, {_PER_CALL:,} a call", figures.bulk_per_second, "jobs/s"),
        ("work off a backlog, one process", figures.drain_per_second, "jobs/s"),
        ("enqueue to start, idle worker, p50", figures.latency_p50_ms, "ms"),
        ("enqueue to start, idle worker, p99", figures.latency_p99_ms, "ms"),
    )
    for name, value, unit in lines:
        shown = "no time for it" if value is None else f"{value:12,.{0 if value >= 100 else 1}f} {unit}"
        typer.echo(f"{name:36}{shown}")
