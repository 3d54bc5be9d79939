"""`leasehold jobs retry` and `cancel`: one job, some, or all that fit a filter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import typer

from leasehold.cli import choosing
from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import is_terminal, progress_bar, say, show_table
from leasehold.cli.interrupts import Interruptible
from leasehold.cli.jobs import ids_of
from leasehold.cli.names import check_names
from leasehold.cli.words import count, many
from leasehold.db.call import Call
from leasehold.db.pool import Database
from leasehold.db.store import Changed
from leasehold.errors import ConfigError, JobUnknown

_BATCH = 500
_MOST = 10_000
"""So many are counted in a dry run, at most."""

Ids = Annotated[list[str] | None, typer.Argument(help="Their ids; or leave them out and give a filter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many fit, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Most = Annotated[int, typer.Option("--max", min=1, max=10_000_000, help="With a filter: change no more than so many.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is done to jobs."""

    verb: str
    done: str
    refused: str
    """What is said of a job that it cannot be done to."""
    one: Callable[[UUID], Call[bool]]
    batch: Callable[[dict[str, Any], int, bool], Call[Changed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    dry_run: bool
    yes: bool
    most: int
    as_json: bool


def retry(  # noqa: PLR0913 (each is an option)
    ids: Ids = None,
    *,
    kind: choosing.Kind = None,
    queue: choosing.Queue = None,
    tag: choosing.Tag = None,
    exclusive_key: choosing.ExclusiveKey = None,
    error: choosing.ErrorClass = None,
    since: choosing.Since = None,
    before: choosing.Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    most: Most = _MOST,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Give dead jobs another chance: those with these ids, or all that fit."""
    wanted = choosing.make_filter(
        kind=kind, queue=queue, tag=tag, exclusive_key=exclusive_key, error=error, since=since, before=before
    )
    _check(ids, wanted, dry_run=dry_run)
    with connected(dsn, schema) as database:
        store = database.store
        change = _Change(
            verb="retry",
            done="retried",
            refused="is not dead",
            one=store.retry,
            batch=lambda which, limit, dry: store.retry_many(which, limit, dry_run=dry),
        )
        how = _How(dry_run=dry_run, yes=yes, most=most, as_json=as_json)
        _by_ids(database, change, ids_of(ids), how) if ids else _by_filter(database, change, wanted, how)


def cancel(  # noqa: PLR0913 (each is an option)
    ids: Ids = None,
    *,
    why: Annotated[str | None, typer.Option("--why", help="Kept with each job.")] = None,
    state: choosing.State = None,
    kind: choosing.Kind = None,
    queue: choosing.Queue = None,
    tag: choosing.Tag = None,
    exclusive_key: choosing.ExclusiveKey = None,
    error: choosing.ErrorClass = None,
    since: choosing.Since = None,
    before: choosing.Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    most: Most = _MOST,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Stop jobs for good: those with these ids, or all that fit and have not ended."""
    wanted = choosing.make_filter(
        state=state,
        kind=kind,
        queue=queue,
        tag=tag,
        exclusive_key=exclusive_key,
        error=error,
        since=since,
        before=before,
    )
    _check(ids, wanted, dry_run=dry_run)
    with connected(dsn, schema) as database:
        store = database.store
        change = _Change(
            verb="cancel",
            done="cancelled",
            refused="had ended otherwise",
            one=lambda job: store.cancel(job, why),
            batch=lambda which, limit, dry: store.cancel_many(which, limit, dry_run=dry, why=why),
        )
        how = _How(dry_run=dry_run, yes=yes, most=most, as_json=as_json)
        _by_ids(database, change, ids_of(ids), how) if ids else _by_filter(database, change, wanted, how)


def _check(ids: list[str] | None, wanted: dict[str, Any], *, dry_run: bool) -> None:
    if ids and (wanted or dry_run):
        raise ConfigError("ids go with neither a filter nor --dry-run", hint="give the one or the other")
    if not ids and not wanted:
        raise ConfigError("which jobs?", hint="give ids, or a filter such as --kind or --queue")
    if ids:
        ids_of(ids)  # before anything is done


def _by_ids(database: Database, change: _Change, ids: list[UUID], how: _How) -> None:
    results: list[tuple[UUID, str]] = []
    with Interruptible("this job") as interrupt, progress_bar(change.verb, len(ids)) as bar:
        for number, job in enumerate(ids):
            if interrupt.wanted:
                break
            try:
                results.append((job, change.done if database.run(change.one(job)) else change.refused))
            except JobUnknown:
                results.append((job, "unknown"))
            bar.show(number + 1)
    if how.as_json:
        print_json([{"job_id": job, "changed": said == change.done, "outcome": said} for job, said in results])
    else:
        show_table(("id", "outcome"), results)
    interrupt.end()
    if any(said != change.done for _, said in results):
        raise typer.Exit(1)


def _by_filter(database: Database, change: _Change, wanted: dict[str, Any], how: _How) -> None:
    limit = min(how.most, _MOST)
    found = database.run(change.batch(wanted, limit, True))
    if not found.matched:
        check_names(database, queue=wanted.get("queue"), kind=wanted.get("kind"))
    if how.dry_run or not found.matched:
        _tell(found.matched, 0, found.capped, change, how)
        return
    _confirm(f"{change.verb} {many(found.matched, 'job', capped=found.capped)}", how)
    changed = 0
    capped = True
    with Interruptible("this batch") as interrupt, progress_bar(change.verb, found.matched) as bar:
        while capped and changed < how.most and not interrupt.wanted:
            batch = database.run(change.batch(wanted, min(_BATCH, how.most - changed), False))
            changed += batch.changed
            # Jobs that others are writing are left out: once nothing else is left, enough.
            capped = batch.capped and batch.changed > 0
            bar.show(changed)
    _tell(max(changed, found.matched), changed, capped, change, how)
    interrupt.end()


def _confirm(what: str, how: _How) -> None:
    if how.yes:
        return
    if how.as_json or not is_terminal():
        raise ConfigError(f"this would {what}", hint="add --yes to do it, or --dry-run to only look")
    if not typer.confirm(f"{what}?", err=True):
        say("nothing was changed")
        raise typer.Exit(1)


def _tell(matched: int, changed: int, capped: bool, change: _Change, how: _How) -> None:
    if how.as_json:
        print_json({"matched": matched, "changed": changed, "capped": capped, "dry_run": how.dry_run})
    elif how.dry_run:
        typer.echo(count(matched, capped))
    else:
        typer.echo(str(changed))
    if how.dry_run:
        say(f"would {change.verb} {many(matched, 'job', capped=capped)}; nothing was changed")
    else:
        say(f"{change.done} {many(changed, 'job')}" + ("; there may be more that fit" if capped and changed else ""))
