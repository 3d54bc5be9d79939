"""`leasehold schedules`: what runs again and again, and when."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.db.pool import Database
from leasehold.db.store import StoredSchedule
from leasehold.errors import ConfigError, JobUnknown

commands = typer.Typer(name="schedules", help="What runs again and again, and when.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(help="The key of the schedule, as `schedules list` shows it.", show_default=False)]


@commands.command("list")
def list_(*, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """List the schedules: key, rule, kind, state, next run, what became of the runs so far."""
    with connected(dsn, schema) as database:
        schedules = database.run(database.store.schedule_list())
    if as_json:
        print_json([_as_json(schedule) for schedule in schedules])
        return
    show_table(("key", "rule", "kind", "next run", "runs", "problem"), map(_line, schedules))
    if not schedules:
        say("there are no schedules; declare some with @app.schedule and start a worker")


@commands.command("next")
def next_(
    key: Annotated[str | None, typer.Argument(help="Only this schedule.", show_default=False)] = None,
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many runs.")] = 5,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show the next runs, of one schedule or of all, the soonest first. Those that are disabled have none."""
    with connected(dsn, schema) as database:
        schedules = database.run(database.store.schedule_list(key))
        if key is not None and not schedules:
            raise _unknown(database, key)
    runs: list[tuple[datetime, str]] = []
    for schedule in schedules:
        try:
            runs += [(due, schedule.key) for due in schedule.upcoming(count)]
        except ConfigError as problem:  # SQL took a rule that makes no sense
            say(f"schedule {schedule.key!r} cannot be fired: {problem}")
    runs = sorted(runs)[:count]
    if as_json:
        print_json([{"key": key, "run_at": due.isoformat()} for due, key in runs])
        return
    show_table(("at", "key"), ((due.isoformat(), name) for due, name in runs))


@commands.command("run")
def run(
    key: Key,
    *,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", help="Repeated with the same key, it prints the same job.", show_default=False
        ),
    ] = None,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue one job of a schedule now, and print its id. The next run stays where it is."""
    with connected(dsn, schema) as database, _named(database, key):
        [job_id] = database.new_ids(1)
        job = database.run(database.store.schedule_run_now(key, job_id, idempotency_key))
    if as_json:
        print_json({"key": key, "job_id": str(job)})
        return
    typer.echo(str(job))


@commands.command("enable")
def enable(
    key: Key,
    *,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Forget what came due while it was disabled, instead of missing it.")
    ] = False,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Switch a schedule on. What came due meanwhile counts as missed: its policy says what becomes of it."""
    with connected(dsn, schema) as database, _named(database, key):
        changed = database.run(database.store.schedule_enable(key, from_now=from_now))
    _tell(key, enabled=True, changed=changed, as_json=as_json)


@commands.command("disable")
def disable(key: Key, *, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Switch a schedule off, until somebody switches it on: a new release does not."""
    with connected(dsn, schema) as database, _named(database, key):
        changed = database.run(database.store.schedule_disable(key))
    _tell(key, enabled=False, changed=changed, as_json=as_json)


@commands.command("remove")
def remove(key: Key, *, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Take a schedule away; its jobs stay. Code that declares it makes it anew when a worker starts."""
    with connected(dsn, schema) as database:
        if not database.run(database.store.schedule_remove(key)):
            raise _unknown(database, key)
    if as_json:
        print_json({"key": key, "removed": True})
    say(f"schedule {key!r} is removed")


@contextmanager
def _named(database: Database, key: str) -> Iterator[None]:
    """An unknown key is told with those that are known."""
    try:
        yield
    except JobUnknown:
        raise _unknown(database, key) from None


def _unknown(database: Database, key: str) -> JobUnknown:
    known = [schedule.key for schedule in database.run(database.store.schedule_list())]
    return JobUnknown(f"schedule {key!r} unknown", hint=f"known: {', '.join(known) or 'none'}")


def _tell(key: str, *, enabled: bool, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"key": key, "enabled": enabled, "changed": changed})
    state = "enabled" if enabled else "disabled"
    say(f"schedule {key!r} is {state}" if changed else f"schedule {key!r} was {state} already")


def _line(schedule: StoredSchedule) -> list[str]:
    if not schedule.enabled:
        state = "disabled"
    elif schedule.over:
        state = "over"
    else:
        state = schedule.next_run_at.isoformat() if schedule.next_run_at else "to be planned"
    rule = f"{schedule.cron} ({schedule.time_zone})" if schedule.cron else f"every {schedule.every}"
    counts = f"fired {schedule.fired}, missed {schedule.missed_runs}, overlapped {schedule.overlapped}"
    return [schedule.key, rule, schedule.kind, state, counts, *([schedule.problem] if schedule.problem else [])]


def _as_json(schedule: StoredSchedule) -> dict[str, Any]:
    return {field.name: _plain(getattr(schedule, field.name), field.name) for field in fields(schedule)}


def _plain(value: Any, name: str) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case str() if name == "payload":
            return json.loads(value)
        case None | bool() | int() | list():
            return value
        case _:
            return str(value)
