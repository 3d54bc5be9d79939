"""Processes of tasks, and ways to look at them."""

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from faults.waiting import astays
from leasehold import Task
from leasehold.context import JobContext
from leasehold.db.store import ClaimedJob
from leasehold.outcome import Failed, Outcome, Success
from leasehold.worker.process import ProcessExecutor


class Pool:
    """An executor, and jobs for it."""

    def __init__(self) -> None:
        self.executor = ProcessExecutor(2, worker="w", schema="leasehold")

    def job(self, task: Task[..., Any], *args: Any) -> tuple[ClaimedJob, JobContext]:
        job = ClaimedJob(
            id=str(uuid4()), kind=task.kind, queue="q", payload=task.arguments.encode(args, {}), attempt=4,
            retry_count=2, max_attempts=5, lease_seconds=10, priority=0, claim_id=str(uuid4()),
        )  # fmt: skip
        context = JobContext(
            id=job.id, kind=job.kind, queue=job.queue, attempt=job.attempt, retry_count=job.retry_count,
            max_attempts=job.max_attempts,
        )  # fmt: skip
        return job, context

    async def run(self, task: Task[..., Any], *args: Any) -> Outcome:
        return await self.executor.run(task, *self.job(task, *args))

    async def value(self, task: Task[..., Any], *args: Any) -> Any:
        outcome = await self.run(task, *args)
        assert isinstance(outcome, Success), outcome
        return task.result.decode(outcome.result)

    async def failure(self, task: Task[..., Any], *args: Any) -> Failed:
        outcome = await self.run(task, *args)
        assert isinstance(outcome, Failed), outcome
        return outcome


def children() -> list[str]:
    """The processes that run our program below this one, zombies among them."""
    own = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == os.getpid() and (b"leasehold.worker.process_main" in command or fields[0] == "Z"):
            own.append(f"{stat.parent.name} {fields[0]}")
    return own


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def stands_still(file: Path) -> None:
    """Check that the process that writes to this file has ended."""
    size = file.stat().st_size
    await astays(lambda: file.stat().st_size == size, seconds=0.15)
