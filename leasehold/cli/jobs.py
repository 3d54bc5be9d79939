"""`leasehold jobs`: look at jobs, and look after them."""

import json
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from leasehold.cli import choosing
from leasehold.cli.connected import AsJson, Dsn, Schema, connected, plain, print_json
from leasehold.cli.console import say, show_table, shown
from leasehold.cli.names import check_names
from leasehold.cli.parsing import job_id
from leasehold.cli.words import when
from leasehold.db.pool import Database
from leasehold.db.store import JobDetail, JobPage, JobRow, LogRow, Obstacle
from leasehold.errors import InvalidJob, JobUnknown

commands = typer.Typer(name="jobs", help="Look at jobs, and look after them.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="The job's id.", show_default=False)]

COLUMNS = ("id", "kind", "queue", "state", "attempt", "created", "updated", "note")
_LESS = ("updated", "created", "attempt", "queue")
"""What a narrow terminal leaves out first."""


@commands.command("list")
def list_(  # noqa: PLR0913 (each is an option)
    *,
    state: choosing.State = None,
    kind: choosing.Kind = None,
    queue: choosing.Queue = None,
    tag: choosing.Tag = None,
    exclusive_key: choosing.ExclusiveKey = None,
    error: choosing.ErrorClass = None,
    since: choosing.Since = None,
    before: choosing.Before = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where a list with this filter ended.")] = None,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """List jobs: the latest first; those of one state in the order that fits it (queued: as they are claimed)."""
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
    with connected(dsn, schema) as database:
        page = _pages(database, wanted, cursor, limit)
        if not page.jobs and page.cursor is None:
            check_names(database, queue=queue, kind=kind)
    if as_json:
        print_json({"jobs": plain([job_json(job) for job in page.jobs]), "cursor": page.cursor})
        return
    show_table(COLUMNS, (job_cells(job) for job in page.jobs), right=("attempt",), less=_LESS)
    if page.cursor is not None:
        say(f"there are more; go on with --cursor '{page.cursor}'")
    elif not page.jobs:
        say("no job fits")


def _pages(database: Database, wanted: dict[str, Any], cursor: str | None, limit: int) -> JobPage:
    """As many pages as it takes. A page may be short and yet not be the last."""
    jobs: list[JobRow] = []
    while True:
        try:
            page = database.run(database.store.list_jobs(wanted, cursor, min(1000, limit - len(jobs))))
        except InvalidJob as problem:
            if cursor is None:
                raise
            hint = "give the one that the list before ended with, and the same filter"
            raise InvalidJob(f"--cursor {cursor!r} is of no use: {problem.args[0]}", hint=hint) from None
        jobs += page.jobs
        cursor = page.cursor
        if cursor is None or len(jobs) >= limit:
            return JobPage(jobs, cursor)


@commands.command("show")
def show(job: Id, *, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Show everything about a job: what it carries, its failed attempts, what it said, why it is not running."""
    wanted = job_id(job)
    with connected(dsn, schema) as database:
        detail = database.run(database.store.job_detail(wanted))
        if detail is None:
            raise JobUnknown(f"no job has the id {wanted}", hint="was its transaction rolled back, or was it pruned?")
        logs = database.run(database.store.logs(wanted))
        obstacles = database.run(database.store.explain(wanted))
    if as_json:
        print_json(_detail_json(detail, logs, obstacles))
        return
    for line in _detail_lines(detail, logs, obstacles):
        typer.echo(line)


@commands.command("explain")
def explain(job: Id, *, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Say why a job is not running, what to look at first on top."""
    wanted = job_id(job)
    with connected(dsn, schema) as database:
        obstacles = database.run(database.store.explain(wanted))
    if as_json:
        print_json({"job_id": wanted, "reasons": obstacles})
        return
    for obstacle in obstacles:
        typer.echo(f"{obstacle.reason}: {shown(obstacle.detail)}")
    if not obstacles:
        say("nothing is in its way: a worker may take it any moment")


# -- how a job looks


def job_json(job: JobRow) -> dict[str, Any]:
    """A job as the HTTP API writes it."""
    rest = {name: value for name, value in asdict(job).items() if name not in ("id", "kind")}
    return {"job_id": job.id, "job_type": job.kind, **rest}


def job_cells(job: JobRow) -> tuple[object, ...]:
    """A job as a line of a table."""
    return (
        job.id, job.kind, job.queue, job.state, f"{job.attempt}/{job.max_attempts}", when(job.created_at),
        when(job.updated_at), note(job),
    )  # fmt: skip


def note(job: JobRow) -> str:
    """What there is to say about a job in its state."""
    match job.state:
        case "running":
            done = f"{job.progress:.0%} {job.progress_note or ''}".strip() if job.progress is not None else ""
            return ", ".join(filter(None, [f"worker {job.lease_owner}", done]))
        case "queued" if job.parked:
            return f"waits for {job.exclusive_key}"
        case "created" if not job.accepted:
            return "not accepted"
        case "created" | "retry":
            error = f", {job.error_class}" if job.error_class else ""
            return f"from {when(job.run_at)}{error}"
        case "dead":
            return ", ".join(filter(None, [job.reason, job.error_class]))
        case _:
            return ""


def _detail_json(detail: JobDetail, logs: list[LogRow], obstacles: list[Obstacle]) -> dict[str, Any]:
    return {
        **job_json(detail.job),
        "idempotency_key": detail.idempotency_key,
        "reason_detail": detail.reason_detail,
        "payload": json.loads(detail.payload),
        "result": None if detail.result is None else json.loads(detail.result),
        "attempts": detail.attempts,
        "logs": logs,
        "reasons": obstacles,
    }


def _detail_lines(detail: JobDetail, logs: list[LogRow], obstacles: list[Obstacle]) -> list[str]:
    job = detail.job
    facts: dict[str, object] = {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "state": f"{job.state} ({job.status})" + (", parked" if job.parked else ""),
        "reason": ": ".join(filter(None, [job.reason, detail.reason_detail])),
        "priority": job.priority,
        "attempts": f"{job.attempt}, failures {job.retry_count} of {job.max_attempts}",
        "lease": f"worker {job.lease_owner} until {when(job.lease_expires_at)}" if job.lease_owner else "",
        "progress": "" if job.progress is None else f"{job.progress:.0%} {job.progress_note or ''}".strip(),
        "created": when(job.created_at),
        "may run from": when(job.run_at),
        "claimed": when(job.claimed_at) if job.claimed_at else "",
        "finished": when(job.finished_at) if job.finished_at else "",
        "idempotency key": detail.idempotency_key,
        "exclusive key": job.exclusive_key,
        "tags": ", ".join(job.tags or ()),
        "payload": detail.payload,
        "result": detail.result,
    }
    lines = [f"{name:<16} {shown(str(value))}" for name, value in facts.items() if value not in (None, "")]
    lines += [f"{'not running':<16} {shown(o.detail)}" for o in obstacles if o.reason not in ("finished", "running")]
    for attempt in detail.attempts:
        error = ": ".join(filter(None, [attempt.error_class, attempt.error_message]))
        times = f"{when(attempt.claimed_at)} to {when(attempt.ended_at)}"
        lines += ["", f"attempt {attempt.attempt}, {attempt.outcome}, {times}, worker {attempt.worker}"]
        lines += [f"  {shown(line)}" for line in (attempt.error_traceback or error).splitlines()]
    for log in logs:
        lines += ["", f"said in attempt {log.attempt}"]
        lines += [f"  {shown(' '.join(map(str, line)))}" for line in log.lines]
    return lines


def ids_of(texts: list[str]) -> list[UUID]:
    """The ids that were given, each once, in order."""
    return list(dict.fromkeys(map(job_id, texts)))
