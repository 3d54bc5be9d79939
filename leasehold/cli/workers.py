"""`leasehold workers` and `leasehold errors`: who runs jobs, and what failed lately."""

from datetime import datetime
from typing import Annotated

from typer import Option

from leasehold.cli.console import api_names, span, when
from leasehold.cli.options import Commands, Session
from leasehold.db.store import ErrorGroup, WorkerRow
from leasehold.operate import system, workers

commands = Commands(name="workers", help="Who runs jobs.", no_args_is_help=True)


@commands.command("list")
def list_(
    op: Session,
    *,
    everyone: Annotated[bool, Option("--all", "-a", help="Also those that are gone.")] = False,
    limit: Annotated[int, Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
) -> None:
    """List the workers that live, those seen last first."""
    found = op.run(workers.listed, limit)
    now = op.run(system.clock)
    gone = f"; {len(found)} are gone (--all shows them)" if found else ""
    op.table(
        [worker for worker in found if worker.live or everyone],
        ("worker", "host", "pid", "running", "slots", "queues", "seen", "state"),
        lambda worker: _worker_cells(worker, now),
        right=("pid", "running", "slots"),
        empty=f"no worker lives{gone}: start one with `leasehold worker module:app`",
    )


def _worker_cells(worker: WorkerRow, now: datetime) -> tuple[object, ...]:
    state = "live" if worker.live else "stopped" if worker.stopped_at else "silent"
    queues = ", ".join(worker.queues) if worker.queues else "all"
    seen = f"{span(max(0.0, (now - worker.seen_at).total_seconds()))} ago"
    return (worker.id, worker.host, worker.pid, worker.running, worker.slots, queues, seen, state)


def errors(
    op: Session,
    *,
    queue: Annotated[str | None, Option("--queue", "-q", help="Only of this queue.")] = None,
    kind: Annotated[str | None, Option("--kind", "-k", help="Only of this kind.")] = None,
    scan: Annotated[
        int, Option("--scan", min=1, max=100_000, help="Read so many of the latest recorded attempts.")
    ] = 10_000,
) -> None:
    """Show the latest failures, grouped by kind and class of error."""
    groups = op.run(workers.errors, queue=queue or None, kind=kind or None, scan=scan)
    if not groups:
        op.check_names(queue=queue, kind=kind)
    op.table(
        groups,
        ("kind", "error", "attempts", "jobs", "last seen", "last job", "message"),
        _error_cells,
        right=("attempts", "jobs"),
        less=("last seen", "jobs", "message"),
        empty="nothing has failed lately",
        as_value=api_names,
    )


def _error_cells(group: ErrorGroup) -> tuple[object, ...]:
    last = when(group.last_seen), group.last_job, (group.last_message or "")[:200]
    return (group.kind, group.error_class, group.attempts, group.jobs, *last)
