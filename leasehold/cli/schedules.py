"""`leasehold schedules`: what runs again and again, and when."""

import json
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeVar

from typer import Argument, Option

from leasehold.cli.console import say
from leasehold.cli.options import Commands, Session
from leasehold.db.store import StoredSchedule
from leasehold.errors import ConfigError, JobUnknown
from leasehold.operate import schedules
from leasehold.operate.operator import Operation
from leasehold.operate.refusals import Refusal

T = TypeVar("T")

commands = Commands(name="schedules", help="What runs again and again, and when.", no_args_is_help=True)

Key = Annotated[str, Argument(help="The key of the schedule, as `schedules list` shows it.", show_default=False)]


@commands.command("list")
def list_(op: Session) -> None:
    """List the schedules: key, rule, kind, state, next run, what became of the runs so far."""
    op.table(
        op.run(schedules.listed),
        ("key", "rule", "kind", "next run", "runs", "problem"),
        _cells,
        empty="there are no schedules; declare some with @app.schedule and start a worker",
        as_value=lambda row: asdict(row) | {"payload": json.loads(row.payload or "null")},
    )


@commands.command("next")
def next_(
    op: Session,
    key: Annotated[str | None, Argument(help="Only this schedule.", show_default=False)] = None,
    *,
    count: Annotated[int, Option("--count", "-n", min=1, max=1000, help="How many runs.")] = 5,
) -> None:
    """Show the next runs, of one schedule or of all, the soonest first. Those that are disabled have none."""
    found = op.run(schedules.listed, key)
    if key is not None and not found:
        raise _unknown(op, key)
    runs: list[tuple[datetime, str]] = []
    for schedule in found:
        try:
            runs += [(due, schedule.key) for due in schedule.upcoming(count)]
        except ConfigError as problem:  # SQL took a rule that makes no sense
            say(f"schedule {schedule.key!r} cannot be fired: {problem}")
    op.table(
        sorted(runs)[:count],
        ("at", "key"),
        lambda run: (run[0].isoformat(), run[1]),
        as_value=lambda run: {"key": run[1], "run_at": run[0]},
    )


@commands.command("run")
def run(
    op: Session,
    key: Key,
    *,
    idempotency_key: Annotated[
        str | None,
        Option("--idempotency-key", help="Repeated with the same key, it prints the same job.", show_default=False),
    ] = None,
) -> None:
    """Enqueue one job of a schedule now, and print its id. The next run stays where it is."""
    job = _run(op, schedules.run_now, key, *op.database.new_ids(1), idempotency_key)
    op.answer({"key": key, "job_id": job}, job)


@commands.command("enable")
def enable(
    op: Session,
    key: Key,
    *,
    from_now: Annotated[
        bool, Option("--from-now", help="Forget what came due while it was disabled, instead of missing it.")
    ] = False,
) -> None:
    """Switch a schedule on. What came due meanwhile counts as missed: its policy says what becomes of it."""
    changed = _run(op, schedules.enable, key, from_now=from_now)
    op.answer({"key": key, "enabled": True, "changed": changed})
    say(f"schedule {key!r} is enabled" if changed else f"schedule {key!r} was enabled already")


@commands.command("disable")
def disable(op: Session, key: Key) -> None:
    """Switch a schedule off, until an operator switches it on: a new release does not."""
    changed = _run(op, schedules.disable, key)
    op.answer({"key": key, "enabled": False, "changed": changed})
    say(f"schedule {key!r} is disabled" if changed else f"schedule {key!r} was disabled already")


@commands.command("remove")
def remove(op: Session, key: Key) -> None:
    """Take a schedule away; its jobs stay. Code that declares it makes it anew when a worker starts."""
    _run(op, schedules.remove, key)
    op.answer({"key": key, "removed": True})
    say(f"schedule {key!r} is removed")


def _run(op: Session, operation: Operation[..., T], key: str, *args: Any, **kwargs: Any) -> T:
    """Carry out an operation on a schedule; the error of an unknown key lists the known ones."""
    try:
        return op.run(operation, key, *args, **kwargs)
    except Refusal:
        raise _unknown(op, key) from None


def _unknown(op: Session, key: str) -> JobUnknown:
    known = [schedule.key for schedule in op.run(schedules.listed)]
    return JobUnknown(f"schedule {key!r} unknown", hint=f"known: {', '.join(known) or 'none'}")


def _cells(schedule: StoredSchedule) -> list[str]:
    planned = schedule.next_run_at.isoformat() if schedule.next_run_at else "to be planned"
    state = "disabled" if not schedule.enabled else "over" if schedule.over else planned
    rule = f"{schedule.cron} ({schedule.time_zone})" if schedule.cron else f"every {schedule.every}"
    counts = f"fired {schedule.fired}, missed {schedule.missed_runs}, overlapped {schedule.overlapped}"
    return [schedule.key, rule, schedule.kind, state, counts, *([schedule.problem] if schedule.problem else [])]
