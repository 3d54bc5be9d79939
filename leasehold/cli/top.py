"""`leasehold top`: queues, workers with their leases, and errors, live; also the picture of `leasehold demo`."""

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer import Option

from leasehold.cli.console import Keys, api_names, count, many, plain, shown, span
from leasehold.cli.options import Session, length
from leasehold.db.database import Database
from leasehold.db.store import ErrorGroup, JobRow, Rate, WorkerRow
from leasehold.errors import DatabaseUnavailable

_OUTLOOKS = {"growing": "bold red", "unserved": "bold red", "blocked": "red", "waiting": "yellow", "paused": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state at one time."""

    now: datetime  # by the database's clock
    figures: dict[str, tuple[int, bool]]
    queues: list[Rate]
    workers: list[WorkerRow]  # those that live, or hold a lease
    running: list[JobRow]
    errors: list[ErrorGroup]


def command(
    op: Session,
    *,
    every: Annotated[str, Option("--every", help="Time between two queries.")] = "1s",
    once: Annotated[bool, Option("--once", help="Show it once and end, as when it is not a terminal.")] = False,
) -> None:
    """Show what goes on, live: rates, queues, workers with their leases, errors. q ends.

    Where standard output is not a terminal it is printed once.
    """
    pause = max(0.1, length(every, option="--every").total_seconds())
    if op.as_json:
        op.answer(_as_json(take_snapshot(op.database)))
    elif once or not sys.stdout.isatty():
        width = None if sys.stdout.isatty() else 120
        Console(width=width).print(picture(take_snapshot(op.database), height=1000))
    else:
        _live(op.database, pause)


def _live(database: Database, pause: float) -> None:
    console = Console()
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                seen = take_snapshot(database)
                title = Text(f"leasehold top  {seen.now:%H:%M:%S} UTC  (q ends)", style="bold", no_wrap=True)
                view: RenderableType = picture(seen, height=console.height, header=[title])
            except DatabaseUnavailable as error:  # it may come back
                view = Text(f"the database does not answer: {error.args[0]}", style="bold red", no_wrap=True)
            live.update(view, refresh=True)
            if "q" in keys.wait(pause).lower():
                return


def _as_json(seen: Snapshot) -> dict[str, Any]:
    queues = [{**asdict(queue), "outlook": queue.drain.outlook, "words": queue.drain.words} for queue in seen.queues]
    return {
        "at": seen.now,
        "figures": {name: {"value": value, "capped": capped} for name, (value, capped) in seen.figures.items()},
        "queues": plain(queues),
        "workers": seen.workers,
        "running": plain([api_names(job) for job in seen.running]),
        "errors": seen.errors,
    }


def take_snapshot(database: Database) -> Snapshot:
    """Read the state: a handful of calls, each of bounded cost."""
    store = database.store
    running = database.run(store.list_jobs({"state": ["running"]}, count=500)).jobs
    owners = {job.lease_owner for job in running}
    return Snapshot(
        figures=database.run(store.stats()),
        queues=database.run(store.rates()),
        workers=[worker for worker in database.run(store.workers()) if worker.live or worker.id in owners],
        running=running,
        errors=database.run(store.errors(scan=1000)),
        now=datetime.fromtimestamp(database.run(store.clock()) / 1e6, UTC),
    )


def picture(
    seen: Snapshot, *, height: int, header: list[RenderableType] | None = None, killed: Collection[str] = ()
) -> Group:
    """Return a picture of at most so many lines. `killed`: workers known to be dead before the database can know."""
    # The summary, three lines between, three headings, three lines that say what was left out.
    room = height - len(header or []) - 10
    workers = max(1, min(len(seen.workers), room // 3))
    errors = max(1, min(len(seen.errors), room // 4))
    queues = max(1, room - workers - errors)
    tables = _queues(seen, queues), Text(), _workers(seen, workers, killed), Text(), _errors(seen, errors)
    return Group(*(header or []), _summary(seen), Text(), *tables)


def _summary(seen: Snapshot) -> Text:
    done, failed = (seen.figures.get(f"{state}_last_minute", (0, False)) for state in ("success", "dead"))
    states = ("created", "queued", "parked", "running", "retry", "dead")
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{done[0] / 60:.1f}/s done", style="bold")
    text.append(f"  {failed[0]} died in the last minute", style="red" if failed[0] else "")
    text.append("".join(f"  {state} {count(*seen.figures.get(state, (0, False)))}" for state in states))
    return text


def _table(rows: list[tuple[RenderableType, ...]], room: int, thing: str, *columns: str, right: Sequence[str]) -> Table:
    """Return a table of the first rows; the last column gets the rest of the width. `right`: columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), expand=True)
    for name in columns:
        side: Any = "right" if name in right else "left"
        ratio = 1 if name == columns[-1] else None
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for row in rows[:room]:
        table.add_row(*row)
    if len(rows) > room:
        table.caption, table.caption_justify = f"and {many(len(rows) - room, thing)} more", "left"
    return table


