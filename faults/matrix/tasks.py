"""The tasks of the matrices: innocents that end, and some that are held until a file appears."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from faults.tasks import LEASE, note
from leasehold import App, current_job
from leasehold.retry import FixedDelay

app = App()

FOLDER = Path(os.environ.get("FAULTS_FOLDER", "."))
TICK = "tick"
"""The schedule, its kind."""


@app.task(kind="quick", lease=LEASE, max_attempts=5)
async def quick() -> None:
    """Over at once."""
    note("begin")
    note("end")


@app.task(kind="limited", lease=LEASE, max_attempts=5)
async def limited() -> None:
    """As quick, of a kind with a limit."""
    note("begin")
    note("end")


@app.task(kind="hold", lease=LEASE, max_attempts=5)
async def hold(until: str) -> None:
    """Runs until a file of this name appears in the folder of the run."""
    note("begin")
    while not (FOLDER / until).exists():  # noqa: ASYNC110 (another process makes it)
        await asyncio.sleep(0.05)
    note("end")


@app.task(kind="chatty", lease=LEASE, max_attempts=5)
async def chatty() -> None:
    """Says something, and lives long enough to have it written before its end."""
    note("begin")
    current_job().log.info("said")
    current_job().progress(0.5, "half")
    current_job().heartbeat()
    await asyncio.sleep(0.1)
    note("end")


@app.task(kind="flaky", lease=LEASE, max_attempts=5, retry=FixedDelay(0.01))
async def flaky() -> None:
    """Fails once."""
    note("begin")
    if current_job().attempt == 1:
        raise RuntimeError("not yet")
    note("end")


if os.environ.get("FAULTS_EVERY"):

    @app.task(kind=TICK, lease=min(LEASE, 6.0), max_attempts=5)
    async def tick() -> None:
        """What the schedules fire."""
        note("begin")
        note("end")

    for number in range(int(os.environ.get("FAULTS_TICKS", "1"))):
        key = f"{TICK}-{number}" if number else TICK
        app.schedule(every=timedelta(seconds=float(os.environ["FAULTS_EVERY"])), key=key, missed="skip")(tick)
