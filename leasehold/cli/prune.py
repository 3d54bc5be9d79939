"""`leasehold prune`: remove finished jobs."""

from collections import Counter
from typing import Annotated

from typer import Exit, Option

from leasehold.cli.console import confirm, interruptible, many, progress_bar, say, show_table
from leasehold.cli.options import Session, length
from leasehold.db.store import Pruned
from leasehold.errors import ConfigError

_BATCH = 1000
_COUNTED = 10_000
"""A dry run counts no further."""
_FINISHED = ("success", "dead")


def command(
    op: Session,
    *,
    older_than: Annotated[str, Option("--older-than", help="Finished longer ago than this: 30d.", show_default=False)],
    state: Annotated[
        list[str] | None, Option("--state", "-s", help="success or dead; success alone when left out.")
    ] = None,
    workers: Annotated[bool, Option("--workers", help="Also forget workers not seen for so long.")] = False,
    most: Annotated[
        int | None, Option("--max", min=1, help="Remove no more jobs than so many.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove finished jobs with their attempts and logs. Nothing else ever does; unfinished jobs are never touched.

    The idempotency key of a job that was removed can be used again, and makes a new job.
    """
    age = length(older_than, option="--older-than")
    states = list(dict.fromkeys(state or ["success"]))
    for name in states:
        if name not in _FINISHED:
            raise ConfigError(f"--state {name!r}: only finished jobs are pruned", hint=f"known: {', '.join(_FINISHED)}")
    store, run = op.database.store, op.database.run
    found, capped = _tally(run(store.prune(age, states, min(most or _COUNTED, _COUNTED), dry_run=True)))
    gone = run(store.prune_workers(age, dry_run=True)) if workers else []
    if dry_run or not (found or gone):
        _report(op, found, gone, capped=capped, dry_run=dry_run)
        return
    what = f"remove {_amount(found, gone, ' and ', capped=capped)} permanently"
    confirm(what, yes=yes, as_json=op.as_json, otherwise="nothing was removed")
    removed: Counter[tuple[str, str]] = Counter()
    capped = True
    with interruptible("this batch") as interrupt, progress_bar("prune", found.total()) as bar:
        while capped and not interrupt.is_set() and (most is None or removed.total() < most):
            limit = _BATCH if most is None else min(_BATCH, most - removed.total())
            # The batch leaves out jobs that others are writing: end when only those are left.
            batch, capped = _tally(run(store.prune(age, states, limit)))
            removed += batch
            if removed.total() > found.total():
                bar(total=removed.total() + (_BATCH if capped else 0))
            bar(completed=removed.total())
        if workers and not interrupt.is_set():
            gone = run(store.prune_workers(age))
    _report(op, removed, gone, capped=capped and removed.total() > 0, dry_run=False)
    if interrupt.is_set():
        raise Exit(130)


def _tally(rows: list[Pruned]) -> tuple[Counter[tuple[str, str]], bool]:
    """Return the jobs by kind and state, and whether there may be more."""
    return Counter({(row.kind, row.state): row.jobs for row in rows}), any(row.capped for row in rows)


def _report(op: Session, jobs: Counter[tuple[str, str]], gone: list[str], *, capped: bool, dry_run: bool) -> None:
    rows = [(kind, state, number) for (kind, state), number in sorted(jobs.items())]
    if op.as_json:
        named = [dict(zip(("jobType", "state", "jobs"), row, strict=True)) for row in rows]
        op.answer({"dry_run": dry_run, "jobs": named, "workers": gone, "capped": capped})
    else:
        show_table(("kind", "state", "jobs"), rows, right=("jobs",))
    done = _amount(jobs, gone, ", ", capped=capped and dry_run)
    if dry_run:
        say(f"would remove {done}; nothing was removed")
    else:
        say(f"removed {done}" + ("; there may be more" if capped else ""))


def _amount(jobs: Counter[tuple[str, str]], gone: list[str], joint: str, *, capped: bool) -> str:
    return many(jobs.total(), "job", capped=capped) + (f"{joint}{many(len(gone), 'worker')}" if gone else "")
