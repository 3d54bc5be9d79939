"""`leasehold workers`: who runs jobs."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.cli.words import span
from leasehold.db.store import WorkerRow

commands = typer.Typer(name="workers", help="Who runs jobs.", no_args_is_help=True)


@commands.command("list")
def list_(
    *,
    everyone: Annotated[bool, typer.Option("--all", "-a", help="Also those that are gone.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """List the workers that live, those seen last first."""
    with connected(dsn, schema) as database:
        workers = database.run(database.store.workers(limit))
        now = datetime.fromtimestamp(database.run(database.store.clock()) / 1e6, UTC)
    shown = [worker for worker in workers if worker.live or everyone]
    if as_json:
        print_json(shown)
        return
    columns = ("worker", "host", "pid", "running", "slots", "queues", "seen", "state")
    show_table(columns, (_cells(worker, now) for worker in shown), right=("pid", "running", "slots"))
    if not shown:
        gone = f"; {len(workers)} are gone (--all shows them)" if workers else ""
        say(f"no worker lives{gone}: start one with `leasehold worker module:app`")


def _cells(worker: WorkerRow, now: datetime) -> tuple[object, ...]:
    state = "live" if worker.live else "stopped" if worker.stopped_at else "silent"
    queues = ", ".join(worker.queues) if worker.queues else "all"
    seen = f"{span(max(0.0, (now - worker.seen_at).total_seconds()))} ago"
    return (worker.id, worker.host, worker.pid, worker.running, worker.slots, queues, seen, state)
