"""`leasehold queues`: what waits in each; pause and resume."""

from dataclasses import asdict
from typing import Annotated, Any

from typer import Argument, Option

from leasehold.cli import completion
from leasehold.cli.console import count, say, span, when
from leasehold.cli.options import Commands, Session
from leasehold.db.store import QueueRow, Rate
from leasehold.operate import queues

commands = Commands(name="queues", help="What waits where; pause and resume.", no_args_is_help=True)

Name = Annotated[str, Argument(help="The queue.", show_default=False, autocompletion=completion.queues)]


@commands.command("list")
def list_(op: Session) -> None:
    """List the queues that have to do with anything now: what can run, what runs, how long the oldest has waited."""
    rates = {rate.queue: rate for rate in op.run(queues.rates)}
    op.table(
        [(queue, rates.get(queue.queue)) for queue in op.run(queues.listed)],
        ("queue", "ready", "oldest", "running", "in/s", "out/s", "outlook", "limit", "paused"),
        lambda pair: _cells(*pair),
        right=("ready", "oldest", "running", "in/s", "out/s", "limit"),
        empty="no queue has anything to do",
        as_value=lambda pair: _as_json(*pair),
    )


def _as_json(queue: QueueRow, rate: Rate | None) -> dict[str, Any]:
    if rate is None:
        return asdict(queue)
    rates = {"in_rate": rate.in_rate, "out_rate": rate.out_rate, "served": rate.served}
    return {**asdict(queue), **rates, "outlook": rate.drain.outlook, "outlook_in_words": rate.drain.words}


def _cells(queue: QueueRow, rate: Rate | None) -> tuple[object, ...]:
    paused = ""
    if queue.paused_at is not None:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        paused = f"since {when(queue.paused_at)}{by}" + (f": {queue.reason}" if queue.reason else "")
    ready, running = count(queue.ready, queue.ready_capped), count(queue.running, queue.running_capped)
    oldest = span(rate.oldest_seconds if rate and rate.ready else None)
    rates = (f"{rate.in_rate:.1f}", f"{rate.out_rate:.1f}", rate.drain.words) if rate else (None, None, None)
    return (queue.queue, ready, oldest, running, *rates, queue.max_running, paused)


@commands.command("pause")
def pause(
    op: Session,
    queue: Name,
    *,
    reason: Annotated[str | None, Option("--reason", "-r", help="Why, for those who wonder.")] = None,
    anyway: Annotated[bool, Option("--anyway", help="Also if nothing is known of such a queue.")] = False,
) -> None:
    """Let no job of the queue be claimed; what runs goes on. Pausing again changes the reason."""
    if not anyway:
        op.check_names(queue=queue, more="; --anyway pauses it nevertheless")
    op.run(queues.pause, queue, reason)
    op.answer({"queue": queue, "paused": True, "reason": reason})
    say(f"queue {queue!r} is paused; go on with: leasehold queues resume {queue}")


@commands.command("resume")
def resume(op: Session, queue: Name) -> None:
    """Let the queue's jobs be claimed again."""
    changed = op.run(queues.resume, queue)
    if not changed:
        op.check_names(queue=queue)
    op.answer({"queue": queue, "paused": False, "changed": changed})
    say(f"queue {queue!r} goes on" if changed else f"queue {queue!r} was not paused")
