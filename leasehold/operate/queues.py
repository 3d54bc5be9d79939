"""Queues: what waits and runs in each, how fast each fills and empties; pause and resume."""

from leasehold.db.store import QueueRow, Rate
from leasehold.operate.operator import Operator


async def listed(op: Operator) -> list[QueueRow]:
    """Return every queue that has jobs or had some lately, is declared, paused, limited or served by a live worker."""
    return await op.ask(op.store.queues(**op.caller.narrow()))


async def rates(op: Operator) -> list[Rate]:
    """Return how fast each queue fills and empties."""
    return await op.ask(op.store.rates(**op.caller.narrow()))


async def pause(op: Operator, queue: str, reason: str | None) -> None:
    """Let no job of the queue be claimed; those that run go on."""
    op.caller.check_whole_queue(queue)
    await op.ask(op.store.pause(queue, reason, op.caller.name or None))


async def resume(op: Operator, queue: str) -> bool:
    """Let the queue's jobs be claimed again; False: it was not paused."""
    op.caller.check_whole_queue(queue)
    return await op.ask(op.store.resume(queue))
