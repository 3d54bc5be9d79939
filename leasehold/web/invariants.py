"""The invariants, as `verify` finds them: asked for no more often than every fifteen seconds, whoever looks."""

from leasehold.db.store import Law
from leasehold.errors import LeaseholdError
from leasehold.web.facts import CHECKED
from leasehold.web.visit import Visit


async def invariants(visit: Visit) -> list[Law] | None:
    """Each with whether it holds; None: not for this visitor, or not to be had now."""
    if visit.visitor.restricted:
        return None
    try:
        return await visit.recall("verify", CHECKED, lambda: visit.ask(visit.store.verify()))
    except LeaseholdError:
        return None
