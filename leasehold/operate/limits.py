"""Limits: how many jobs may run at the same time."""

from typing import Final

from leasehold.db.store import LimitRow
from leasehold.operate.caller import Caller
from leasehold.operate.operator import Operator
from leasehold.operate.refusals import Refusal, unknown

SCOPES: Final = ("global", "queue", "kind", "key")
"""Of all jobs, of a queue, of a kind, of exclusive keys that begin alike."""


async def listed(op: Operator) -> list[LimitRow]:
    """Return the limits that the caller may see, and what runs under each."""
    return [row for row in await op.ask(op.store.limits()) if _may_see(op.caller, row.scope, row.name)]


async def set_limit(op: Operator, scope: str, name: str, max_running: int) -> None:
    """Let at most so many jobs run at the same time; those that run already go on."""
    check_change(op.caller, scope, name)
    await op.ask(op.store.set_limit(scope, name, max_running))


async def drop(op: Operator, scope: str, name: str) -> None:
    """Remove a limit."""
    check_change(op.caller, scope, name)
    if not await op.ask(op.store.drop_limit(scope, name)):
        raise unknown("limit")


def check_change(caller: Caller, scope: str, name: str) -> None:
    """Refuse a caller that may not change this limit."""
    if not _may_see(caller, scope, name):
        raise unknown("limit")
    # A queue holds other kinds too, and a kind runs in other queues.
    if (scope == "queue" and caller.kinds is not None) or (scope == "kind" and caller.queues is not None):
        raise Refusal("forbidden", f"a limit on a whole {scope} needs a token for all of it")


def _may_see(caller: Caller, scope: str, name: str) -> bool:
    return not caller.restricted or name in ({"queue": caller.queues, "kind": caller.kinds}.get(scope) or ())
