"""What the workers of these tests run."""

import asyncio
from datetime import datetime, timedelta

from leasehold import App

app = App()


@app.schedule(every=timedelta(seconds=1), key="tick", due_argument="due", missed="all")
@app.task(kind="TICK", lease=5)
async def tick(due: datetime) -> str:
    await asyncio.sleep(0)
    return due.isoformat()
