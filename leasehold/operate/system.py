"""The whole: figures, the database server, whether the invariants hold. For callers without restrictions."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from leasehold.db.store import Law, System
from leasehold.operate.operator import Operator

_WHAT = "what concerns everything"


async def figures(op: Operator) -> dict[str, tuple[int, bool]]:
    """Return jobs by state, what ended in the last minute, live workers and their slots; True: counted no further."""
    op.caller.check_unrestricted(_WHAT)
    return await op.ask(op.store.stats())


async def counts(op: Operator) -> dict[str, tuple[int, bool]]:
    """Return jobs by state; True: counted no further."""
    op.caller.check_unrestricted(_WHAT)
    return await op.ask(op.store.counts())


async def server(op: Operator) -> System:
    """Return tables, settings, what holds the xmin horizon back: with queries only for callers that see content."""
    op.caller.check_unrestricted(_WHAT)
    found = await op.ask(op.store.system())
    if not op.caller.sees_content:
        return found
    horizon = await op.ask(op.store.holders())
    for place, holder in enumerate(horizon):
        if holder.query == "<insufficient privilege>":
            horizon[place] = replace(holder, query="not permitted")
    return replace(found, horizon=horizon)


async def clock(op: Operator) -> datetime:
    """Return what the database's clock shows."""
    return datetime.fromtimestamp(await op.ask(op.store.clock()) / 1e6, UTC)


async def invariants(op: Operator, /, **options: Any) -> list[Law]:
    """Return each invariant, and whether it holds; with the options of the call."""
    op.caller.check_unrestricted(_WHAT)
    return await op.ask(op.store.verify(**options))
