"""The database itself."""

from typing import Final

from leasehold.db.store import Holder, System
from leasehold.errors import LeaseholdError
from leasehold.web.visit import Visit
from leasehold.web.words import span

_LONG: Final = 300.0
"""Seconds after which whoever holds vacuum back is worth a word."""


async def machine(visit: Visit) -> System | None:
    """Tables, sessions, settings; None: not for this visitor, or not to be had now."""
    if visit.visitor.restricted:
        return None
    try:
        return await visit.recall("system", 5.0, lambda: visit.ask(visit.store.system()))
    except LeaseholdError:
        return None


async def holders(visit: Visit) -> list[Holder]:
    """Who holds the xmin horizon back; with what they run for those who may see content."""
    if visit.visitor.restricted:
        return []
    if not visit.visitor.sees_content:
        found = await machine(visit)
        return [] if found is None else found.horizon
    try:
        return await visit.recall("holders", 5.0, lambda: visit.ask(visit.store.holders()))
    except LeaseholdError:
        return []


async def holder_words(visit: Visit) -> str | None:
    """Who holds vacuum back for so long that it matters, in words; None: nobody."""
    for holder in await holders(visit):
        if holder.seconds is not None and holder.seconds > _LONG:
            return f"by {holder.words} for {span(holder.seconds)}"
    return None
