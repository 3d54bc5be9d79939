"""The walk of a plain job: the modules that it really runs through when everything is warm.

To know what happens to a job, a newcomer reads these files, from the top. One more of them has to be worth it.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import leasehold
from faults.waiting import auntil
from leasehold import App
from leasehold.worker import Worker, WorkerOptions

ROOT = Path(leasehold.__file__).parent

VALUES = {"context", "intent", "job"}
"""Modules of which only values are made on the way."""

WALK = {
    "task", "arguments", "app",
    "db/database", "db/store/producer", "db/notify", "db/connections/io",
    "worker/claimer", "worker/runner", "worker/lease", "worker/attempt", "worker/finisher", "worker/statistics",
    "db/store/worker", "db/connections/link",
}  # fmt: skip
"""With the five SQL files record, 00_common, claim, claim_lanes and complete, twenty files."""

BESIDE = {"CrashRecovery", "LeaseKeeper", "Prober", "Scheduler", "Statistician", "Sweeper"}
"""The loops of a worker that run whether there are jobs or not."""


@contextmanager
def traced(walk: dict[str, list[str]]) -> Iterator[None]:
    """Note the functions of leasehold that are called in this thread, by module, in the order of their first calls."""

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT) or code.co_name == "_without_exit":
            return  # the last is the outermost frame of each loop, and is resumed together with it
        task = asyncio.current_task()
        if task is None or task.get_name() not in BESIDE:
            names = walk.setdefault(path.relative_to(ROOT).with_suffix("").as_posix(), [])
            if code.co_qualname not in names:
                names.append(code.co_qualname)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def walk_of(app: App, task: Any) -> dict[str, list[str]]:
    """Return the functions that one job calls, from its enqueue until its outcome is written."""
    walk: dict[str, list[str]] = {}
    worker = Worker(app, WorkerOptions(slots=1))
    working = asyncio.create_task(worker.run())
    try:
        await worker.started.wait()
        for _ in range(3):
            job = await task.aenqueue(1, "a text")
            await job.aresult(60)
            await asyncio.sleep(0.1)  # longer than a transaction pauses that has notified
        with traced(walk):
            job = await task.aenqueue(1, "a text")
            await auntil(lambda: "Outbox.answered" in walk.get("worker/finisher", ()))
        assert await job.astatus() == "COMPLETED"
    finally:
        worker.stop()
        await working
    return walk


def test_a_plain_job_walks_through_these_modules(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django.db", raising=False)  # another test's: programs with Django check more
    with App(dsn) as app:

        @app.task(kind="PLAIN")
        async def plain(number: int, text: str) -> None:
            pass

        walk = asyncio.run(walk_of(app, plain))
    for module, names in walk.items():
        print(f"{module}: {', '.join(names)}")
    assert walk.keys() - VALUES == WALK
