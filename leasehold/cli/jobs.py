"""`leasehold jobs`: list, show, explain and follow jobs; retry and cancel one, some, or all that match a filter."""

import time
from collections import OrderedDict
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

from typer import Argument, Exit, Option

from leasehold.cli import console
from leasehold.cli.job_fields import detail_json, detail_lines, filtered, note
from leasehold.cli.options import Commands, Session, job_id, length
from leasehold.db.store import Changed, JobDetail, JobPage, JobRow
from leasehold.errors import ConfigError, JobUnknown
from leasehold.operate import jobs, system
from leasehold.operate.jobs import Change
from leasehold.operate.reasons import DEAD

commands = Commands(name="jobs", help="List, show, explain, retry and cancel jobs.", no_args_is_help=True)

Id = Annotated[str, Argument(help="The job's id.", show_default=False)]
Ids = Annotated[list[str] | None, Argument(help="Their ids; or leave them out and give a filter.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say how many fit, and change nothing.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
Most = Annotated[int, Option("--max", min=1, max=10_000_000, help="With a filter: change no more than so many.")]

_BATCH = 500
_COUNTED = 10_000
"""A dry run counts no further."""
_QUERIES: tuple[str | None, ...] = (None, "running", "retry", "success", "dead")
"""What `tail` reads: the latest created, and the latest of these states."""


@commands.command("list")
@filtered()
def list_(
    op: Session,
    wanted: dict[str, Any],
    *,
    limit: Annotated[int, Option("--limit", "-n", min=1, max=100_000, help="At most so many.")] = 50,
    cursor: Annotated[str | None, Option("--cursor", help="Go on where a list with this filter ended.")] = None,
) -> None:
    """List jobs: the latest first; those of one state in the order that fits it (queued: as they are claimed)."""
    page = _pages(op, wanted, cursor, limit)
    if not page.jobs and page.cursor is None:
        _check_names(op, wanted)
    if op.as_json:
        op.answer({"jobs": console.plain([console.api_names(job) for job in page.jobs]), "cursor": page.cursor})
        return
    console.show_table(
        ("id", "kind", "queue", "state", "failures", "created", "updated", "note"),
        map(_cells, page.jobs),
        right=("failures",),
        less=("updated", "created", "failures", "queue"),
    )
    if page.cursor is not None:
        console.say(f"there may be more; go on with --cursor '{page.cursor}'")
    elif not page.jobs:
        console.say("no job fits")


def _pages(op: Session, wanted: dict[str, Any], cursor: str | None, limit: int) -> JobPage:
    """Read as many pages as it takes. A page may be short and yet not be the last."""
    found: list[JobRow] = []
    while True:
        page = op.run(jobs.listed, wanted, cursor, min(1000, limit - len(found)))
        found += page.jobs
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return JobPage(found, cursor)


def _cells(job: JobRow) -> tuple[object, ...]:
    times = console.when(job.created_at), console.when(job.updated_at)
    return (job.id, job.kind, job.queue, job.state, f"{job.retry_count}/{job.max_attempts}", *times, note(job))


def _check_names(op: Session, wanted: dict[str, Any]) -> None:
    op.check_names(queue=wanted.get("queue"), kind=wanted.get("kind"))


@commands.command("show")
def show(op: Session, job: Id) -> None:
    """Show everything about a job: what it carries, its failed attempts, what it logged, why it is not running."""
    found = op.run(jobs.shown, job_id(job))
    op.answer(detail_json(found), "\n".join(detail_lines(found)))


@commands.command("explain")
def explain(op: Session, job: Id) -> None:
    """Say why a job is not running, what to look into first on top."""
    obstacles = op.run(jobs.explain, job_id(job))
    lines = [f"{obstacle.reason}: {console.shown(obstacle.detail)}" for obstacle in obstacles]
    if [obstacle.reason for obstacle in obstacles] == ["finished"] and not op.as_json:
        lines += _why_dead(op.run(jobs.detail, job_id(job)))
    op.answer({"job_id": job_id(job), "reasons": obstacles}, "\n".join(lines) if lines else None)
    if not lines and not op.as_json:
        console.say("nothing is in its way: a worker may claim it any moment")


def _why_dead(found: JobDetail) -> list[str]:
    """Return why a dead job died, as the dashboard says it."""
    if found.job.state != "dead":
        return []
    why = DEAD.get(found.job.reason or "", found.job.reason or "unknown")
    lines = [f"dead: {why}" + (f": {console.shown(found.reason_detail)}" if found.reason_detail else "")]
    if found.attempts and found.job.reason != "cancelled":
        last = found.attempts[-1]
        error = ": ".join(filter(None, [last.error_class, last.error_message]))
        lines += [f"last error: {console.shown(error)}"] if error else []
    return lines


@commands.command("tail")
@filtered()
def tail(
    op: Session,
    wanted: dict[str, Any],
    *,
    lines: Annotated[int, Option("--lines", "-n", min=0, max=1000, help="Begin with so many latest changes.")] = 10,
    every: Annotated[str, Option("--every", help="Time between two queries.")] = "1s",
    seconds: Annotated[str | None, Option("--for", help="End after this time, such as 30s.")] = None,
) -> None:
    """Follow jobs as they change, until Ctrl-C. What changes more than once between two queries is shown once."""
    pause = max(0.05, length(every, option="--every").total_seconds())
    end = None if seconds is None else time.monotonic() + length(seconds, option="--for").total_seconds()
    seen: OrderedDict[UUID, tuple[object, ...]] = OrderedDict()
    found = _changed(op, wanted, seen)
    if not found:
        _check_names(op, wanted)
    found = found[-lines:] if lines else []
    while True:
        for job in found:
            cells = (console.when(job.updated_at), job.id, job.kind, job.queue, job.state, note(job) or "-")
            op.answer(console.api_names(job), "\t".join(console.shown(str(cell)) for cell in cells))
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(pause if end is None else max(0.0, min(pause, end - time.monotonic())))
        found = _changed(op, wanted, seen)


def _changed(op: Session, wanted: dict[str, Any], seen: OrderedDict[UUID, tuple[object, ...]]) -> list[JobRow]:
    """Query the jobs and return those that have changed since, in the order of their changes."""
    states = [state for state in _QUERIES if state is None or state in wanted.get("state", _QUERIES)]
    filters = [wanted if state is None else wanted | {"state": [state]} for state in states]
    found = [job for narrow in filters for job in op.run(jobs.listed, narrow, None, 200).jobs]
    latest = {job.id: job for job in sorted(found, key=lambda job: job.updated_at)}
    new = []
    for job in latest.values():
        # Not updated_at: a heartbeat is no change.
        mark = (job.state, job.parked, job.attempt, job.retry_count, job.progress, job.progress_note, job.reason)
        if seen.get(job.id) != mark:
            new.append(job)
        seen[job.id] = mark
        seen.move_to_end(job.id)
    while len(seen) > 20_000:  # jobs whose last known state is remembered
        seen.popitem(last=False)
    return sorted(new, key=lambda job: (job.updated_at, str(job.id)))


@commands.command("retry")
@filtered(without=("state",))
def retry(
    op: Session,
    wanted: dict[str, Any],
    ids: Ids = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    most: Most = _COUNTED,
) -> None:
    """Retry dead jobs: those with these ids, or all that fit."""
    _change(op, jobs.RETRY, ids, wanted, None, dry_run=dry_run, yes=yes, most=most)


@commands.command("cancel")
@filtered()
def cancel(
    op: Session,
    wanted: dict[str, Any],
    ids: Ids = None,
    *,
    why: Annotated[str | None, Option("--why", help="Kept with each job.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    most: Most = _COUNTED,
) -> None:
    """Cancel jobs: those with these ids, or all that fit and have not finished."""
    _change(op, jobs.CANCEL, ids, wanted, why, dry_run=dry_run, yes=yes, most=most)


def _change(
    op: Session,
    change: Change,
    ids: list[str] | None,
    wanted: dict[str, Any],
    why: str | None,
    *,
    dry_run: bool,
    yes: bool,
    most: int,
) -> None:
    if ids and (wanted or dry_run):
        raise ConfigError("ids go with neither a filter nor --dry-run", hint="give the one or the other")
    if ids:
        _change_each(op, change, list(dict.fromkeys(map(job_id, ids))), why)
        return
    if not wanted:
        raise ConfigError("which jobs?", hint="give ids, or a filter such as --kind or --queue")
    if change is jobs.RETRY:  # what fails again meanwhile is not retried twice
        wanted = {**wanted, "finished_before": op.run(system.clock).isoformat()}
    found = _counted(op, change, wanted, min(most, _COUNTED))
    if not found.matched:
        _check_names(op, wanted)
    words = f"{change.verb} {console.many(found.matched, 'job', capped=found.capped)}"
    more = found.matched > 0 and not dry_run
    if more:
        console.confirm(words, yes=yes, as_json=op.as_json, otherwise="nothing was changed")
    changed, capped = 0, found.capped or more
    cursor, before, skipped = None, 0, False
    with console.interruptible("this batch") as interrupt, console.progress_bar(change.verb, found.matched) as bar:
        while more and changed < most and not interrupt.is_set():
            limit = min(_BATCH, most - changed)
            batch = op.run(jobs.change_matching, change, wanted, limit, dry_run=False, why=why, cursor=cursor)
            changed += batch.changed
            cursor, skipped = batch.cursor, skipped or batch.changed < batch.matched
            capped = cursor is not None or skipped
            if cursor is None:
                # All was looked at, without the jobs that others were writing: end when only those are left.
                more, before, skipped = skipped and changed > before, changed, False
            bar(completed=changed)
    result = {"matched": max(changed, found.matched), "changed": changed, "capped": capped, "dry_run": dry_run}
    op.answer(result, console.count(found.matched, capped) if dry_run else changed)
    rest = "; there may be more that fit" if capped else ""
    done = f"{change.done} {console.many(changed, 'job')}{rest}"
    console.say(f"would {words}; nothing was changed" if dry_run else done)
    if interrupt.is_set():
        raise Exit(130)


def _counted(op: Session, change: Change, wanted: dict[str, Any], most: int) -> Changed:
    """Count the jobs that match, up to `most`, in as many calls as it takes to look at all."""
    found = op.run(jobs.change_matching, change, wanted, most, dry_run=True)
    while found.cursor is not None and found.matched < most:
        more = op.run(jobs.change_matching, change, wanted, most - found.matched, dry_run=True, cursor=found.cursor)
        found = replace(more, matched=found.matched + more.matched)
    return found


def _change_each(op: Session, change: Change, ids: list[UUID], why: str | None) -> None:
    results: list[tuple[UUID, str]] = []
    with console.interruptible("this job") as interrupt, console.progress_bar(change.verb, len(ids)) as bar:
        for number, job in enumerate(ids):
            if interrupt.is_set():
                break
            try:
                results.append((job, change.done if op.run(jobs.change, change, job, why) else change.refused))
            except JobUnknown:
                results.append((job, "unknown"))
            bar(completed=number + 1)
    op.table(
        results,
        ("id", "outcome"),
        lambda result: result,
        as_value=lambda result: {"job_id": result[0], "changed": result[1] == change.done, "outcome": result[1]},
    )
    if interrupt.is_set():
        raise Exit(130)
    if any(outcome != change.done for _, outcome in results):
        raise Exit(1)
