"""The tasks of the matrices: innocents that end, and some that are held until a file appears."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from faults.tasks import LEASE, note
from leasehold import App

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


if os.environ.get("FAULTS_EVERY"):

    @app.schedule(every=timedelta(seconds=float(os.environ["FAULTS_EVERY"])), key=TICK, missed="skip")
    @app.task(kind=TICK, lease=LEASE, max_attempts=5)
    async def tick() -> None:
        """What the schedule fires."""
        note("begin")
        note("end")
