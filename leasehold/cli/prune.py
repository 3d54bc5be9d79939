"""`leasehold prune`: remove what is over, for good."""

from collections import Counter
from datetime import timedelta
from typing import Annotated

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import is_terminal, progress_bar, say, show_table
from leasehold.cli.interrupts import Interruptible
from leasehold.cli.parsing import length
from leasehold.cli.words import many
from leasehold.db.pool import Database
from leasehold.db.store import Pruned
from leasehold.errors import ConfigError

_BATCH = 1000
_MOST = 10_000
"""So many are counted in a dry run."""

_FINISHED = ("success", "dead")


def command(
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Finished longer ago than this: 30d.", show_default=False)
    ],
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="success or dead; success alone when left out.")
    ] = None,
    workers: Annotated[bool, typer.Option("--workers", help="Also forget workers not seen for so long.")] = False,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Remove no more jobs than so many.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Remove finished jobs with their attempts and logs. Nothing else ever does; unfinished jobs are never touched.

    The idempotency key of a job that was removed can be used again, and makes a new job.
    """
    age = length(older_than, option="--older-than")
    states = list(dict.fromkeys(state or ["success"]))
    for name in states:
        if name not in _FINISHED:
            raise ConfigError(f"--state {name!r}: only finished jobs are pruned", hint=f"known: {', '.join(_FINISHED)}")
    with connected(dsn, schema) as database:
        limit = _MOST if most is None else min(most, _MOST)
        found = database.run(database.store.prune(age, states, limit, dry_run=True))
        gone = database.run(database.store.prune_workers(age, dry_run=True)) if workers else []
        if dry_run or not (found or gone):
            _tell(found, gone, dry_run=dry_run, as_json=as_json)
            return
        _confirm(found, gone, yes=yes, as_json=as_json)
        with Interruptible("this batch") as interrupt:
            removed = _prune(database, age, states, most, interrupt, expected=_sum(found))
            if workers and not interrupt.wanted:
                gone = database.run(database.store.prune_workers(age))
    _tell(removed, gone, dry_run=False, as_json=as_json)
    interrupt.end()


def _prune(
    database: Database, age: timedelta, states: list[str], most: int | None, interrupt: Interruptible, *, expected: int
) -> list[Pruned]:
    removed: Counter[tuple[str, str]] = Counter()
    capped = True
    with progress_bar("prune", expected) as bar:
        while capped and not interrupt.wanted and (most is None or removed.total() < most):
            limit = _BATCH if most is None else min(_BATCH, most - removed.total())
            batch = database.run(database.store.prune(age, states, limit))
            for row in batch:
                removed[row.kind, row.state] += row.jobs
            # Jobs that somebody is writing are left for another time: once nothing else is left, enough.
            capped = any(row.capped for row in batch)
            if removed.total() > expected:
                bar.expect(removed.total() + (_BATCH if capped else 0))
            bar.show(removed.total())
    return [Pruned(kind, state, jobs, capped) for (kind, state), jobs in sorted(removed.items())]


def _confirm(found: list[Pruned], gone: list[str], *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    capped = any(row.capped for row in found)
    what = f"remove {many(_sum(found), 'job', capped=capped)}" + (f" and {many(len(gone), 'worker')}" if gone else "")
    if as_json or not is_terminal():
        raise ConfigError(f"this would {what} for good", hint="add --yes to do it, or --dry-run to only look")
    if not typer.confirm(f"{what} for good?", err=True):
        say("nothing was removed")
        raise typer.Exit(1)


def _tell(rows: list[Pruned], gone: list[str], *, dry_run: bool, as_json: bool) -> None:
    capped = any(row.capped for row in rows)
    if as_json:
        jobs = [{"jobType": row.kind, "state": row.state, "jobs": row.jobs} for row in rows]
        print_json({"dry_run": dry_run, "jobs": jobs, "workers": gone, "capped": capped})
    else:
        show_table(("kind", "state", "jobs"), ((row.kind, row.state, row.jobs) for row in rows), right=("jobs",))
    done = f"{many(_sum(rows), 'job', capped=capped and dry_run)}" + (f", {many(len(gone), 'worker')}" if gone else "")
    if dry_run:
        say(f"would remove {done}; nothing was removed")
    else:
        say(f"removed {done}" + ("; there may be more" if capped else ""))


def _sum(rows: list[Pruned]) -> int:
    return sum(row.jobs for row in rows)
