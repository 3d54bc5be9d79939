"""`leasehold enqueue`: record a job by hand, and wait for what comes of it."""

import json
import sys
import time
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeAlias
from uuid import UUID

import typer

from leasehold.cli import completion
from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import progress_bar, say
from leasehold.cli.loading import load_app
from leasehold.cli.names import check_names
from leasehold.cli.parsing import arguments, json_value, length, moment
from leasehold.db.pool import Database
from leasehold.db.store import JobStatus
from leasehold.errors import ConfigError, JobCancelled, JobFailed, JobUnknown, ResultTimeout
from leasehold.intent import Intent

_PAUSE = 0.2
"""Seconds between two looks at a job that is waited for."""

Kind: TypeAlias = Annotated[
    str, typer.Argument(help="The kind of the job.", show_default=False, autocompletion=completion.kinds)
]
Params: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="NAME=TEXT|NAME:=JSON", help="An argument: to=ada, n:=3; several times."),
]
Payload: TypeAlias = Annotated[
    str | None, typer.Option("--payload", help="All arguments as a JSON object; - reads it from standard input.")
]
AppPlace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="module:app, to check the arguments; its task's options count, not those that workers declared.",
    ),
]
Queue: TypeAlias = Annotated[
    str | None, typer.Option("--queue", "-q", help="Where it waits.", autocompletion=completion.queues)
]
Priority: TypeAlias = Annotated[int | None, typer.Option("--priority", help="Higher is more urgent.")]
MaxAttempts: TypeAlias = Annotated[int | None, typer.Option("--max-attempts", help="How many failures end it.")]
RunAt: TypeAlias = Annotated[str | None, typer.Option("--run-at", help="Not before: 2030-01-31T12:00:00Z.")]
Delay: TypeAlias = Annotated[str | None, typer.Option("--in", help="Not before this time is over: 5m.")]
Key: TypeAlias = Annotated[str | None, typer.Option("--key", help="Idempotency key: at most one job of it, ever.")]
ExclusiveKey: TypeAlias = Annotated[
    str | None, typer.Option("--exclusive-key", help="At most one job of this key runs at a time.")
]
Tags: TypeAlias = Annotated[list[str] | None, typer.Option("--tag", help="For people to find it by; several times.")]
Wait: TypeAlias = Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print its result.")]
Timeout: TypeAlias = Annotated[str | None, typer.Option("--timeout", help="Wait no longer than this: 30s.")]
Anyway: TypeAlias = Annotated[bool, typer.Option("--anyway", help="Also if no worker has ever known the kind.")]


def command(  # noqa: PLR0913 (each is an option)
    kind: Kind,
    *,
    param: Params = None,
    payload: Payload = None,
    app: AppPlace = None,
    queue: Queue = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    run_at: RunAt = None,
    delay: Delay = None,
    key: Key = None,
    exclusive_key: ExclusiveKey = None,
    tag: Tags = None,
    wait: Wait = False,
    timeout: Timeout = None,
    anyway: Anyway = False,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Record a job and print its id; with --wait, print its result: 0 if it succeeded, 1 if it is dead."""
    if timeout is not None and not wait:
        raise ConfigError("--timeout goes only with --wait", hint="add --wait")
    patience = None if timeout is None else length(timeout, option="--timeout").total_seconds()
    options: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "run_after": _run_after(run_at, delay),
        "idempotency_key": key,
        "exclusive_key": exclusive_key,
        "tags": tuple(tag) if tag else None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    intent = _intent(app, kind, _payload(param or [], payload), given)
    with connected(dsn, schema) as database:
        if app is None and not anyway:
            check_names(database, kind=kind, more="; --anyway records it nevertheless")
        job = _record(database, intent)
        if wait:
            _finish(_wait(database, job, patience), as_json=as_json)
            return
        recorded = database.run(database.store.status(job)) if as_json else None
    if as_json:
        print_json({"job_id": job, "job_type": kind, "queue": recorded and recorded.queue})
    else:
        typer.echo(str(job))


def _payload(params: list[str], payload: str | None) -> dict[str, Any]:
    if payload is None:
        return arguments(params)
    if params:
        raise ConfigError("--payload does not go with -p", hint="leave one of them out")
    value = json_value(sys.stdin.read() if payload == "-" else payload, option="--payload")
    if not isinstance(value, dict):
        raise ConfigError(f"--payload is no JSON object but {json.dumps(value)[:100]}", hint='such as {"to": "ada"}')
    return value


def _run_after(run_at: str | None, delay: str | None) -> datetime | timedelta | None:
    if run_at is not None and delay is not None:
        raise ConfigError("--run-at does not go with --in", hint="leave one of them out")
    if run_at is not None:
        return moment(run_at, option="--run-at")
    return None if delay is None else length(delay, option="--in")


def _intent(app: str | None, kind: str, payload: dict[str, Any], options: dict[str, Any]) -> Intent:
    if app is not None:
        task = load_app(app).find(kind)
        text = task.arguments.encode((), task.arguments.decode(json.dumps(payload)))
        own: dict[str, Any] = {
            "queue": task.options.queue,
            "priority": task.options.priority,
            "max_attempts": task.options.max_attempts,
        }
        return Intent(kind=kind, payload=text, **(own | options))
    return Intent(kind=kind, payload=json.dumps(payload), **options)


def _record(database: Database, intent: Intent) -> UUID:
    [new] = database.new_ids(1)
    job = database.run(database.store.enqueue(intent, id=new, notify=True))
    if str(job) != new:
        say(f"the key {intent.idempotency_key!r} has a job already: this is it")
    return job


def _wait(database: Database, job: UUID, patience: float | None) -> JobStatus:
    end = None if patience is None else time.monotonic() + patience
    with progress_bar(f"job {job}", 1.0) as bar:
        while True:
            now = database.run(database.store.status(job))
            if now is None:
                raise JobUnknown(f"no job has the id {job} any more", hint="was it pruned?")
            if now.finished_at is not None:
                return now
            bar.show(now.progress or 0.0, " ".join(filter(None, [f"job {job}", now.state, now.progress_note])))
            if end is not None and time.monotonic() >= end:
                raise ResultTimeout(
                    f"job {job} is still {now.state} after {patience:g} s",
                    hint=f"it goes on: leasehold jobs show {job}",
                )
            time.sleep(_PAUSE if end is None else max(0.0, min(_PAUSE, end - time.monotonic())))


def _finish(job: JobStatus, *, as_json: bool) -> None:
    result = job.result
    if as_json:
        print_json(
            {
                "job_id": job.id,
                "job_type": job.kind,
                "queue": job.queue,
                "status": job.status,
                "result": result,
                "reason": job.reason,
                "reason_detail": job.reason_detail,
                "finished_at": job.finished_at,
            }
        )
    elif job.state == "success":
        typer.echo(json.dumps(result))
    if job.state != "success":
        error = JobCancelled if job.reason == "cancelled" else JobFailed
        words = f": {job.reason_detail}" if job.reason_detail else ""
        hint = f"leasehold jobs show {job.id}"
        raise error(
            f"job {job.id} is dead, {job.reason}{words}",
            reason=job.reason or "",
            error_class=job.error_class,
            hint=hint,
        )
