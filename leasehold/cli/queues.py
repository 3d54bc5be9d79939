"""`leasehold queues`: what waits where; pause and resume."""

import getpass
from dataclasses import asdict
from typing import Annotated, Any

import typer

from leasehold.cli import completion
from leasehold.cli.connected import AsJson, Dsn, Schema, connected, print_json
from leasehold.cli.console import say, show_table
from leasehold.cli.names import check_names
from leasehold.cli.words import count, span, when
from leasehold.db.store import QueueRow, Rate

commands = typer.Typer(name="queues", help="What waits where; pause and resume.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The queue.", show_default=False, autocompletion=completion.queues)]


@commands.command("list")
def list_(*, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """List the queues that have to do with anything now: what can run, what runs, how long the oldest has waited."""
    with connected(dsn, schema) as database:
        queues = database.run(database.store.queues())
        rates = {rate.queue: rate for rate in database.run(database.store.rates())}
    pairs = [(queue, rates.get(queue.queue)) for queue in queues]
    if as_json:
        print_json([_as_json(queue, rate) for queue, rate in pairs])
        return
    columns = ("queue", "ready", "oldest", "running", "in/s", "out/s", "outlook", "limit", "paused")
    numbers = ("ready", "oldest", "running", "in/s", "out/s", "limit")
    show_table(columns, (_cells(queue, rate) for queue, rate in pairs), right=numbers)
    if not queues:
        say("no queue has anything to do")


def _as_json(queue: QueueRow, rate: Rate | None) -> dict[str, Any]:
    more = {} if rate is None else {"in_rate": rate.in_rate, "out_rate": rate.out_rate, "served": rate.served}
    verdict = {} if rate is None else {"outlook": rate.verdict.outlook, "outlook_in_words": rate.verdict.words}
    return {**asdict(queue), **more, **verdict}


def _cells(queue: QueueRow, rate: Rate | None) -> tuple[object, ...]:
    paused = ""
    if queue.paused_at is not None:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        paused = f"since {when(queue.paused_at)}{by}" + (f": {queue.reason}" if queue.reason else "")
    return (
        queue.queue,
        count(queue.ready, queue.ready_capped),
        span(rate.oldest_seconds if rate and rate.ready else None),
        count(queue.running, queue.running_capped),
        f"{rate.in_rate:.1f}" if rate else None,
        f"{rate.out_rate:.1f}" if rate else None,
        rate.verdict.words if rate else None,
        queue.max_running,
        paused,
    )


@commands.command("pause")
def pause(
    queue: Name,
    *,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why, for those who wonder.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also if nothing is known of such a queue.")] = False,
    dsn: Dsn = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Let no job of the queue be claimed; what runs goes on. Pausing again changes the reason."""
    with connected(dsn, schema) as database:
        if not anyway:
            check_names(database, queue=queue, more="; --anyway pauses it nevertheless")
        database.run(database.store.pause(queue, reason, _who()))
    if as_json:
        print_json({"queue": queue, "paused": True, "reason": reason})
    say(f"queue {queue!r} is paused; go on with: leasehold queues resume {queue}")


@commands.command("resume")
def resume(queue: Name, *, dsn: Dsn = None, schema: Schema = None, as_json: AsJson = False) -> None:
    """Let the queue's jobs be claimed again."""
    with connected(dsn, schema) as database:
        changed = database.run(database.store.resume(queue))
        if not changed:
            check_names(database, queue=queue)
    if as_json:
        print_json({"queue": queue, "paused": False, "changed": changed})
    say(f"queue {queue!r} goes on" if changed else f"queue {queue!r} was not paused")


def _who() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return None
