"""The tasks of the fault runs. Each notes its effects, with the job and the fencing token, in a log of its process."""

import asyncio
import functools
import os
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path

from faults.log import Log
from leasehold import App, current_job

app = App()

LEASE = float(os.environ.get("FAULTS_LEASE", "2"))
EVERY = os.environ.get("FAULTS_EVERY")
SCHEDULES = ("tick-a", "tick-b", "tick-c")
"""Schedules and kinds of the same names, fired every so many seconds where FAULTS_EVERY says so."""

FOLDER = os.environ.get("FAULTS_FOLDER")


@functools.cache
def _log() -> Log:
    # A process number may come again within a run: the time makes the name unique.
    path = Path(str(FOLDER)) / f"effects-{os.getpid()}-{time.time_ns()}.jsonl"
    return Log(path, f"worker {os.getpid()}")


def note(step: str) -> None:
    """Write down that the job of this moment begins or ends its effect."""
    if FOLDER:
        job = current_job()
        _log().note("effect", job=str(job.id), attempt=job.attempt, worker=str(os.getpid()), step=step)


@app.task(kind="quick", lease=LEASE, max_attempts=1000)
async def quick() -> None:
    """Over at once."""
    note("begin")
    note("end")


@app.task(kind="nap", lease=LEASE, max_attempts=1000)
async def nap(seconds: float) -> None:
    """Takes its time, on the loop."""
    note("begin")
    await asyncio.sleep(seconds)
    note("end")


@app.task(kind="busy", lease=LEASE, max_attempts=1000)
async def busy(beats: int, pause: float) -> None:
    """Has its lease renewed again and again."""
    note("begin")
    for _ in range(beats):
        current_job().heartbeat()
        await asyncio.sleep(pause)
    note("end")


@app.task(kind="block", lease=LEASE, max_attempts=1000)
async def block(seconds: float) -> None:
    """Blocks the event loop."""
    note("begin")
    time.sleep(seconds)  # noqa: ASYNC251 (that is the fault)
    note("end")


@app.task(kind="flaky", lease=LEASE, max_attempts=1000, retry=lambda _failures, _error: 0.05)
async def flaky(failures: int) -> None:
    """Fails at first."""
    note("begin")
    if current_job().retry_count < failures:
        raise RuntimeError("not yet")
    note("end")


@app.task(kind="suicide", lease=LEASE, max_attempts=3)
async def suicide() -> None:
    """Takes its whole process along, every time."""
    note("begin")
    os.kill(os.getpid(), signal.SIGKILL)


if EVERY:
    for _kind in SCHEDULES:

        @app.schedule(
            every=timedelta(seconds=float(EVERY)), key=_kind, due_argument="due", missed="all", max_missed=10_000
        )
        @app.task(kind=_kind, lease=LEASE, max_attempts=1000)
        async def tick(due: datetime) -> None:
            """What schedules fire."""
            note("begin")
            current_job().log.debug("due %s", due)
            note("end")