def _queues(seen: Snapshot, room: int) -> Table:
    rows: list[tuple[RenderableType, ...]] = []
    for queue in sorted(seen.queues, key=lambda q: (q.drain.outlook not in _OUTLOOKS, -q.ready, q.queue)):
        oldest = span(queue.oldest_seconds if queue.ready else None)
        running = str(queue.running) + (f"/{queue.max_running}" if queue.max_running is not None else "")
        rates = f"{queue.in_rate:.1f}", f"{queue.out_rate:.1f}"
        outlook = Text(queue.drain.words, style=_OUTLOOKS.get(queue.drain.outlook, ""))
        ready = count(queue.ready, queue.ready_capped)
        rows.append((shown(queue.queue)[:24], ready, oldest, running, *rates, outlook))
    numbers = ("ready", "oldest", "running", "in/s", "out/s")
    return _table(rows, room, "queue", "queue", *numbers, "outlook", right=numbers)


def _workers(seen: Snapshot, room: int, killed: Collection[str]) -> Table:
    rows: list[tuple[RenderableType, ...]] = []
    jobs: dict[str | None, list[JobRow]] = defaultdict(list)
    for job in seen.running:
        jobs[job.lease_owner].append(job)
    for worker in sorted(seen.workers, key=lambda worker: worker.id):
        mine = sorted(jobs[worker.id], key=lambda job: job.lease_expires_at or seen.now)
        fate = "killed, " if worker.id in killed else "" if worker.live else "gone, "
        kinds = Counter(job.kind for job in mine).most_common()
        runs = ", ".join(f"{shown(kind)} {number}" for kind, number in kinds)
        rows.append((shown(worker.id)[-28:], _slots(worker), _lease(seen, fate, mine), runs))
    return _table(rows, room, "worker", "worker", "slots", "next lease", "runs", right=("next lease",))


def _slots(worker: WorkerRow) -> str:
    slots = worker.slots or worker.running
    full = max(min(10, round(10 * worker.running / slots)) if slots else 0, int(worker.running > 0))
    return f"{'█' * full}{'░' * (10 - full)} {worker.running}/{slots}"


def _lease(seen: Snapshot, fate: str, jobs: list[JobRow]) -> Text:
    """Return when the lease that ends first does: of a worker that is gone, when its jobs come free."""
    if not jobs or jobs[0].lease_expires_at is None:
        return Text(fate.removesuffix(", ") or "idle", style="dim")
    left = (jobs[0].lease_expires_at - seen.now).total_seconds()
    if left <= 0:
        return Text(f"{fate}expired", style="bold red")
    return Text(f"{fate}{left:.1f}s", style="yellow" if fate or left < 2 else "")


def _errors(seen: Snapshot, room: int) -> Table:
    rows: list[tuple[RenderableType, ...]] = []
    for group in seen.errors:
        name = shown((group.error_class or "-").rpartition(".")[2])[:24]
        ago = span(max(0.0, (seen.now - group.last_seen).total_seconds()))
        message = shown((group.last_message or "")[:200])
        rows.append((shown(group.kind)[:24], name, str(group.attempts), ago, message))
    columns = ("errors lately", "class", "attempts", "ago", "message")
    return _table(rows or [("none",)], room, "group", *columns, right=("attempts", "ago"))
