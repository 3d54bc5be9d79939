"""`leasehold enqueue`: record a job by hand, and wait for its result."""

import json
import sys
import time
from typing import Annotated, Any
from uuid import UUID

from typer import Argument, Option

from leasehold.cli import completion
from leasehold.cli.console import progress_bar, say, shown
from leasehold.cli.job_fields import with_fields
from leasehold.cli.options import Session, arguments, json_value, length
from leasehold.cli.running import load_app
from leasehold.db.database import Database
from leasehold.db.store import JobStatus
from leasehold.errors import ConfigError, JobCancelled, JobFailed, JobUnknown, ResultTimeout
from leasehold.intent import Intent

_PAUSE = 0.2
"""Seconds between two queries while it waits for a job."""


@with_fields
def command(
    op: Session,
    fields: dict[str, Any],
    kind: Annotated[str, Argument(help="The kind of the job.", show_default=False, autocompletion=completion.kinds)],
    *,
    param: Annotated[
        list[str] | None,
        Option("--param", "-p", metavar="NAME=TEXT|NAME:=JSON", help="An argument: to=ada, n:=3; several times."),
    ] = None,
    payload: Annotated[
        str | None, Option("--payload", help="All arguments as a JSON object; - reads it from standard input.")
    ] = None,
    app: Annotated[
        str | None,
        Option(
            "--app",
            help="module:app, to check the arguments; its task's options count, not those that workers declared.",
        ),
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait until it has ended, and print its result.")] = False,
    timeout: Annotated[str | None, Option("--timeout", help="Wait no longer than this: 30s.")] = None,
    anyway: Annotated[bool, Option("--anyway", help="Also if no worker has ever known the kind.")] = False,
) -> None:
    """Record a job and print its id; with --wait, print its result: 0 if it succeeded, 1 if it is dead."""
    if timeout is not None and not wait:
        raise ConfigError("--timeout goes only with --wait", hint="add --wait")
    patience = None if timeout is None else length(timeout, option="--timeout").total_seconds()
    intent = _intent(app, kind, _payload(param or [], payload), fields)
    database = op.database
    if app is None and not anyway:
        op.check_names(kind=kind, more="; --anyway records it nevertheless")
    [new] = database.new_ids(1)
    job = database.run(database.store.enqueue(intent, id=new))
    if str(job) != new:
        say(f"the key {intent.idempotency_key!r} has a job already: this is it")
    if wait:
        _finish(op, _wait(database, job, patience))
        return
    recorded = database.run(database.store.status(job)) if op.as_json else None
    op.answer({"job_id": job, "job_type": kind, "queue": recorded and recorded.queue}, job)


def _payload(params: list[str], payload: str | None) -> dict[str, Any]:
    if payload is None:
        return arguments(params)
    if params:
        raise ConfigError("--payload does not go with -p", hint="leave one of them out")
    value = json_value(sys.stdin.read() if payload == "-" else payload, option="--payload")
    if not isinstance(value, dict):
        raise ConfigError(f"--payload is no JSON object but {json.dumps(value)[:100]}", hint='such as {"to": "ada"}')
    return value


def _intent(app: str | None, kind: str, payload: dict[str, Any], fields: dict[str, Any]) -> Intent:
    if app is None:
        return Intent(kind=kind, payload=json.dumps(payload), **fields)
    task = load_app(app).find(kind)
    text = task.arguments.encode((), task.arguments.decode(json.dumps(payload)))
    return Intent(kind=kind, payload=text, **(task.options.of_jobs() | fields))


def _wait(database: Database, job: UUID, patience: float | None) -> JobStatus:
    end = None if patience is None else time.monotonic() + patience
    with progress_bar(f"job {job}", 1.0) as bar:
        while True:
            now = database.run(database.store.status(job))
            if now is None:
                raise JobUnknown(f"no job has the id {job} any more", hint="was it pruned?")
            if now.finished_at is not None:
                return now
            words = " ".join(filter(None, [f"job {job}", now.state, now.progress_note]))
            bar(completed=now.progress or 0.0, description=shown(words))
            if end is not None and time.monotonic() >= end:
                message = f"job {job} is still {now.state} after {patience:g} s"
                raise ResultTimeout(message, hint=f"it goes on: leasehold jobs show {job}")
            time.sleep(_PAUSE if end is None else max(0.0, min(_PAUSE, end - time.monotonic())))


def _finish(op: Session, job: JobStatus) -> None:
    names = ("queue", "status", "result", "reason", "reason_detail", "finished_at")
    value = {"job_id": job.id, "job_type": job.kind, **{name: getattr(job, name) for name in names}}
    succeeded = job.state == "success"
    op.answer(value, json.dumps(job.result) if succeeded else None)
    if not succeeded:
        error = JobCancelled if job.reason == "cancelled" else JobFailed
        message = f"job {job.id} is dead, {job.reason}" + (f": {job.reason_detail}" if job.reason_detail else "")
        raise error(message, reason=job.reason or "", error_class=job.error_class, hint=f"leasehold jobs show {job.id}")
