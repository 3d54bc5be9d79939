"""`leasehold jobs tail`: jobs as they change, a line for each change that is seen."""

import time
from collections import OrderedDict
from typing import Annotated, Any
from uuid import UUID

import typer

from leasehold.cli import choosing
from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import shown
from leasehold.cli.jobs import job_json, note
from leasehold.cli.names import check_names
from leasehold.cli.parsing import length
from leasehold.cli.words import when
from leasehold.db.pool import Database
from leasehold.db.store import JobRow

_LOOK = 200
"""So many jobs of each sort are looked at each time."""

_REMEMBERED = 20_000
"""So many jobs are remembered, to tell what is new about them."""

_SORTS: tuple[str | None, ...] = (None, "running", "retry", "success", "dead")
"""What changes: the latest created, what runs, what failed lately, what ended lately."""


def command(
    *,
    state: choosing.State = None,
    kind: choosing.Kind = None,
    queue: choosing.Queue = None,
    tag: choosing.Tag = None,
    exclusive_key: choosing.ExclusiveKey = None,
    error: choosing.ErrorClass = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=1000, help="Begin with so many latest changes.")
    ] = 10,
    every: Annotated[str, typer.Option("--every", help="Time between two looks.")] = "1s",
    seconds: Annotated[str | None, typer.Option("--for", help="End after this time, such as 30s.")] = None,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Follow jobs as they change, until Ctrl-C. What changes more than once between two looks is shown once."""
    wanted = choosing.make_filter(
        state=state, kind=kind, queue=queue, tag=tag, exclusive_key=exclusive_key, error=error
    )
    pause = max(0.05, length(every, option="--every").total_seconds())
    end = None if seconds is None else time.monotonic() + length(seconds, option="--for").total_seconds()
    with connected(dsn, schema) as database:
        seen = Changes()
        found = seen.of(_look(database, wanted))
        if not found:
            check_names(database, queue=queue, kind=kind)
        for job in found[-lines:] if lines else []:
            _show(job, as_json=as_json)
        while end is None or time.monotonic() < end:
            time.sleep(pause if end is None else max(0.0, min(pause, end - time.monotonic())))
            for job in seen.of(_look(database, wanted)):
                _show(job, as_json=as_json)


class Changes:
    """What was seen of jobs, and what is new about them."""

    def __init__(self) -> None:
        self._seen: OrderedDict[UUID, tuple[object, ...]] = OrderedDict()

    def of(self, jobs: list[JobRow]) -> list[JobRow]:
        """Those of which something has changed, in the order of their changes."""
        new = {job.id: job for job in jobs if self._seen.get(job.id) != self._mark(job)}
        for job in jobs:
            self._seen[job.id] = self._mark(job)
            self._seen.move_to_end(job.id)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return sorted(new.values(), key=lambda job: (job.updated_at, str(job.id)))

    @staticmethod
    def _mark(job: JobRow) -> tuple[object, ...]:
        # Not updated_at: a heartbeat is no news.
        return (job.state, job.parked, job.attempt, job.retry_count, job.progress, job.progress_note, job.reason)


def _look(database: Database, wanted: dict[str, Any]) -> list[JobRow]:
    jobs: dict[UUID, JobRow] = {}
    sorts = [state for state in _SORTS if state is None or state in wanted.get("state", _SORTS)]
    for sort in sorts:
        narrow = wanted if sort is None else wanted | {"state": [sort]}
        for job in database.run(database.store.list_jobs(narrow, count=_LOOK)).jobs:
            known = jobs.get(job.id)
            if known is None or known.updated_at <= job.updated_at:
                jobs[job.id] = job
    return list(jobs.values())


def _show(job: JobRow, *, as_json: bool) -> None:
    if as_json:
        print_json(job_json(job))
    else:
        cells = (when(job.updated_at), job.id, job.kind, job.queue, job.state, note(job) or "-")
        typer.echo("\t".join(shown(str(cell)) for cell in cells))
