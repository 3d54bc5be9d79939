"""Canary retries: the dead jobs of one kind and error class, a few first, and the rest if these succeed."""

from uuid import UUID

from leasehold.db.store import Canary
from leasehold.errors import JobUnknown
from leasehold.operate.caller import Caller
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import Refusal, unknown


async def listed(op: Operator, limit: int = 1000) -> list[Canary]:
    """Return the latest ones, as far as the caller may see all queues that they are for."""
    return [row for row in await op.ask(op.store.canaries(limit)) if _may_see(op.caller, row)]


async def start(op: Operator, kind: str, error_class: str | None) -> Canary:
    """Start one in all queues that the caller may change, or return the one that runs for the group already."""
    queues = op.caller.narrow(kind=kind)["queues"]
    try:
        started = await op.ask(op.store.canary_start(kind, error_class, by=op.caller.name, queues=queues))
    except JobUnknown:
        raise Refusal("unknown", "no dead job of that type has that class of error") from None
    return await _one(op, started)


async def stop(op: Operator, canary: UUID) -> Canary:
    """Retry no more jobs of it; those that were retried run on."""
    await _one(op, canary)
    await op.ask(op.store.canary_stop(canary, op.caller.name))
    return await _one(op, canary)


async def _one(op: Operator, canary: UUID) -> Canary:
    for row in await op.ask(op.store.canaries(1, canary)):
        if _may_see(op.caller, row):
            return row
    raise unknown("canary")


def _may_see(caller: Caller, row: Canary) -> bool:
    return caller.may(queue=None, kind=row.kind) and (
        caller.queues is None or (row.queues is not None and set(row.queues) <= caller.queues)
    )
