"""What goes on now, in one look, and a picture of it for a terminal."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leasehold.cli.console import shown
from leasehold.cli.words import count, many, span
from leasehold.db.pool import Database
from leasehold.db.store import ErrorGroup, JobRow, Rate, WorkerRow

_RUNNING = 500
"""So many running jobs are looked at."""

_OUTLOOKS = {"growing": "bold red", "unserved": "bold red", "blocked": "red", "waiting": "yellow", "paused": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What goes on now."""

    now: datetime
    """By the database's clock."""
    figures: dict[str, tuple[int, bool]]
    queues: list[Rate]
    workers: list[WorkerRow]
    """Those that live, or hold a lease."""
    running: list[JobRow]
    errors: list[ErrorGroup]


def look(database: Database) -> Look:
    """Look once: a handful of calls, each of bounded cost."""
    store = database.store
    running = database.run(store.list_jobs({"state": ["running"]}, count=_RUNNING)).jobs
    owners = {job.lease_owner for job in running}
    return Look(
        figures=database.run(store.stats()),
        queues=database.run(store.rates()),
        workers=[worker for worker in database.run(store.workers()) if worker.live or worker.id in owners],
        running=running,
        errors=database.run(store.errors(scan=1000)),
        now=datetime.fromtimestamp(database.run(store.clock()) / 1e6, UTC),
    )


def picture(
    seen: Look, *, height: int, header: list[RenderableType] | None = None, killed: Collection[str] = ()
) -> Group:
    """A picture of at most so many lines. `killed`: workers that are known to be dead before the database can know."""
    # The summary, three lines between, three headings, three lines that say what was left out.
    room = height - len(header or []) - 10
    workers = max(1, min(len(seen.workers), room // 3))
    errors = max(1, min(len(seen.errors), room // 4))
    queues = max(1, room - workers - errors)
    return Group(
        *(header or []),
        _summary(seen),
        Text(),
        _queues(seen, queues),
        Text(),
        _workers(seen, workers, killed),
        Text(),
        _errors(seen, errors),
    )


def _number(seen: Look, name: str) -> str:
    return count(*seen.figures.get(name, (0, False)))


def _summary(seen: Look) -> Text:
    done, failed = (seen.figures.get(f"{state}_last_minute", (0, False)) for state in ("success", "dead"))
    states = ("created", "queued", "parked", "running", "retry", "dead")
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{done[0] / 60:.1f}/s done", style="bold")
    text.append(f"  {failed[0]} died in the last minute", style="red" if failed[0] else "")
    text.append("  " + "  ".join(f"{state} {_number(seen, state)}" for state in states))
    return text


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), expand=True)
    for name, side in columns:
        table.add_column(
            name, justify="right" if side == "right" else "left", no_wrap=True, overflow="ellipsis",
            ratio=1 if side == "rest" else None,
        )  # fmt: skip
    return table


def _queues(seen: Look, room: int) -> Table:
    table = _table(
        ("queue", "left"), ("ready", "right"), ("oldest", "right"), ("running", "right"), ("in/s", "right"),
        ("out/s", "right"), ("outlook", "rest"),
    )  # fmt: skip
    order = sorted(seen.queues, key=lambda q: (q.verdict.outlook not in _OUTLOOKS, -q.ready, q.queue))
    for queue in order[:room]:
        table.add_row(
            shown(queue.queue)[:24], count(queue.ready, queue.ready_capped),
            span(queue.oldest_seconds if queue.ready else None),
            str(queue.running) + (f"/{queue.max_running}" if queue.max_running is not None else ""),
            f"{queue.in_rate:.1f}", f"{queue.out_rate:.1f}",
            Text(queue.verdict.words, style=_OUTLOOKS.get(queue.verdict.outlook, "")),
        )  # fmt: skip
    return _rest(table, len(order) - room, "queue")


def _workers(seen: Look, room: int, killed: Collection[str]) -> Table:
    table = _table(("worker", "left"), ("slots", "left"), ("next lease", "right"), ("runs", "rest"))
    jobs: dict[str | None, list[JobRow]] = defaultdict(list)
    for job in seen.running:
        jobs[job.lease_owner].append(job)
    for worker in sorted(seen.workers, key=lambda worker: worker.id)[:room]:
        mine = sorted(jobs[worker.id], key=lambda job: job.lease_expires_at or seen.now)
        fate = "killed, " if worker.id in killed else "" if worker.live else "gone, "
        table.add_row(shown(worker.id)[-28:], _slots(worker), _lease(seen, fate, mine), _kinds(mine))
    return _rest(table, len(seen.workers) - room, "worker")


def _slots(worker: WorkerRow) -> str:
    slots = worker.slots or worker.running
    full = min(10, round(10 * worker.running / slots)) if slots else 0
    bar = "█" * max(full, int(worker.running > 0)) + "░" * (10 - max(full, int(worker.running > 0)))
    return f"{bar} {worker.running}/{slots}"


def _lease(seen: Look, fate: str, jobs: list[JobRow]) -> Text:
    """When the lease that ends first does: of a worker that is gone, when its jobs come free."""
    if not jobs or jobs[0].lease_expires_at is None:
        return Text(fate.removesuffix(", ") or "idle", style="dim")
    left = (jobs[0].lease_expires_at - seen.now).total_seconds()
    if left <= 0:
        return Text(f"{fate}expired", style="bold red")
    return Text(f"{fate}{left:.1f}s", style="yellow" if fate or left < 2 else "")


def _kinds(jobs: list[JobRow]) -> str:
    kinds: dict[str, int] = defaultdict(int)
    for job in jobs:
        kinds[job.kind] += 1
    return ", ".join(f"{shown(kind)} {number}" for kind, number in sorted(kinds.items(), key=lambda k: -k[1]))


def _errors(seen: Look, room: int) -> Table:
    table = _table(
        ("errors lately", "left"), ("class", "left"), ("attempts", "right"), ("ago", "right"), ("message", "rest")
    )
    for group in seen.errors[:room]:
        ago = span(max(0.0, (seen.now - group.last_seen).total_seconds()))
        table.add_row(
            shown(group.kind)[:24], shown((group.error_class or "-").rpartition(".")[2])[:24], str(group.attempts), ago,
            shown((group.last_message or "")[:200]),
        )  # fmt: skip
    if not seen.errors:
        table.add_row("none", "", "", "", "")
    return _rest(table, len(seen.errors) - room, "group")


def _rest(table: Table, left_out: int, thing: str) -> Table:
    if left_out > 0:
        table.caption = f"and {many(left_out, thing)} more"
        table.caption_justify = "left"
    return table
